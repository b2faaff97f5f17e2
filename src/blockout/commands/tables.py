"""``blockout reproduce tables``: what the records say."""

from pathlib import Path

from blockout.commands.flags import Parser, flag
from blockout.commands.runs import require_training

ABOUT = """Shows the records of `blockout reproduce`: published accuracy beside ours with spread and
number of runs, differences between methods paired by seed with 95 % intervals, what was tuned, how
soon each method is as good as Dropout, what became of the memberships, and the paper's claims."""


def run_tables(arguments: list[str]) -> int:
    parser = Parser("reproduce tables", " ".join(ABOUT.split()))
    flag(parser, "--out DIR", "folder of the records", Path, "results/reproduce")
    flag(parser, "--format NAME", "what to print", ("markdown", "csv"), "markdown")
    page = "renew the tables of this page between their markers, instead of printing"
    flag(parser, "--write PAGE", page, Path)
    values = parser.parse_args(arguments)
    require_training()
    from blockout.reproduce import tables

    found = tables.comparisons(Path(values.out))
    if values.write is not None:
        tables.renew(values.write, found)
        print(f"{values.write}: {len(found)} conditions")
    elif values.format == "csv":
        print(tables.as_csv(found), end="")
    else:
        print(tables.markdown(found))
        print(tables.claims(found), end="")
    return 0
