"""``blockout predict``."""

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.flags import Parser, at_least, flag
from blockout.commands.runs import open_run, require_training
from blockout.files import write_text
from blockout.terminal import printable, printable_json, tell

if TYPE_CHECKING:
    from blockout.export import ExportedModel
    from blockout.runs import TrainedModel


def run(arguments: list[str]) -> int:
    parser = Parser("predict", "What a finished run sees in images, or in folders of images.")
    about = "finished run, or a file of `blockout export`"
    parser.add_argument("folder", type=Path, metavar="RUN", help=about)
    about = "image files, and folders of them"
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help=about)
    flag(parser, "--top N", "how many classes to name", at_least(1), 5)
    flag(parser, "--compact", "with the network that `blockout compact RUN` made")
    flag(parser, "--json", "print a JSON object for each image")
    flag(parser, "--csv FILE", "write a table of images, classes and probabilities", Path)
    values = parser.parse_args(arguments)
    trained = _load(values.folder, values.compact)
    from blockout.commands.prediction import find_images, predict

    skipped: list[str] = []
    several = len(values.images) > 1 or values.images[0].is_dir()
    rows = []
    for found in predict(
        trained, find_images(values.images), values.top, skipped if several else None
    ):
        if values.json:
            print(printable_json(json.dumps(dataclasses.asdict(found), ensure_ascii=False)))
        elif values.csv is None:
            pairs = zip(found.classes, found.probabilities, strict=True)
            print(
                printable(found.image), *(f"  {p:6.1%}  {printable(n)}" for n, p in pairs), sep="\n"
            )
        pairs = zip(found.classes, found.probabilities, strict=True)
        rows += [(found.image, place, name, p) for place, (name, p) in enumerate(pairs, 1)]
    for reason in skipped:
        tell(f"note: skipped: {printable(reason)}")
    if values.csv is not None:
        _write_table(values.csv, rows)
        print(f"{len({row[0] for row in rows})} images in {values.csv}")
    return 0 if rows else 1


def _write_table(path: Path, rows: list[tuple[str, int, str, float]]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("image", "place", "class", "probability"))
    table.writerows((image, place, name, f"{p:.6f}") for image, place, name, p in rows)
    write_text(path, text.getvalue())


def _load(path: Path, compact: bool) -> "TrainedModel | ExportedModel":
    require_training()
    from blockout.export import FORMATS, load_exported

    if path.is_file() or (not path.exists() and path.suffix[1:].lower() in FORMATS):
        return load_exported(path)
    return open_run(path).network("compact" if compact else "final")
