"""Which head pays: every method on the same images, paired by seed, and what must be reached.

    python benchmarks/heads.py                           # all that is missing: days on two cores
    python benchmarks/heads.py grocery digits --hours 1  # of these sets, as far as an hour goes
    python benchmarks/heads.py --table                   # only what is recorded
    python benchmarks/heads.py --table --write README.md docs/heads.md

Sets are data, in benchmarks/head_benchmark/sets.py: heads on frozen features (50 images per class,
and all), whole networks from nothing, and scikit-learn's digits with small networks in a plain
loop. What they run is what `blockout reproduce` runs: a record per run below results/reproduce,
nothing twice, several processes at once if you like. A head on features takes seconds to minutes,
a whole network minutes to hours.

Ends in one table, the bars of issue 16 with what was reached, one figure (docs/figures/heads.png)
and one record (results/heads.json), which also holds the runs of digits. `--table` alone writes
nothing; with `--write` it renews record, figure and the generated parts of these pages.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from head_benchmark import digits, figure, pages
from head_benchmark.bars import judged
from head_benchmark.sets import DIGITS, SETS, STAGES, BenchmarkSet, sets_named
from head_benchmark.summary import SetSummary, as_record, summaries

from blockout import files
from blockout.reproduce import Worker
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json
from blockout.show.figures.style import encoded

HOUR = 3600
MADE_WITH = ("commit", "versions", "machine", "command")


class Deadline:
    """When to begin no more runs."""

    def __init__(self, hours: float | None) -> None:
        self.end = None if hours is None else time.monotonic() + HOUR * hours

    @property
    def hours_left(self) -> float | None:
        return None if self.end is None else max(self.end - time.monotonic(), 0) / HOUR

    def is_ahead(self) -> bool:
        return self.end is None or time.monotonic() < self.end


def do_missing(sets: list[BenchmarkSet], options: argparse.Namespace, deadline: Deadline) -> None:
    """Of all sets the most informative rows first."""
    for stage in STAGES:
        for its in sets:
            if deadline.is_ahead():
                do_rows(its, stage, options, deadline.hours_left)


def do_rows(
    its: BenchmarkSet, names: tuple[str, ...], options: argparse.Namespace, hours: float | None
) -> None:
    """What is missing of these rows, with all the seeds that they want."""
    rows = its.chosen_rows(names)
    if not rows:
        return
    threads = torch.get_num_threads()
    worker = Worker(
        its.condition,
        rows,
        options.seeds or its.wanted(rows[0].name),
        out=its.records_in(options.records),
        work=its.records_in(options.work),
        hours=hours,
        say=partial(print, flush=True),
    )
    if not worker.total:
        return
    print(f"{its.name}: {', '.join(row.name for row in rows)}", flush=True)
    torch.set_num_threads(its.threads or threads)
    try:
        worker.run()
    finally:
        torch.set_num_threads(threads)


def show(found: list[SetSummary], names: list[str]) -> None:
    """The table of the chosen sets, and all bars."""
    chosen = [s for s in found if not names or s.name in names or s.kind in names]
    print(*pages.table(chosen), "", *pages.bars_table(judged(found)), sep="\n")


def write(found: list[SetSummary], options: argparse.Namespace) -> None:
    """The record, the figure and the generated parts of pages."""
    bars = judged(found)
    made_with = {k: v for k, v in as_json(environment()).items() if k in MADE_WITH}
    runs = {k: v for k, v in digits.read(options.record).items() if k in ("environments", "runs")}
    said = {"sets": as_record(found), "bars": [bar._asdict() for bar in bars]}
    write_json(options.record, made_with | said | runs)
    picture = encoded(figure.heads(found), "png")
    files.write_atomically(options.figure, lambda path: path.write_bytes(picture))
    for page in options.write:
        pages.renew(page, pages.blocks(found, bars))
    print("written:", options.record, options.figure, *options.write)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    named = ", ".join((DIGITS, *(s.name for s in SETS)))
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {named} (default: all)")
    parser.add_argument("--seeds", type=int, help="default: what each set wants")
    parser.add_argument("--hours", type=float, help="begin no run that would end later")
    parser.add_argument("--table", action="store_true", help="run nothing")
    page = "renew record and figure, and the generated parts of these pages"
    parser.add_argument("--write", type=Path, nargs="*", metavar="PAGE", help=page)
    parser.add_argument("--records", type=Path, default=Path("results/reproduce"))
    parser.add_argument("--work", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--record", type=Path, default=Path("results/heads.json"))
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/heads.png"))
    options = parser.parse_args()
    try:
        options.chosen = sets_named(options.sets)
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> None:
    options = parsed()
    if not options.table:
        deadline = Deadline(options.hours)
        if not options.sets or DIGITS in options.sets:
            digits.do_missing(options.record, options.seeds or digits.SEEDS, deadline.is_ahead)
        do_missing(options.chosen, options, deadline)
        options.write = options.write or []
    found = summaries(options.records, options.record)
    show(found, options.sets)
    if options.write is not None:
        write(found, options)


if __name__ == "__main__":
    main()
