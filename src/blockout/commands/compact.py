"""``blockout compact``."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.flags import Parser, at_least, between, flag
from blockout.commands.runs import data_flags, images_of, open_run

if TYPE_CHECKING:
    from blockout.data import ImageData
    from blockout.models import ImageClassifier
    from blockout.runs.documents import Compaction

DESCRIPTION = """Makes the network of a finished run smaller: only nodes that share a cluster stay
connected, as dense blocks where blocks measure faster on this machine. Writes compact.safetensors
and compact.json into the run folder; the run itself does not change."""
THRESHOLD = "a node belongs to a cluster where P >= T (default: 0.5)"
KEEP = """the lowest threshold that needs at most this share of the head's multiply-adds, such as
0.3"""
MAX_LOSS = """the smallest network that loses at most so many points of accuracy on the hold-out of
the training images"""
FINE_TUNE = "train the compact network further, its structure fixed"


def run(arguments: list[str]) -> int:
    values = _parser().parse_args(arguments)
    opened = open_run(values.folder, data=values.data, cache=values.cache)
    model = opened.network(values.weights).model
    images = images_of(opened, quiet=values.json)
    from blockout.runs.documents import as_json
    from blockout.training.compaction import compact_run, seen_by

    say = (lambda _: None) if values.json else partial(print, flush=True)
    parts = ["train"] * bool(values.fine_tune) + ["holdout", "test"]
    images = seen_by(model, images, opened.data_config, say, parts)
    done = compact_run(
        opened,
        model,
        images,
        _threshold(values, model, images),
        fine_tune=values.fine_tune,
        batch_size=values.batch_size,
        say=say,
    )
    if values.json:
        print(json.dumps(as_json(done)))
    else:
        print(_in_words(done))
        before, after = done.multiply_adds
        smaller = after < before
        flags = "--compact --format onnx" if smaller else "--format onnx"
        why = "" if smaller else "nothing was left out, so export without --compact; "
        print(f"written to {values.folder}; {why}next: blockout export {values.folder} {flags}")
    return 0


def _parser() -> Parser:
    parser = Parser("compact", DESCRIPTION)
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    how = parser.add_mutually_exclusive_group()
    flag(how, "--threshold T", THRESHOLD, between(0, 1))
    flag(how, "--keep SHARE", KEEP, between(0, 1))
    flag(how, "--max-loss POINTS", MAX_LOSS, between(0, 100))
    flag(parser, "--fine-tune EPOCHS", FINE_TUNE, at_least(0), 0)
    flag(
        parser,
        "--batch-size N",
        "batch size to optimise for",
        at_least(1),
        256,
    )
    flag(parser, "--weights", "the last, or the best on the hold-out", ("final", "best"), "final")
    data_flags(parser)
    flag(parser, "--json", "print one JSON object")
    return parser


def _threshold(values: argparse.Namespace, model: "ImageClassifier", images: "ImageData") -> float:
    from blockout.training.compaction import threshold_for_loss, threshold_for_share

    if values.keep is not None:
        return threshold_for_share(model, values.keep)
    if values.max_loss is not None:
        return threshold_for_loss(model, images.holdout, values.max_loss)
    return 0.5 if values.threshold is None else values.threshold


def _in_words(done: "Compaction") -> str:
    from blockout.training.whole import in_words

    before, after = done.multiply_adds
    dense, compact = done.milliseconds
    lines = [f"threshold {done.threshold:g}", *(in_words(done.network) if done.network else [])]
    if after < before:
        share = f"{100 * after / before:.0f} %"
        lines += [
            f"head alone: {before:,} multiply-adds per image, {after:,} compact ({share})",
            f"head alone, {done.batch_size} images: {dense:.2f} ms dense, {compact:.2f} ms compact "
            f"({dense / compact:.2f} times as fast)",
        ]
    else:
        lines.append(f"head alone: {before:,} multiply-adds per image, dense and compact alike")
    lines += [f"  {layer}: {note}" for layer, note in done.notes.items()]
    tuned = f" and fine-tuned for {done.fine_tuned} epochs" if done.fine_tuned else ""
    for name, pair in (("hold-out", done.holdout), ("test", done.test)):
        if pair is not None:
            lines.append(f"{name}: {pair[0]:.2f} % as trained, {pair[1]:.2f} % compact{tuned}")
    return "\n".join(lines)
