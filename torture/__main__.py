"""`python -m torture [PART ...]`: attacks the command, prints counts, exit code 1 on any failure."""

import argparse
import json
import os
import sys
import time
from typing import Any

from torture import faults, fuzz, kills, server
from torture.workshop import Workshop, temporary_folder

PARTS = {"kills": kills, "faults": faults, "fuzz": fuzz}


def main() -> int:
    values = _parser().parse_args()
    os.environ |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    server.preload()
    with temporary_folder() as home:
        workshop = Workshop(home)
        failed = 0
        for name in values.parts or PARTS:
            failed += attack(workshop, name, values)
    return 1 if failed else 0


def attack(workshop: Workshop, name: str, values: argparse.Namespace) -> int:
    part, began = PARTS[name], time.monotonic()
    part.prepare(workshop, values.only)
    cases = part.cases(workshop, values.seed, values.cases)
    print(f"{name}: {len(cases)} cases after {time.monotonic()-began:.0f} s", flush=True)

    def work(case: dict[str, Any]) -> dict[str, Any]:
        return case | {"problem": part.run(workshop, case)}

    failed = 0
    for result in server.in_parallel(work, cases, values.workers):
        if result["problem"]:
            failed += 1
            print("FAILED", json.dumps(result), flush=True)
        elif values.verbose:
            print("ok", json.dumps(result), flush=True)
    print(f"{name}: {len(cases)} cases, {failed} failed, {time.monotonic()-began:.0f} s", flush=True)
    return failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m torture")
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
