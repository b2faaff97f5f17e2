"""Scikit-learn's digits: small networks in a plain loop of 400 steps, as library users write it.

Their runs lie in the record of the benchmark, because they have no config of `blockout train`.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from blockout import BlockoutLinear, Guide, Structure, convert, parameter_groups
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json

DENSE = "dense"
GUIDED = {"converted": "guided, converted", "fresh": "guided, fresh"}
"""How the guided layers came: by `convert`, or made so."""
OPTIMISERS = ("SGD", "AdamW")
SEEDS = 30
STEPS = 400
Run = dict[str, Any]
Pair = tuple[Tensor, Tensor]


class Missing(NamedTuple):
    optimiser: str
    method: str
    seed: int

    @property
    def key(self) -> Run:
        return {"set": f"digits, {self.optimiser}", "method": self.method, "seed": self.seed}


def digits(seed: int) -> tuple[Pair, Pair]:
    """Seven in ten to train on, standardised."""
    table: Any = load_digits()
    x, y = table.data, table.target
    parts: Any = train_test_split(x, y, test_size=0.3, random_state=seed, stratify=y)
    x, test_x, y, test_y = parts
    mean, std = x.mean(0), x.std(0) + 1e-6
    tables = (torch.tensor((table - mean) / std).float() for table in (x, test_x))
    first, second = zip(tables, (torch.tensor(y), torch.tensor(test_y)), strict=True)
    return first, second


def small_network(method: str) -> nn.Sequential:
    """64-128-128-10; the last two layers are Blockout layers, converted or made so."""
    sizes = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)
    net = nn.Sequential(sizes[0], nn.ReLU(), sizes[1], nn.ReLU(), sizes[2])
    if method == GUIDED["converted"]:
        converted: Any = convert(net, layers=["2", "4"], clusters=6)
        return converted
    if method == GUIDED["fresh"]:
        net[2] = inner = BlockoutLinear(128, 128, clusters=6)
        net[4] = BlockoutLinear(128, 10, clusters=6, inputs=inner.outputs)
    return net


def optimizer_of(net: nn.Module, optimiser: str) -> torch.optim.Optimizer:
    if optimiser == "SGD":
        groups = parameter_groups(net, lr=0.05, weight_decay=1e-4)
        return torch.optim.SGD(groups, momentum=0.9)
    groups = parameter_groups(net, lr=2e-3, weight_decay=1e-2, membership_scale=30)
    return torch.optim.AdamW(groups)


def small_run(method: str, optimiser: str, seed: int) -> Run:
    """400 steps of 64 digits, the rate falling linearly to zero."""
    (x, y), (test_x, test_y) = digits(seed)
    torch.manual_seed(seed)
    net = small_network(method)
    optimizer = optimizer_of(net, optimiser)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / STEPS)
    guide = Guide(net, STEPS) if method != DENSE else None
    rng = np.random.default_rng(seed)
    began = time.perf_counter()
    for _ in range(STEPS):
        rows = torch.from_numpy(rng.integers(0, len(y), 64))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
        if guide is not None:
            guide.step(y[rows])
    run: Run = {"seconds": round(time.perf_counter() - began, 1)}
    with torch.no_grad():
        right = (net.eval()(test_x).argmax(1) == test_y).double().mean()
    run["test"] = round(100 * float(right), 2)
    if guide is not None:
        left = Structure.from_model(net).total
        run["left"] = round(100 * left.pairs_after / left.pairs_before, 1)
    return run


# --- in the record --------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    """The record of the benchmark; empty before the first run."""
    return json.loads(path.read_text()) if path.exists() else {"environments": [], "runs": []}


def missing(runs: list[Run], seeds: int) -> Iterator[Missing]:
    done = {(run["set"], run["method"], run["seed"]) for run in runs}
    for seed in range(seeds):
        for optimiser in OPTIMISERS:
            for method in (DENSE, *GUIDED.values()):
                job = Missing(optimiser, method, seed)
                if tuple(job.key.values()) not in done:
                    yield job


def do_missing(path: Path, seeds: int, is_time: Callable[[], bool]) -> None:
    """Does what is missing, and adds each run to the record at once."""
    record = read(path)
    made_with = {k: v for k, v in as_json(environment()).items() if k not in ("command", "origins")}
    for job in list(missing(record["runs"], seeds)):
        if not is_time():
            return
        if made_with not in record["environments"]:
            record["environments"].append(made_with)
        number = record["environments"].index(made_with)
        found = small_run(job.method, job.optimiser, job.seed)
        record["runs"].append(job.key | found | {"environment": number})
        write_json(path, record)
        print(*job.key.values(), found["test"], sep=", ", flush=True)
