"""`python -m torture [PART ...]`: attacks the command and prints what held.

    kills    kill -9 at every kind of write, and at random times, over eight configurations
    faults   every call that changes a file fails once: ENOSPC, EIO, or a kill
    fuzz     damaged and forged files of runs, caches and exports, configs, flags
    images   damaged and hostile images

Cases that once failed are kept in torture/corpus and come first. Exit code 1 on any failure.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torture import calls, faults, fuzz, images, kills, server
from torture.workshop import Workshop, in_memory, temporary_folder

PARTS = {"kills": kills, "faults": faults, "fuzz": fuzz, "images": images}
CASES = {"kills": 100, "faults": None, "fuzz": 10_000, "images": 4_000}
SHORT = {
    "kills": ("default", 3),
    "faults": ("safetensors", 8),
    "fuzz": ("unfinished", 30),
    "images": ("", 20),
}
"""Of each part, what to attack and how often, for a minute of it."""
CORPUS = Path(__file__).parent / "corpus"
KEPT_OF_ONE_KIND = 2
LONGEST_PROBLEM = 300
TOLD_EVERY = 60.0
"""Seconds between two lines of progress."""


def main() -> int:
    values = _parser().parse_args()
    if not calls.available():
        print("torture: needs Linux 5.5 or newer, with seccomp user notification", file=sys.stderr)
        return 2
    began = time.monotonic()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    server.preload()
    with temporary_folder(in_memory()) as home:
        workshop = Workshop(home)
        workshop.warm_up()
        rows = [attack(workshop, name, values) for name in values.parts or PARTS]
    minutes = (time.monotonic() - began) / 60
    _print_table([*rows, _whole(rows, minutes)])
    if values.record is not None:
        _write_record(values, rows, minutes)
    return 1 if any(row["failed"] for row in rows) else 0


def attack(workshop: Workshop, name: str, values: argparse.Namespace) -> dict[str, Any]:
    """One part from its corpus to its last case; returns its row of the table."""
    part, began = PARTS[name], time.monotonic()
    only, count = SHORT[name] if values.short else (values.only, CASES[name])
    part.prepare(workshop, only)
    count = count if values.cases is None else values.cases
    corpus = [case for case in kept(name) if only in json.dumps(case)]
    corpus = corpus[:: max(len(corpus) // 10, 1)] if values.short else corpus
    cases = corpus + (part.cases(workshop, values.seed, count) if count != 0 else [])
    print(f"{name}: {len(cases)} cases, of them {len(corpus)} from the corpus", flush=True)

    def work(case: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        try:
            problem = part.run(workshop, case)
        except Exception as error:
            problem = f"the torture itself failed: {type(error).__name__}: {error}"
        told = None if problem is None else problem[:LONGEST_PROBLEM]
        return {"problem": told, "seconds": time.monotonic() - started}

    until, told = began + 60 * values.minutes, began
    results = []
    for result in server.in_parallel(work, cases, values.workers, until):
        results.append(result)
        if (now := time.monotonic()) > told + TOLD_EVERY:
            left, told = (now - began) / len(results) * (len(cases) - len(results)), now
            print(f"  {len(results)} of {len(cases)}, {left / 60:.0f} minutes left", flush=True)
        if result["problem"]:
            print(f"  {result['problem']}\n    {json.dumps(result['case'])}", flush=True)
    failed = [result for result in results if _failed(result)]
    if values.keep:
        keep(name, failed)
    return {
        "part": name,
        "cases": sum(_count(result) for result in results),
        "failed": len(failed),
        "missed": sum(result["problem"] == calls.MISSED for result in results),
        "longest": round(max((result["seconds"] for result in results), default=0), 1),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "seed": values.seed,
        "of": dict(sorted(sum((_kinds(result) for result in results), Counter()).items())),
    }


def _failed(result: dict[str, Any]) -> bool:
    return result["problem"] not in (None, calls.MISSED)


def _count(result: dict[str, Any]) -> int:
    return len(result["case"].get("pictures", [0]))


def _kinds(result: dict[str, Any]) -> Counter[str]:
    case = result["case"]
    if "pictures" in case:
        return Counter(Path(picture["name"]).suffix[1:] for picture in case["pictures"])
    named = ("configuration", "file") if case["part"] != "faults" else ("command",)
    name = next((case[key] for key in named if key in case), "flags")
    return Counter([re.sub(r"[0-9a-f]{16,}", "#", name)])


# --- the corpus -----------------------------------------------------------------------------------


def kept(name: str) -> list[dict[str, Any]]:
    """Cases of a part that once failed."""
    path = CORPUS / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def keep(name: str, failed: list[dict[str, Any]]) -> None:
    """Adds cases to the corpus: a few of each kind of failure, none twice."""
    known = [case | {"why": ""} for case in kept(name)]
    kinds: Counter[str] = Counter()
    CORPUS.mkdir(exist_ok=True)
    for result in failed:
        kind = re.sub(r"[\d.]+|'[^']*'|\S*/\S*", "#", result["problem"])[:120]
        kinds[kind] += 1
        if kinds[kind] <= KEPT_OF_ONE_KIND and result["case"] | {"why": ""} not in known:
            with (CORPUS / f"{name}.jsonl").open("a") as corpus:
                corpus.write(json.dumps({"why": result["problem"][:200]} | result["case"]) + "\n")


# --- what is printed and recorded -----------------------------------------------------------------


def _print_table(rows: list[dict[str, Any]]) -> None:
    columns = ("part", "cases", "failed", "missed", "longest", "minutes")
    print("  ".join(f"{column:>8}" for column in columns))
    for row in rows:
        print("  ".join(f"{row[column]:>8}" for column in columns))


def _whole(rows: list[dict[str, Any]], minutes: float) -> dict[str, Any]:
    """The last row of the table: all parts, and the time from start to end."""
    sums = {key: sum(row[key] for row in rows) for key in ("cases", "failed", "missed")}
    longest = max(row["longest"] for row in rows)
    return {"part": "all", **sums, "longest": longest, "minutes": round(minutes, 1)}


def _write_record(values: argparse.Namespace, rows: list[dict[str, Any]], minutes: float) -> None:
    """The counts of each part, the pieces that they are the sums of, and the time they took."""
    from blockout.runs.documents import as_json
    from blockout.runs.environment import environment

    made = as_json(environment()) | {"command": "python -m torture"}
    made["machine"]["workers"] = values.workers
    before = json.loads(
        values.record.read_text() if values.add and values.record.exists() else "{}"
    )
    pieces = before.get("pieces", [])
    pieces += [row | {"commit": made["commit"]} for row in rows]
    parts = [_total([piece for piece in pieces if piece["part"] == name]) for name in PARTS]
    record = {
        "parts": [part for part in parts if part],
        "minutes": round(before.get("minutes", 0.0) + minutes, 1),
        "pieces": pieces,
        **made,
    }
    values.record.write_text(json.dumps(record, indent=2) + "\n")


def _total(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of several; empty of none."""
    if not pieces:
        return {}
    summed = {key: sum(piece[key] for piece in pieces) for key in ("cases", "failed", "missed")}
    kinds = sum((Counter(piece["of"]) for piece in pieces), Counter())
    return {
        "part": pieces[0]["part"],
        **summed,
        "longest": max(piece["longest"] for piece in pieces),
        "minutes": round(sum(piece["minutes"] for piece in pieces), 1),
        "seeds": [piece["seed"] for piece in pieces],
        "of": dict(sorted(kinds.items())),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m torture", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", choices=[*PARTS, []], help="default: all four")
    add("--seed", type=int, default=0, help="what chance decides follows from it (default: 0)")
    add("--cases", type=int, metavar="N", help="of each part, beside its corpus; 0: corpus only")
    add("--minutes", type=float, default=1e9, help="stop each part after so long")
    add("--workers", type=int, default=os.cpu_count(), help="default: one per processor")
    add("--only", default="", metavar="WORD", help="configurations or commands with this name")
    add("--short", action="store_true", help="a minute of it, as the test suite runs it")
    add("--record", type=Path, metavar="FILE", help="write counts, seeds, versions and machine")
    add("--add", action="store_true", help="add to the counts of that file, for parts run apart")
    add("--no-keep", dest="keep", action="store_false", help="add no failure to the corpus")
    return parser


if __name__ == "__main__":
    sys.exit(main())
