"""``blockout report``."""

from pathlib import Path

from blockout.commands.runs import damaged, named_once, require_training
from blockout.flags import Parser

DESCRIPTION = """Draws what runs have learned, finished or still training, as one page to explore:
an HTML file that needs no server and no network. Several runs are compared."""


def run(arguments: list[str]) -> int:
    values = _parser().parse_args(arguments)
    require_training()
    from blockout.training import files

    out = values.out or values.folders[0] / files.REPORT
    write_report(named_once(values.folders), out)
    print(f"written to {out}; open it in a browser")
    return 0


# fmt: off
def _parser() -> Parser:
    parser = Parser("report", DESCRIPTION)
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="where to write it (default: report.html in the first run's folder)")
    return parser
# fmt: on


def write_report(folders: list[Path], out: Path) -> None:
    """The page of these run folders; what is missing or damaged is named.

    What compaction gives is measured first, once a run: some seconds, more for wide layers.
    """
    require_training()
    from blockout.report.compaction import measure_if_missing
    from blockout.report.page import write_page
    from blockout.report.view import RunView
    from blockout.training import RunError

    if out.is_dir():
        raise RunError(f"--out {out} is a folder; name a file in it")
    views = []
    for folder in folders:
        with damaged(folder):
            views.append(RunView.load(folder))
    if not out.parent.is_dir():
        raise RunError(f"there is no folder {out.parent} to write {out.name} to; make it first")
    for view in views:
        measure_if_missing(view)
    try:
        write_page(views, out)
    except RunError as error:  # its advice is about a run that trains
        cause = error.__cause__ or error
        raise RunError(f"cannot write {out}: {cause}; name another file with --out") from cause
