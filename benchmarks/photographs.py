"""Heads on the features of a pretrained trunk, on a folder of photographs, paired by seed.

    python benchmarks/photographs.py grocery --seeds 5 --out results/grocery.json

Every run is what `blockout train --data FOLDER --method METHOD --seed SEED` does with its defaults;
finished runs are not trained again. The differences are to the baseline, a linear classifier on
the same features, with the 95 % interval of a t distribution. A run takes about ten seconds once
features are cached.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from blockout.data import DataConfig
from blockout.models.config import Method, ModelConfig
from blockout.runs import Run, TrainConfig
from blockout.runs.config import OptimisationConfig, RunConfig, name_of
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json
from blockout.training import train

METHODS: tuple[Method, ...] = ("baseline", "fc", "dropout", "blockout")


def trained(data: str, method: Method, seed: int, runs: Path) -> Run:
    """The finished run of one method and seed."""
    folder = runs / f"{name_of(data)}-{method}-{seed}"
    config = TrainConfig(
        data=DataConfig(data),
        model=ModelConfig(method=method),
        optimisation=OptimisationConfig(seed=seed),
        run=RunConfig(run=folder, tensorboard=False),
    )
    return Run.open(train(config))


def summary(accuracy: np.ndarray, baseline: np.ndarray) -> dict[str, Any]:
    """Mean and spread over the seeds, and the paired difference to the baseline."""
    difference = accuracy - baseline
    row: dict[str, Any] = {
        "test": accuracy.round(2).tolist(),
        "mean": round(float(accuracy.mean()), 2),
        "std": round(float(accuracy.std(ddof=1)), 2) if len(accuracy) > 1 else None,
        "difference": round(float(difference.mean()), 2),
    }
    if len(difference) > 1 and difference.std() > 0:
        low, high = stats.t.interval(
            0.95, len(difference) - 1, difference.mean(), stats.sem(difference)
        )
        row["interval"] = [round(float(low), 2), round(float(high), 2)]
    return row


def _seconds(run: Run) -> float:
    return 0.0 if run.result is None else run.result.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="what --data takes")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/photographs"))
    parser.add_argument("--out", type=Path, required=True, help="the record to write")
    chosen = parser.parse_args()
    found = {
        method: [trained(chosen.data, method, seed, chosen.runs) for seed in range(chosen.seeds)]
        for method in METHODS
    }
    accuracy = {m: np.array([run.test_accuracy for run in runs]) for m, runs in found.items()}
    rows = {m: summary(values, accuracy["baseline"]) for m, values in accuracy.items()}
    for method, row in rows.items():
        row["seconds"] = round(float(np.mean([_seconds(run) for run in found[method]])), 1)
        between = row.get("interval", "")
        print(f"{method:10} {row['mean']:6.2f} ± {row['std']}  {row['difference']:+.2f} {between}")
    one = found["blockout"][0].config
    data = dataclasses.replace(one.data, data=name_of(chosen.data), cache=None)
    run = dataclasses.replace(one.run, run=None)
    config = dataclasses.replace(one, run=run, data=data)
    about = {"config": config.flat(), "seeds": chosen.seeds, "rows": rows}
    write_json(chosen.out, about | as_json(environment()))


if __name__ == "__main__":
    main()
