"""Copies what a finished run says of itself into one record: config, environment, result.

python scripts/record_run.py runs/cifar100-blockout results/cifar100-blockout.json
"""

import argparse
from pathlib import Path

from blockout.training import files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("record", type=Path, help="JSON file to write")
    parser.add_argument("--note", default="", help="what a reader of the figures must know")
    arguments = parser.parse_args()
    epochs = [
        line for line in files.read_lines(arguments.run / files.METRICS) if "epoch_loss" in line
    ]
    record = {
        "note": arguments.note,
        "config": files.read_json(arguments.run / files.CONFIG),
        "result": files.read_json(arguments.run / files.RESULT),
        "epochs": epochs,
        **files.read_json(arguments.run / files.ENVIRONMENT),
    }
    arguments.record.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(arguments.record, record)


if __name__ == "__main__":
    main()
