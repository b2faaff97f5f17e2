"""How much faster than the weights should membership logits learn, under SGD and under Adam?

    python benchmarks/membership_rate.py            # needs CIFAR-100, see `blockout doctor`

Trains Blockout heads (512 nodes, k = 6) on the pixels of CIFAR-100, averaged over 2 x 2: one row a
scale and optimiser, test accuracy and how far P has moved from 0.5. Writes a record.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from blockout import parameter_groups
from blockout.data import DataConfig, Split, load
from blockout.layers import memberships_of
from blockout.models import Head
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json

OPTIMISERS = {
    "sgd": (0.1, (1, 30, 100, 300, 1000)),
    "adam": (1e-3, (1, 3, 10, 30, 100)),
}
"""Peak rate of the weights, and the scales of the logits' rate to try."""
EPOCHS, BATCH, WEIGHT_DECAY = 10, 256, 1e-4


def pixels(split: Split) -> tuple[Tensor, Tensor]:
    """Normalised images of 16 x 16 as (n, 768), and their classes."""
    rows = [(F.avg_pool2d(x, 2).flatten(1), y) for x, y in split.batches(500, train=False)]
    x, y = zip(*rows, strict=True)
    return torch.cat(x), torch.cat(y)


def train_head(optimiser: str, rate: float, scale: float, train, test, seed: int) -> dict:
    torch.manual_seed(seed)
    (x, y), (x_test, y_test) = train, test
    head = Head(x.shape[1], 100, method="blockout", nodes=512, clusters=6)
    groups = parameter_groups(head, rate, WEIGHT_DECAY, membership_scale=scale)
    if optimiser == "sgd":
        step = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    else:
        step = torch.optim.AdamW(groups)
    peaks = [group["lr"] for group in groups]
    total = EPOCHS * (len(x) // BATCH)
    cycle = torch.optim.lr_scheduler.OneCycleLR(step, peaks, total, cycle_momentum=False)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            step.zero_grad()
            F.cross_entropy(head(x[batch]), y[batch]).backward()
            step.step()
            cycle.step()
    head.eval()
    with torch.no_grad():
        accuracy = 100 * (head(x_test).argmax(1) == y_test).float().mean().item()
    p = torch.cat([m.probabilities.detach().flatten() for m in memberships_of(head).values()])
    return {
        "optimiser": optimiser, "lr": rate, "membership_scale": scale, "seed": seed,
        "test_accuracy": round(accuracy, 2),
        "p_quartiles": [round(q, 3) for q in p.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()],
        "p_below_0.1": round((p < 0.1).float().mean().item(), 3),
        "p_above_0.9": round((p > 0.9).float().mean().item(), 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/membership_rate.json"))
    arguments = parser.parse_args()
    data = load(DataConfig("cifar100", holdout=0.0))
    train, test = pixels(data.train), pixels(data.test)
    rows = []
    for optimiser, (rate, scales) in OPTIMISERS.items():
        for scale in scales:
            rows.append(train_head(optimiser, rate, scale, train, test, seed=0))
            print(rows[-1], flush=True)
    config = {
        "epochs": EPOCHS,
        "batch": BATCH,
        "weight_decay": WEIGHT_DECAY,
        "nodes": 512,
        "clusters": 6,
    }
    write_json(arguments.out, {"config": config, "rows": rows, **as_json(environment())})


if __name__ == "__main__":
    main()
