"""Copies what finished runs say of themselves into one record: config, environment, result.

python scripts/record_run.py results/shapes.json runs/shapes-0 runs/shapes-1 runs/shapes-2
"""

import argparse
from pathlib import Path
from typing import Any

from blockout.training import files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path, help="JSON file to write")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    parser.add_argument("--note", default="", help="what a reader of the figures must know")
    arguments = parser.parse_args()
    record = {"note": arguments.note, "runs": [_said_by(run) for run in arguments.runs]}
    arguments.record.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(arguments.record, record)


def _said_by(run: Path) -> dict[str, Any]:
    return {
        "run": run.name,
        "config": files.read_json(run / files.CONFIG),
        "result": files.read_json(run / files.RESULT),
        "epochs": [line for line in files.read_lines(run / files.METRICS) if "epoch_loss" in line],
        **files.read_json(run / files.ENVIRONMENT),
    }


if __name__ == "__main__":
    main()
