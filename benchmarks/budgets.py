"""Accuracy against multiply-adds over budgets, on the features of a trained trunk.

    python benchmarks/budgets.py runs/cifar100-blockout --nodes 2048 --epochs 5

The trunk of a finished run gives features of augmented training images and of the test images; for
each budget a head is trained on them, guided, and cut where no cluster is shared. One row trains by
the paper's rule and is cut at 0.5. Writes a record. About three minutes a row for 2048 nodes.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

from blockout import Guidance, Guide, Structure, parameter_groups, to_branches
from blockout.compact import multiply_adds
from blockout.data import ImageData
from blockout.models import Head
from blockout.runs import Run
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json

BATCH, RATE, VERSIONS = 256, 0.4, 1
THRESHOLD = 0.5


@torch.no_grad()
def features(run: Run, data: ImageData) -> dict[str, Tensor]:
    """Of the training images in some augmentations, and of the test images."""
    model = run.network().model
    rows: dict[str, list[Tensor]] = {"x": [], "y": [], "test_x": [], "test_y": []}
    for version in range(VERSIONS):
        batches = data.train.batches(500, train=True, seed=0, epoch=version)
        for x, y in track(batches, "features", len(data.train) // 500):
            rows["x"].append(model.features(x))
            rows["y"].append(y)
    for x, y in data.test.batches(500, train=False):
        rows["test_x"].append(model.features(x))
        rows["test_y"].append(y)
    return {name: torch.cat(parts) for name, parts in rows.items()}


def train_head(
    seen: dict[str, Tensor], head: Head, steps: int, guidance: Guidance | None, seed: int = 0
) -> None:
    """SGD with one cycle, by the paper's rule or guided."""
    optimizer = torch.optim.SGD(parameter_groups(head, RATE, 1e-4), momentum=0.9, nesterov=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=0.2)
    guide = None if guidance is None else Guide(head, steps, guidance)
    torch.manual_seed(seed)
    head.train()
    for _ in track(range(steps), "training"):
        chosen = torch.randint(len(seen["x"]), (BATCH,))
        y = seen["y"][chosen]
        F.cross_entropy(head(seen["x"][chosen]), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        cycle.step()
        if guide is not None:
            guide.step(y)


@torch.no_grad()
def accuracy(head: torch.nn.Module, seen: dict[str, Tensor]) -> float:
    """On the test images, in per cent, with statistics measured under the weights it has now."""
    norms = [m for m in head.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    head.eval()
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
        m.train()
    for x in seen["x"][:5000].split(500):
        head(x)
    head.eval()
    return 100 * float((head(seen["test_x"]).argmax(1) == seen["test_y"]).float().mean())


def row(seen: dict[str, Tensor], data: ImageData, nodes: int, steps: int, seed: int,
        guidance: Guidance | None) -> dict[str, Any]:  # fmt: skip
    torch.manual_seed(seed)
    head = Head(seen["x"].shape[1], len(data.classes), nodes=nodes, clusters=6)
    train_head(seen, head, steps, guidance, seed)
    structure = Structure.from_model(head, THRESHOLD, data.classes, taxonomy=data.groups)
    compact = to_branches(head, THRESHOLD, measure=False)
    example = seen["x"][:1]
    return {
        "accuracy": accuracy(head, seen), "cut": accuracy(compact, seen),
        **{cost.layer.name: cost.left for cost in structure.costs},
        "multiply_adds": multiply_adds(compact, example) / multiply_adds(head, example),
        "auc": None if data.groups is None else structure.agreement().auc, "seed": seed,
    }  # fmt: skip


def main() -> None:
    text = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("run", type=Path, help="folder of a finished run, for its trunk")
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--budgets", type=float, nargs="+", default=[1, 1.25, 1.5, 2, 3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/budgets.json"))
    chosen = parser.parse_args()
    run = Run.open(chosen.run)
    data = run.images()
    seen = features(run, data)
    steps = chosen.epochs * len(data.train) // BATCH
    rows = []
    for budget in (None, *chosen.budgets):
        guidance = None
        if budget is not None:
            guidance = Guidance(budget=budget, class_budget=max(budget, Guidance.class_budget))
        found = row(seen, data, chosen.nodes, steps, chosen.seed, guidance)
        rows.append({"budget": budget, **found})
        print(
            f"{'paper' if budget is None else f'budget {budget:g}':<12}"
            f"{found['accuracy']:6.2f} %  cut {found['cut']:6.2f} %  left: FC2 {found['fc2']:.0%}, "
            f"classifier {found['classifier']:.0%}, multiply-adds {found['multiply_adds']:.0%}  "
            f"AUC {found['auc'] or 0:.2f}"
        )
    about = {"nodes": chosen.nodes, "epochs": chosen.epochs, "clusters": 6, "seed": chosen.seed}
    record = {"config": run.config.flat(), **about, "rows": rows, **as_json(environment())}
    write_json(chosen.out, record)


if __name__ == "__main__":
    main()
