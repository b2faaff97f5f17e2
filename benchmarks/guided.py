"""What guidance gives beside the paper's rule: accuracy, size, speed and meaning of finished runs.

    blockout train --data cifar100 --nodes 2048 --epochs 6 --run runs/paper-2048
    blockout train --data cifar100 --nodes 2048 --epochs 6 --guided --seed 0 --run runs/guided-0
    blockout train --data cifar100 --nodes 2048 --epochs 6 --guided --seed 1 --run runs/guided-1
    python benchmarks/guided.py runs/paper-2048 runs/guided-0 runs/guided-1

Dense and compact heads take turns in one process. Writes a record. A minute a run.
"""

import argparse
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from blockout import to_branches, to_dense
from blockout.runs import Run
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json
from blockout.training import evaluate
from blockout.training.compaction import compact_classifier, milliseconds

THRESHOLD, BATCHES = 0.5, (256, 1)


def measured(run: Run) -> dict[str, Any]:
    """Accuracy before and after compaction, what is left, how fast, and what it means."""
    data, trained = run.images(), run.network()
    structure = run.require_structure().at(THRESHOLD)
    speed = {}
    for batch in BATCHES:
        head = trained.model.head
        x = torch.randn(batch, head.specification["features"])  # pyright: ignore
        compact = to_branches(head, THRESHOLD, batch_size=batch).eval()
        dense_ms, compact_ms = milliseconds(to_dense(head).eval(), compact, x)
        speed[batch] = {"dense_ms": dense_ms, "compact_ms": compact_ms,
                        "ratio": dense_ms / compact_ms}  # fmt: skip
    small = compact_classifier(trained.model, THRESHOLD, BATCHES[0])
    agreement = structure.agreement() if structure.taxonomy is not None else None
    return {
        "run": run.name, "config": run.config.flat(), "result": as_json(run.result),
        "accuracy": evaluate(trained.model, data.test).accuracy,
        "compact_accuracy": evaluate(small, data.test).accuracy,
        "left": {cost.layer.name: cost.left for cost in structure.costs},
        "speed": speed,
        "agreement": None if agreement is None else vars(agreement),
    }  # fmt: skip


def show(row: dict[str, Any], reference: float) -> None:
    speed = ", ".join(f"{s['ratio']:.2f}x at batch {b}" for b, s in row["speed"].items())
    left = ", ".join(f"{name} {share:.0%}" for name, share in row["left"].items())
    said = f"{row['run']}: {row['accuracy']:.2f} % ({row['accuracy'] - reference:+.2f} points)"
    said += f", compact {row['compact_accuracy']:.2f} %; left of {left}; head {speed}"
    if row["agreement"]:
        a = row["agreement"]
        said += f"; AUC {a['auc']:.2f} (p = {a['auc_p_value']:.2g}), "
        said += f"adjusted Rand {a['adjusted_rand']:.2f}"
    print(said, flush=True)


def main() -> None:
    text = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("paper", type=Path, help="run of the paper's rule, for comparison")
    parser.add_argument("guided", type=Path, nargs="+", help="guided runs of the same length")
    parser.add_argument("--out", type=Path, default=Path("results/guided.json"))
    chosen = parser.parse_args()
    rows = []
    runs = [Run.open(folder) for folder in (chosen.paper, *chosen.guided)]
    for run in runs:
        rows.append(measured(run))
        show(rows[-1], rows[0]["accuracy"])
    structures = {run.name: run.require_structure() for run in runs[1:]}
    pairs = [
        {"runs": [a, b], **vars(structures[a].compare(structures[b]))}
        for a, b in combinations(structures, 2)
    ]
    for pair in pairs:
        print(f"co-membership in {' and '.join(pair['runs'])}: "
              f"correlation {pair['correlation']:.2f} (p = {pair['p_value']:.2g})")  # fmt: skip
    write_json(chosen.out, {"rows": rows, "pairs": pairs, **as_json(environment())})


if __name__ == "__main__":
    main()
