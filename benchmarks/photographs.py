"""A folder of photographs with the defaults, as a user runs the commands: seconds and accuracy.

    python benchmarks/photographs.py grocery --seeds 3 --out results/photographs.json

For each seed `blockout train --data FOLDER`, then the same command with `--finetune`. The first one
begins with an empty cache, the others find the features there. Seconds are those of the whole
command: Python's start, the pass through the trunk, training, the test, the report page. Run it on
an otherwise idle machine. `benchmarks/heads.py` compares heads.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from blockout.runs import Run
from blockout.runs.config import name_of
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json


def command(data: str, seed: int, folder: Path, *more: str) -> dict[str, Any]:
    """Runs one command to its end; returns its seconds and the accuracies of what it left."""
    run = folder / f"seed-{seed}"
    words = ["train", "--data", data, "--seed", str(seed), "--run", str(run), *more]
    surroundings = os.environ | {"BLOCKOUT_CACHE_DIR": str(folder / "cache")}
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "blockout", *words],
        check=True, env=surroundings, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = round(time.monotonic() - began, 1)
    result = Run.open(run.with_name(f"{run.name}-finetuned") if more else run).result
    assert result is not None
    found = {"test": result.test, "holdout": result.holdout, "linear": result.linear}
    accuracy = {name: round(what.accuracy, 2) for name, what in found.items() if what is not None}
    return {"seed": seed, "seconds": seconds, **accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="what --data takes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="the record to write")
    chosen = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {"frozen": [], "fine-tuned": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(chosen.seeds):
            for how, more in zip(rows, ([], ["--finetune"]), strict=True):
                rows[how].append(row := command(chosen.data, seed, Path(folder), *more))
                print(how, row, flush=True)
    for how, found in rows.items():
        test = np.array([row["test"] for row in found])
        spread = f" ± {test.std(ddof=1):.1f}" if len(test) > 1 else ""
        seconds = ", ".join(f"{row['seconds']:.0f}" for row in found)
        print(f"{how:10} test {test.mean():.1f}{spread} %; seconds {seconds}")
    about = {"data": name_of(chosen.data), "seeds": chosen.seeds, "rows": rows}
    write_json(chosen.out, about | as_json(environment()))


if __name__ == "__main__":
    main()
