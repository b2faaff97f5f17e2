"""What a Blockout layer costs beside a plain one, and beside the same written in plain torch.

    make bench                                    # about ten minutes; writes record, plot and docs
    python benchmarks/kernels.py --rows promised  # the rows that the docs quote, two minutes
    make bench ARGS="--rows full"                 # every size and kind of P, about twenty minutes
    make bench ARGS="--rows convolutions"         # these anew in the record, one minute

Each row times forward and backward of one layer of d by d in turns within one process: `nn.Linear`
and Dropout, the reference in `masking`, `kernels` as they are used here (`ratio`), and without
compiled code, as BLOCKOUT_NATIVE=0 has them (`torch`). Ratios are of medians; ± is half of the
distance between the quartiles of the ratios of turns. `share` is how many of the products a draw
leaves, `roof` the part of the time that the matrix products of these would take at the speed of a
large one of torch, measured in this run: above 1, compiled products are faster than torch's. Then
eval mode with one example, a step of the CIFAR-100 network, a head of 2048 nodes (a step, and a
whole training run), and memory.

Rows of `bfloat16` do the same under autocast, as `--precision bf16-mixed` has it, and with weights
and inputs in bfloat16; the plain layer is in the same precision. Rows of `convolutions` are 1x1
convolutions beside `nn.Conv2d` and Dropout.

`megabytes` is what a step at d = 4096, batch 128 adds to the memory of a process that has its
parameters and inputs and has made a small step: the largest resident size during forward and
backward (VmHWM of Linux, reset before) less what was resident before. Each way has a process of its
own.

Run it on an otherwise idle machine: it times, so it is no test.
"""

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockout import (
    BlockoutLinear,
    Guidance,
    Guide,
    kernels,
    masking,
    parameter_groups,
    to_branches,
    to_dense,
)
from blockout.kernels import native
from blockout.layers import memberships_of
from blockout.masking import Assignments
from blockout.models import Head, ModelConfig, build_model
from blockout.models.config import Method
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json
from blockout.training.engine import Engine, Recipe

P = float | str
PROMISED: list[tuple[int, int, int, P]] = [
    (4096, 128, 6, 0.5),
    (4096, 128, 6, 0.25),
    (4096, 128, 2, 0.5),
    (4096, 128, 1, 0.5),
    (2048, 128, 6, 0.5),
    (512, 128, 6, 0.5),
    (4096, 128, 6, "settled"),
]
GRID: list[tuple[int, int, int, P]] = [
    *((d, 128, k, p) for d in (512, 1024, 2048, 4096) for k in (1, 2, 6, 15) for p in (0.5, 0.25)),
    *((d, n, 6, 0.5) for d in (512, 2048) for n in (32, 512)),
    *((d, 128, 6, p) for d in (1024, 2048, 4096) for p in ("sharp", "settled")),
    (8192, 128, 6, 0.5),
    (8192, 128, 6, "settled"),
]
FULL: list[tuple[int, int, int, P]] = [
    (d, n, k, p)
    for d, n, k, p in itertools.product(
        (512, 1024, 2048, 4096, 8192),
        (32, 128, 512),
        (1, 2, 6, 15),
        (0.5, 0.25, "sharp", "settled"),
    )
    if (k, p) != (1, "settled")  # all nodes in one cluster: a plain layer
]
HALF: list[tuple[int, int, P]] = [
    (512, 128, 0.5),
    (2048, 32, 0.5),
    (2048, 128, 0.5),
    (2048, 512, 0.5),
    (4096, 128, 0.5),
    (4096, 128, 0.25),
    (4096, 128, "settled"),
]
CONVOLUTIONS: list[tuple[int, int, int, P]] = [
    (64, 28, 128, 0.5),
    (256, 14, 64, 0.5),
    (512, 1, 128, 0.5),
    (512, 4, 8, 0.5),
    (512, 7, 8, 0.5),
    (512, 7, 32, 0.5),
    (512, 7, 32, "settled"),
    (1024, 1, 128, 0.5),
    (1024, 7, 8, 0.5),
    (1024, 7, 8, "settled"),
    (1024, 7, 32, 0.5),
    (1024, 7, 32, "settled"),
    (1024, 7, 128, "settled"),
]
"""Channels, places along a side, batch, P."""
QUICK, FEW_TURNS = 0.7, 2
"""Seconds and turns of a row of the full grid."""
SETTLED = 1.15
"""Clusters per node of settled memberships: the paper's median is about 1.5."""
Row = dict[str, Any]
Times = dict[str, list[float]]


def in_turns(ways: Mapping[str, Callable[[], object]], seconds: float, least: int = 5) -> Times:
    """Times of each way, one after the other until the time is up; the first round is left out."""
    times: Times = {name: [] for name in ways}
    began = time.perf_counter()
    while len(times[next(iter(ways))]) <= least or time.perf_counter() - began < seconds:
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    return {name: found[1:] for name, found in times.items()}


def ratio(times: Times, of: str, to: str) -> tuple[float, float]:
    """Of medians, and half of the distance between the quartiles of the turns' ratios."""
    turns = [a / b for a, b in zip(times[of], times[to], strict=True)]
    low, _, high = statistics.quantiles(turns, n=4)
    medians = statistics.median(times[of]) / statistics.median(times[to])
    return round(medians, 3), round((high - low) / 2, 3)


def without_compiled(way: Callable[[], object]) -> Callable[[], None]:
    def step() -> None:
        with native.switched_off():
            way()

    return step


def probabilities(d: int, k: int, p: P) -> Tensor:
    """P of a layer: equal, sharply learned (beta(0.1, 0.3): near 0 or 1), or settled."""
    if p == "settled":
        first = F.one_hot(torch.arange(d) % k, k).float()
        more = torch.rand(d, k) < (SETTLED - 1) / (k - 1)
        return torch.maximum(first, more.float())[torch.randperm(d)]
    if p == "sharp":
        return torch.distributions.Beta(0.1, 0.3).sample((d, k))
    return torch.full((d, k), float(p))


def layer_row(
    case: tuple[int, int, int, P], gemm_rate: float, seconds: float, least: int = 5
) -> Row:
    d, n, k, p = case
    times, share = layer_times(case, torch.float32, False, seconds, least)
    median = statistics.median(times["kernels"])
    roof = {"roof": round(3 * 2 * n * d * d * share / gemm_rate / median, 3)}
    return {"d": d, "batch": n, "k": k, "p": p, "share": share} | _layer_said(times) | roof


def half_row(case: tuple[int, int, P], precision: str, seconds: float) -> Row:
    (d, n, p), k = case, 6
    mixed = precision == "bf16-mixed"
    dtype = torch.float32 if mixed else torch.bfloat16
    times, share = layer_times((d, n, k, p), dtype, mixed, seconds)
    what = {"precision": precision, "d": d, "batch": n, "k": k, "p": p, "share": share}
    return what | _layer_said(times)


def _layer_said(times: Times) -> Row:
    (own, spread), (alone, alone_spread), (reference, _) = (
        ratio(times, name, "plain") for name in ("kernels", "torch", "reference")
    )
    return {
        "ratio": own, "spread": spread, "torch": alone, "torch_spread": alone_spread,
        "reference": reference,
        "milliseconds": round(1000 * statistics.median(times["kernels"]), 2),
        "plain_milliseconds": round(1000 * statistics.median(times["plain"]), 2),
        "turns": len(times["plain"]),
    }  # fmt: skip


def layer_times(
    case: tuple[int, int, int, P], dtype: torch.dtype, mixed: bool, seconds: float, least: int = 5
) -> tuple[Times, float]:
    """Of a layer, and the share of the pairs of nodes that have a cluster in common."""
    d, n, k, p = case
    torch.manual_seed(0)
    x, delta = torch.randn(n, d, dtype=dtype, requires_grad=True), torch.randn(n, d)
    plain, weight, bias = (
        nn.Linear(d, d, dtype=dtype),
        nn.Parameter(torch.randn(d, d, dtype=dtype)),
        nn.Parameter(torch.zeros(d, dtype=dtype)),
    )
    delta = delta.to(torch.bfloat16 if mixed else dtype)
    at = [probabilities(d, k, p), probabilities(d, k, p)]
    learns = [nn.Parameter(one.clone()) for one in at]
    everything = [x, weight, bias, *plain.parameters(), *learns]

    def step(forward: Callable[[], Tensor]) -> Callable[[], None]:
        def both() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                y = forward()
            y.backward(delta)
            for one in everything:
                one.grad = None

        return both

    def masked(product: Callable[..., Tensor]) -> Callable[[], Tensor]:
        return lambda: product(x, weight, *drawn(at, learns), bias)

    ways = {
        "plain": step(lambda: F.dropout(plain(x), 0.5)),
        "reference": step(masked(masking.masked_linear)),
        "kernels": step(masked(kernels.masked_linear)),
        "torch": without_compiled(step(masked(kernels.masked_linear))),
    }
    times = in_turns(ways, seconds, least)
    pairs = sum(
        int((torch.bernoulli(at[0]) @ torch.bernoulli(at[1]).T).count_nonzero()) for _ in "123"
    )
    return times, round(pairs / (3 * d * d), 3)


def drawn(at: list[Tensor], learns: list[nn.Parameter]) -> list[Assignments]:
    return [Assignments(torch.bernoulli(a), b) for a, b in zip(at, learns, strict=True)]


def convolution_row(case: tuple[int, int, int, P], last: bool, seconds: float) -> Row:
    """A 1x1 convolution; ``last`` if channels lie last in memory."""
    (channels, side, n, p), k = case, 6
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    x, delta = (torch.randn(n, channels, side, side).to(memory_format=layout) for _ in "12")
    plain, x = nn.Conv2d(channels, channels, 1), x.requires_grad_()
    weight = nn.Parameter(torch.randn(channels, channels, 1, 1))
    at = [probabilities(channels, k, p) for _ in "12"]
    learns = [nn.Parameter(one.clone()) for one in at]
    everything = [x, weight, *plain.parameters(), *learns]

    def step(forward: Callable[[], Tensor]) -> Callable[[], None]:
        def both() -> None:
            forward().backward(delta)
            for one in everything:
                one.grad = None

        return both

    def masked(convolution: Callable[..., Tensor]) -> Callable[[], Tensor]:
        return lambda: convolution(x, weight, *drawn(at, learns), bias=plain.bias)

    ways = {
        "plain": step(lambda: F.dropout(plain(x), 0.5)),
        "reference": step(masked(masking.masked_conv2d)),
        "kernels": step(masked(kernels.masked_conv2d)),
    }
    times = in_turns(ways, seconds)
    (reference, _), (used, spread) = (ratio(times, name, "plain") for name in list(ways)[1:])
    return {
        "channels": channels, "side": side, "batch": n, "k": k, "p": p, "channels_last": last,
        "reference": reference, "ratio": used, "spread": spread,
        "plain_milliseconds": round(1000 * statistics.median(times["plain"]), 2),
        "turns": len(times["plain"]),
    }  # fmt: skip


def machine_rates() -> dict[str, float]:
    """The speed of a large matrix product (operations per second) and of memory (bytes)."""
    a, b, c = (torch.randn(2048, 2048) for _ in "abc")
    product = min(in_turns({"a": lambda: torch.mm(a, b, out=c)}, 1)["a"])
    large, other = torch.randn(1 << 26), torch.empty(1 << 26)
    copying = min(in_turns({"a": lambda: other.copy_(large)}, 1)["a"])
    return {
        "products": 2 * 2048**3 / product,
        "memory": 2 * 4 * 2**26 / copying,
        "bfloat16_time": kernels.bfloat16_time(),
    }


def inference_rows(seconds: float) -> list[Row]:
    """One example in eval mode: the layer, and what `to_dense` and `to_branches` make of it."""
    rows = []
    for d, n in ((1024, 1), (4096, 1), (4096, 128)):
        torch.manual_seed(0)
        fc = BlockoutLinear(d, d, clusters=6)
        net = nn.Sequential(fc, nn.ReLU(), BlockoutLinear(d, 64, clusters=6, inputs=fc.outputs))
        for side in memberships_of(net).values():
            side.put(probabilities(side.nodes, 6, "settled"))
        plain = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 64))
        nets = {
            "plain": plain,
            "layer": net,
            "to_dense": to_dense(net),
            "to_branches": to_branches(net, measure=False),
        }
        x = torch.randn(n, d)
        ways = {name: _evaluating(some.eval(), x) for name, some in nets.items()}
        times = in_turns(ways, seconds, least=20)
        rows.append({"d": d, "batch": n} | {name: ratio(times, name, "plain")[0] for name in nets})
    return rows


def _evaluating(net: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    @torch.no_grad()
    def run() -> Tensor:
        return net(x)

    return run


def training_rows(seconds: float) -> list[Row]:
    """Whole training steps, optimiser included, beside the same network with Dropout."""
    x, y = torch.randn(128, 3, 32, 32), torch.randint(100, (128,))
    found = []
    methods: tuple[Method, ...] = ("dropout", "blockout")
    configs = {name: ModelConfig(method=name, trunk="inception-small") for name in methods}
    ways = {
        name: _step(build_model(c, classes=100, data_name="cifar100", image_size=32), x, y)
        for name, c in configs.items()
    }
    ways["torch"] = without_compiled(ways["blockout"])
    times = in_turns(ways, seconds, least=10)
    found.append({"what": "a step of the CIFAR-100 network"} | _said(times, "blockout", "torch"))
    x = torch.randn(64, 1280)
    heads = {
        name: Head(1280, 100, method="blockout", nodes=2048, clusters=6)
        for name in ("drawn", "given")
    }
    for side in memberships_of(heads["given"]).values():
        side.put(probabilities(side.nodes, 6, "settled"))
    nets = {"dropout": Head(1280, 100, method="dropout", nodes=2048), **heads}
    ways = {name: _step(net, x, torch.randint(100, (64,))) for name, net in nets.items()}
    ways |= {f"{name} torch": without_compiled(ways[name]) for name in heads}
    times = in_turns(ways, seconds, least=30)
    for name in heads:
        what = f"a step of a head of 2048 nodes on features, memberships {name}"
        found.append({"what": what} | _said(times, name, f"{name} torch"))
    return found


def whole_rows(runs: int = 30) -> list[Row]:
    """Whole training runs of a head of 2048 nodes on features: Dropout, memberships given at 35 %
    of the steps, and the guided default of `blockout train`."""
    torch.manual_seed(0)
    centres, labels = torch.randn(100, 1280), torch.randint(100, (WHOLE_STEPS, 64))
    batches = [(centres[y] + torch.randn(64, 1280), y) for y in labels]
    ways = {name: partial(_whole_run, name, batches) for name in ("dropout", "given", "guided")}
    alone = {f"{name} torch": without_compiled(ways[name]) for name in ("given", "guided")}
    times = in_turns(ways | alone, 0, least=runs)
    said = {"given": "settled memberships given at 35 %", "guided": "the guided default"}
    return [
        {"what": f"all {WHOLE_STEPS} steps of this head, {words}"}
        | _said(times, name, f"{name} torch")
        for name, words in said.items()
    ]


def _whole_run(name: str, batches: list[tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    head = Head(1280, 100, method="dropout" if name == "dropout" else "blockout", nodes=2048)
    told = {
        "guidance": Guidance().resolved(frozen=True),
        "similarity": [c % 10 for c in range(100)],
    }
    guide = partial(Guide, steps=len(batches), **told) if name == "guided" else None
    engine = Engine(head, Recipe(len(batches)), guide=guide)
    engine.train()
    for number, (x, y) in enumerate(batches):
        if name == "given" and number == round(0.35 * len(batches)):
            for side in memberships_of(head).values():
                side.put(probabilities(side.nodes, 6, "settled"))
        engine.step(x, y)
    engine.close()


def _step(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(parameter_groups(net, 0.01), momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def _said(times: Times, name: str, alone: str) -> Row:
    (medians, spread), median = ratio(times, name, "dropout"), statistics.median(times[name])
    without, without_spread = ratio(times, alone, "dropout")
    return {
        "ratio": medians, "spread": spread, "torch": without, "torch_spread": without_spread,
        "milliseconds": round(1000 * median, 2), "turns": len(times[name]),
    }  # fmt: skip


WHOLE_STEPS = 40
WAYS = ("plain", "reference", "kernels", "torch")


def memory_rows() -> list[Row]:
    """Megabytes that one step adds, each way in a process of its own."""
    rows = []
    for way in WAYS:
        command = [sys.executable, __file__, "--memory", way]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append({"way": way, "megabytes": float(run.stdout)})
    return [row | {"ratio": round(row["megabytes"] / rows[0]["megabytes"], 3)} for row in rows]


def added_megabytes(way: str) -> float:
    """By a step with 4096 nodes, after a small one that loads and starts what it needs."""
    for d in (1024, 4096):
        torch.manual_seed(0)
        x, delta = torch.randn(128, d, requires_grad=True), torch.randn(128, d)
        layer = nn.Linear(d, d)
        c_out, c_in = (
            Assignments(torch.rand(d, 6).round(), nn.Parameter(p)) for p in torch.rand(2, d, 6)
        )
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        if way == "plain":
            y = F.dropout(layer(x), 0.5)
        elif way == "torch":
            with native.switched_off():
                y = kernels.masked_linear(x, layer.weight, c_out, c_in, layer.bias)
        else:
            product = masking if way == "reference" else kernels
            y = product.masked_linear(x, layer.weight, c_out, c_in, layer.bias)
        y.backward(delta)
        added = resident("VmHWM") - before
        del x, delta, layer, c_out, c_in, y
    return round(added / 1e6, 1)


def resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def table(rows: list[Row]) -> None:
    columns = list(rows[0])
    print("  ".join(f"{column:>9}" for column in columns))
    for row in rows:
        print("  ".join(f"{row[column]!s:>9}" for column in columns), flush=True)


def plot(rows: list[Row], path: Path) -> None:
    """Ratios over the share of products that a draw leaves; a plain layer is the line at one."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.axhline(1, color="0.6", linewidth=1)
    for d in sorted({row["d"] for row in rows}):
        own = [row for row in rows if row["d"] == d]
        points = axes.plot(
            [r["share"] for r in own], [r["ratio"] for r in own], "o", label=f"d = {d}"
        )
        for name, mark in (("torch", "+"), ("reference", "x")):
            axes.plot([r["share"] for r in own], [r[name] for r in own], mark,
                      color=points[0].get_color(), alpha=0.5)  # fmt: skip
    axes.set(
        xlabel="share of the products that the drawn memberships leave", ylim=(0, None),
        ylabel="time, forward and backward, beside nn.Linear + Dropout",
        title="Kernels (dots), without a compiler (+), written out in torch (×)",
    )  # fmt: skip
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    rows = ("promised", "short", "full", "convolutions")
    parser.add_argument("--rows", choices=rows, default="short")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each row")
    parser.add_argument("--out", type=Path, help="the record to write")
    parser.add_argument("--plot", type=Path, help="the picture to draw (needs matplotlib)")
    parser.add_argument("--memory", choices=WAYS, help="only print what a step adds, in megabytes")
    chosen = parser.parse_args()
    if chosen.memory is not None:
        print(added_megabytes(chosen.memory))
    elif chosen.rows == "convolutions":
        measure_convolutions(chosen.seconds, chosen.out)
    else:
        measure(chosen.rows, chosen.seconds, chosen.out, chosen.plot)


def measure_convolutions(seconds: float, out: Path | None) -> None:
    """Only these; a record keeps its other rows, and says how and where these were made."""
    rows = convolution_rows(seconds)
    table(rows)
    if out is not None:
        made = {"convolutions": rows, "convolutions_made": as_json(environment())}
        write_json(out, json.loads(out.read_text()) | made)


def convolution_rows(seconds: float) -> list[Row]:
    cases = itertools.product(CONVOLUTIONS, (False, True))
    return [convolution_row(case, last, seconds / 3) for case, last in cases]


def measure(which: str, seconds: float, out: Path | None, picture: Path | None) -> None:
    in_use, told = kernels.compiled()
    rates = machine_rates()
    print(f"{rates['products'] / 1e9:.0f} GFLOP/s, {rates['memory'] / 1e9:.1f} GB/s")
    print("compiled kernels" if in_use else f"no compiled kernels: {told}")
    rows = [layer_row(case, rates["products"], seconds) for case in PROMISED]
    if which == "short":
        rows += [layer_row(c, rates["products"], seconds) for c in GRID if c not in PROMISED]
    if which == "full":
        quick = rates["products"], QUICK, FEW_TURNS
        rows += [layer_row(case, *quick) for case in FULL if case not in PROMISED]
    table(rows)
    found = {"layers": rows, "inference": inference_rows(seconds / 2)}
    found |= {"training": training_rows(seconds * 2) + whole_rows(), "memory": memory_rows()}
    precisions = "bf16-mixed", "bfloat16"
    found["bfloat16"] = [half_row(c, name, seconds / 3) for name in precisions for c in HALF]
    found["convolutions"] = convolution_rows(seconds)
    for name in ("inference", "training", "memory", "bfloat16", "convolutions"):
        table(found[name])
    if picture is not None:
        plot(rows, picture)
    if out is not None:
        record = {"rates": rates, "compiled": in_use, **found, "threads": torch.get_num_threads()}
        write_json(out, record | as_json(environment()))


if __name__ == "__main__":
    main()
