"""``blockout predict``."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.flags import Parser, at_least, flag
from blockout.commands.runs import open_run, require_training

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
    values = parser.parse_args(arguments)
    trained = _load(values.folder, values.compact)
    from blockout.commands.prediction import find_images, predict

    for found in predict(trained, find_images(values.images), values.top):
        if values.json:
            print(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
        else:
            rows = zip(found.classes, found.probabilities, strict=True)
            print(found.image + "".join(f"\n  {p:6.1%}  {name}" for name, p in rows))
    return 0


def _load(path: Path, compact: bool) -> "TrainedModel | ExportedModel":
    require_training()
    from blockout.export import FORMATS, load_exported

    if path.is_file() or (not path.exists() and path.suffix[1:].lower() in FORMATS):
        return load_exported(path)
    return open_run(path).network("compact" if compact else "final")
