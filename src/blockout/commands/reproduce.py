"""``blockout reproduce``: the paper's tables, run again, and what came of it."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockout.commands.flags import Parser, at_least, between, flag, refuse
from blockout.commands.runs import require_training

if TYPE_CHECKING:
    from blockout.reproduce import Condition, Row, Table

ABOUT = """Runs the rows of a table of the paper with several seeds and keeps a record of each run.
What has a record is not run again, what was interrupted continues, and several of these commands
can work on one table. `blockout reproduce tables` shows what the records say."""
TABLES = ("table1", "table2", "table3")
MOST_JOBS = 1024
WEEK = 168.0
NEEDS_IMAGENET = """table2 needs ImageNet (ILSVRC 2012), which nobody may pass on: get it from
image-net.org, arrange it as train/CLASS/*.JPEG and val/CLASS/*.JPEG, and name the folder with
--data. Its full models take days on a GPU (--scale paper); its rows on other images:
--data path/to/folder"""


def run(arguments: list[str]) -> int:
    if arguments[:1] == ["tables"]:
        from blockout.commands.tables import run_tables

        return run_tables(arguments[1:])
    values = _parser().parse_args(arguments)
    require_training("lightning.fabric")
    from blockout.reproduce import table

    found = table(values.table, values.data)
    condition = _condition(values, found)
    try:
        rows = found.chosen(values.rows)
    except ValueError as error:
        refuse("blockout reproduce", str(error))
    if values.table == "table2" and values.data is None and not values.list:
        raise FileNotFoundError(" ".join(NEEDS_IMAGENET.split()))
    if values.list:
        return _list(condition, rows, values)
    return _work(condition, rows, values)


def _parser() -> Parser:
    parser = Parser("reproduce", " ".join(ABOUT.split()))
    parser.add_argument("table", choices=TABLES, help="on CIFAR-100, ImageNet or CIFAR-10")
    data = "images to use instead of the table's, as in `blockout train --data`"
    flag(parser, "--data NAME", data, str)
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ROW",
        help="rows by name, or parts: methods, clusters, nodes, cited, ours, tuned, wide "
        "(default: all but wide; --list shows them)",
    )
    flag(parser, "--seeds N", "run each row with the seeds 0 to N-1", at_least(1), 3)
    about = "transfer: heads on frozen features; cpu: compact networks; paper: as printed, for GPUs"
    flag(parser, "--scale NAME", about, ("transfer", "cpu", "paper"), "transfer")
    images = "training images per class, others with every seed (default: all)"
    flag(parser, "--per-class N", images, at_least(1))
    parser.add_argument(
        "--with",
        dest="changes",
        nargs="+",
        default=[],
        metavar="FLAG=VALUE",
        help="flags of `blockout train` to change for all rows, as epochs=40; a table of its own",
    )
    flag(parser, "--hours H", "start no run that would end later", between(0, WEEK))
    flag(parser, "--jobs N", "runs at a time, each in a process with its share of cores", _jobs, 1)
    engine = "local: processes here; ray: a Ray cluster, or one started here (needs ray)"
    flag(parser, "--engine NAME", engine, ("local", "ray"), "local")
    flag(parser, "--list", "show what is done and missing, and what it will cost; run nothing")
    flag(parser, "--out DIR", "folder of the records", Path, "results/reproduce")
    flag(parser, "--work DIR", "folder of run folders", Path, "runs/reproduce")
    return parser


def _jobs(text: str) -> int:
    count = at_least(1)(text)
    if count > MOST_JOBS:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_JOBS}, got {text}")
    return count


def _condition(values: Any, found: "Table") -> "Condition":
    from blockout.reproduce import Condition, cell_of, config_of

    changes = tuple(sorted(_change(text) for text in values.changes))
    condition = Condition(found.data, values.scale, values.per_class, changes)
    try:
        config_of(condition, cell_of(found.rows[0].settings, values.scale), 0)
    except ValueError as error:
        refuse("blockout reproduce", str(error))
    return condition


def _change(text: str) -> tuple[str, Any]:
    """``epochs=40`` as a name and a value of the kind that the flag takes."""
    from blockout.commands.flags import train_flags
    from blockout.reproduce.settings import OF_ROWS

    name, equals, _ = text.removeprefix("--").partition("=")
    if not equals:
        refuse("blockout reproduce", f"--with must be FLAG=VALUE, as epochs=40, got {text}")
    name = name.replace("-", "_")
    if name in OF_ROWS:
        refuse("blockout reproduce", f"--with cannot change {name}: rows and seeds decide it")
    return name, train_flags([f"--{text.removeprefix('--')}"])[name]


def _list(condition: "Condition", rows: "tuple[Row, ...]", values: Any) -> int:
    from blockout.reproduce import Records
    from blockout.reproduce.planning import cell_of_row, reason_against, trials_of

    cells = Records(values.out).of_condition(condition.name)
    print(f"{condition.described()}: {values.out / condition.name}")
    for row in rows:
        cell, why = cell_of_row(row, condition, cells), reason_against(row, condition)
        tried = sum(
            len(cells[trial.name].runs)
            for trial in trials_of(row, condition)
            if trial.name in cells
        )
        runs = [] if cell is None or cell.name not in cells else cells[cell.name].runs
        done = sum(run.seed < values.seeds for run in runs)
        said = why or f"{done} of {values.seeds} seeds"
        if row.trials and not why:
            name = "not chosen yet" if cell is None else cell.name
            said += f" of the trial chosen ({name}); {tried} runs of trials"
        print(f"  {row.part:9} {row.name:16} {row.label:44} {said}")
    print(_cost(_worker(condition, rows, values)))
    return 0


def _work(condition: "Condition", rows: "tuple[Row, ...]", values: Any) -> int:
    worker = _worker(condition, rows, values)
    print(f"{condition.described()}; records in {values.out / condition.name}")
    print(_cost(worker), flush=True)
    summary = worker.run()
    more = f"; {summary.left} are left: the same command continues" if summary.left else ""
    print(f"{summary.done} runs done{more}. Next: blockout reproduce tables")
    return 0


def _worker(condition: "Condition", rows: "tuple[Row, ...]", values: Any) -> Any:
    from blockout.reproduce import Worker

    return Worker(
        condition,
        rows,
        values.seeds,
        out=Path(values.out),
        work=Path(values.work),
        jobs=values.jobs,
        hours=values.hours,
        engine=values.engine,
        say=partial(print, flush=True),
    )


def _cost(worker: Any) -> str:
    from blockout.training.progress import duration

    if not worker.total:
        return "nothing is missing"
    known = (
        "as measured here" if worker.costs.measured else "a rough guess: nothing is measured yet"
    )
    jobs = "" if worker.jobs == 1 else f" in {worker.jobs} jobs"
    later = ""
    if worker.unchosen:
        later = f"; {worker.unchosen} more follow when the trials of tuned rows are done"
    cost = f"about {duration(worker.seconds())}{jobs} ({known})"
    return f"{worker.total} runs are missing: {cost}{later}"
