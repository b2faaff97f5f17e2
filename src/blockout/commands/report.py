"""``blockout report``."""

from pathlib import Path

from blockout.commands.flags import Parser, flag
from blockout.commands.runs import data_flags, named_once, open_run, require_training

DESCRIPTION = """Draws what runs have learned, finished or still training, as one page to explore:
an HTML file that needs no server and no network. Several runs are compared. The first time, it also
measures what `blockout compact` would give, and keeps that in the run's compaction.json."""
OUT = "where to write it (default: report.html in the first run's folder)"


def run(arguments: list[str]) -> int:
    values = _parser().parse_args(arguments)
    require_training()
    from blockout.runs import folder as files

    out = values.out or values.folders[0] / files.REPORT
    folders = named_once(values.folders)
    for folder in folders:
        open_run(folder)
    write_report(folders, out, data=values.data, cache=values.cache)
    print(f"written to {out}; open it in a browser")
    return 0


def _parser() -> Parser:
    parser = Parser("report", DESCRIPTION)
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    flag(parser, "--out FILE", OUT, Path)
    data_flags(parser)
    return parser


def write_report(
    folders: list[Path], out: Path, *, data: str | None = None, cache: Path | None = None
) -> None:
    """The page of these run folders; what is missing or damaged is named.

    Their images are looked for as ``Run.open`` says. What compaction gives is measured first, once
    per run: some seconds, more for wide layers.
    """
    from blockout.runs import Run, RunError
    from blockout.show.page.page import write_page
    from blockout.training.compaction import measure_once

    if out.is_dir():
        raise RunError(f"--out {out} is a folder; name a file in it")
    if not out.parent.is_dir():
        raise RunError(f"there is no folder {out.parent} to write {out.name} to; make it first")
    for folder in folders:
        measure_once(Run.open(folder, data=data, cache=cache))
    runs = [
        Run.open(folder, data=data, cache=cache) for folder in folders
    ]  # with what was measured
    try:
        write_page(runs, out)
    except RunError as error:  # its advice is about a run that trains
        cause = error.__cause__ or error
        raise RunError(f"cannot write {out}: {cause}; name another file with --out") from cause
