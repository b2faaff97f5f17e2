"""``blockout figures``."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.flags import Parser, flag
from blockout.commands.runs import named_once, open_run, require_training
from blockout.terminal import tell

if TYPE_CHECKING:
    from blockout.runs.run import Run
    from blockout.show.figures import Entry

DESCRIPTION = """Draws the figures of the paper from runs, for a paper: Figs. 5 and 9-11 from runs
with Blockout that learn P, Fig. 8 from any runs, and the diagrams of Figs. 1-4, 6 and 7 from the
runs' own structure and model, or from examples where no run is given. Runs of several widths stand
side by side; of several seeds the first is shown, and their mean in Fig. 8."""
CLASSES = "classes to number in Figs. 10 and 11 (default: some that tell something)"
NUMBERS = range(1, 12)


def run(arguments: list[str]) -> int:
    values = _parser().parse_args(arguments)
    runs = [open_run(folder) for folder in named_once(values.runs)]
    require_training()
    from blockout.show.figures import CATALOGUE, CannotDraw

    _require_classes(runs, values.classes)
    _make(values.out)
    numbers = sorted(set(values.only or NUMBERS))
    drawn = 0
    for number in numbers:
        try:
            print(f"Fig. {number}: {' '.join(_write(CATALOGUE[number], runs, values))}")
            drawn += 1
        except CannotDraw as error:
            (tell if values.only else print)(f"Fig. {number} cannot be drawn: {error}")
    if drawn:
        print(f"written to {values.out}")
    return 1 if values.only and drawn < len(numbers) else 0


def _parser() -> Parser:
    parser = Parser("figures", DESCRIPTION)
    about = "folders of runs, finished or training"
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help=about)
    flag(parser, "--out DIR", "folder for the files; made if missing", Path, required=True)
    flag(parser, "--only N", "these figures only (default: 1 to 11)", _number, nargs="+")
    flag(parser, "--format", "kinds of files", ("png", "svg"), ["png", "svg"], nargs="+")
    flag(parser, "--classes CLASS", CLASSES, str, nargs="+")
    parser.set_defaults(classes=[])
    return parser


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) not in NUMBERS:
        raise argparse.ArgumentTypeError(f"must be numbers of figures, 1 to 11, got {text}")
    return int(text)


def _require_classes(runs: Sequence["Run"], names: Sequence[str]) -> None:
    from blockout.commands.flags import nearest

    known = [name for run in runs for name in run.classes]
    for name in names:
        if name not in known:
            raise ValueError(f"--classes: no given run has a class {name!r}{nearest(name, known)}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot make the folder {folder}: {error.strerror}; name another with --out"
        ) from error


def _write(entry: "Entry", runs: Sequence["Run"], values: argparse.Namespace) -> list[str]:
    """Both files of a figure, or neither where it cannot be drawn; returns their names."""
    from blockout.runs.errors import RunError
    from blockout.runs.folder import write_atomically
    from blockout.show.figures import encoded

    figure = entry.draw(runs, values.classes)
    names = []
    for form in dict.fromkeys(values.format):
        content, path = encoded(figure, form), values.out / f"{entry.stem}.{form}"
        try:
            write_atomically(path, lambda beside, content=content: beside.write_bytes(content))
        except RunError as error:  # its advice is about a run that trains
            cause = error.__cause__
            raise ValueError(
                f"cannot write {path}: {cause}; name another folder with --out"
            ) from cause
        names.append(path.name)
    return names
