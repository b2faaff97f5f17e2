"""``blockout compact``."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.runs import load_run
from blockout.flags import Parser, at_least

if TYPE_CHECKING:
    from blockout.data import ImageData
    from blockout.training import TrainedModel
    from blockout.training.compaction import Compaction

DESCRIPTION = """Makes the network of a finished run small: only nodes that share a cluster stay
connected, in dense blocks, where that is measured to be faster here. Writes compact.safetensors and
compact.json beside the run, which stays as it is."""


def run(arguments: list[str]) -> int:
    values = _parser().parse_args(arguments)
    trained, config = load_run(values.folder, values.weights)
    from blockout.training import load_images
    from blockout.training.compaction import compact_run

    data = load_images(config)
    silent = (lambda _: None) if values.json else print
    done = compact_run(
        values.folder, trained, config, data, _threshold(values, trained, data),
        fine_tune=values.fine_tune, batch_size=values.batch_size, say=silent,
    )  # fmt: skip
    if values.json:
        print(json.dumps(dataclasses.asdict(done)))
    else:
        print(_in_words(done))
        print(f"written to {values.folder}; next: blockout export {values.folder} --compact "
              "--format onnx")  # fmt: skip
    return 0


# fmt: off
def _parser() -> Parser:
    parser = Parser("compact", DESCRIPTION)
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--threshold", type=_share, metavar="T",
                     help="a node belongs to a cluster where P >= T (default: 0.5)")
    how.add_argument("--keep", type=_share, metavar="SHARE",
                     help="the lowest threshold that needs at most this share of the head's "
                     "multiply-adds, such as 0.3")
    how.add_argument("--max-loss", type=_points, metavar="POINTS",
                     help="the smallest network that loses at most so many points of accuracy on "
                     "the hold-out of the training images")
    add = parser.add_argument
    add("--fine-tune", type=at_least(0), default=0, metavar="EPOCHS",
        help="train the compact network further, its structure fixed (default: 0)")
    add("--batch-size", type=at_least(1), default=256, metavar="N",
        help="images at a time for which it shall be fast (default: 256)")
    add("--weights", default="final", choices=["final", "best"],
        help="the last, or the best on the hold-out (default: final)")
    add("--json", action="store_true", help="print one JSON object")
    return parser
# fmt: on


def _share(text: str) -> float:
    return _number(text, most=1.0)


def _points(text: str) -> float:
    return _number(text, most=100.0)


def _number(text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {most:g}, got {text}")
    return value


def _threshold(values: argparse.Namespace, trained: "TrainedModel", data: "ImageData") -> float:
    from blockout.training.compaction import threshold_for_loss, threshold_for_share

    if values.keep is not None:
        return threshold_for_share(trained.model, values.keep)
    if values.max_loss is not None:
        return threshold_for_loss(trained.model, data.holdout, values.max_loss)
    return 0.5 if values.threshold is None else values.threshold


def _in_words(done: "Compaction") -> str:
    before, after = done.multiply_adds
    dense, compact = done.milliseconds
    lines = [
        f"threshold {done.threshold:g}",
        f"head: {before:,} multiply-adds an image, {after:,} compact ({after / before:.0%})",
        f"time of {done.batch_size}: {dense:.2f} ms dense, {compact:.2f} ms compact "
        f"({dense / compact:.2f} times as fast)",
    ]
    lines += [f"  {layer}: {note}" for layer, note in done.notes.items()]
    tuned = f" and fine-tuned for {done.fine_tuned} epochs" if done.fine_tuned else ""
    for name, pair in (("hold-out", done.holdout), ("test", done.test)):
        if pair is not None:
            lines.append(f"{name}: {pair[0]:.2f} % as trained, {pair[1]:.2f} % compact{tuned}")
    return "\n".join(lines)
