"""``blockout export``."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.flags import Parser, flag, refuse
from blockout.commands.runs import open_run

if TYPE_CHECKING:
    from blockout.runs import Run, TrainedModel

DESCRIPTION = """Writes the network of a finished run as one file that runs without this library
(onnx, pt2) or reloads without pickle (safetensors). Memberships are folded into plain layers, the
batch may have any size, and class names and preprocessing are in the file's metadata. The file is
loaded back and compared with the run before it appears. `blockout predict` takes it in place of
RUN."""
FORMAT = "onnx (needs 'blockout[export]'), pt2 (torch.export) or safetensors"
WEIGHTS = "the last, or the best on the hold-out (default: final)"
OUT = "where to write (default: RUN/model.FORMAT or RUN/model-compact.FORMAT)"
FORMATS = ("onnx", "pt2", "safetensors")
RUNTIMES = {"onnx": "onnxruntime", "pt2": "torch.export", "safetensors": "torch"}


def run(arguments: list[str]) -> int:
    values = _parser().parse_args(arguments)
    if values.out is not None and values.out.suffix.lower() != f".{values.format}":
        refuse("blockout export", f"--out must end in .{values.format}, got {values.out}")
    opened = open_run(values.folder)
    trained = (
        _compact(opened, values) if values.compact else opened.network(values.weights or "final")
    )
    from blockout.export import BATCHES, TOLERANCE, export

    name = "model-compact" if values.compact else "model"
    path = values.out or values.folder / f"{name}.{values.format}"
    done = export(trained, path, values.format)
    batches = ", ".join(str(n) for n in BATCHES)
    classes, size = len(trained.classes), trained.image_size
    print(
        f"{path}: {done.size / 1e6:.1f} MB, {classes} classes, images of {size} px\n"
        f"loaded back with {RUNTIMES[values.format]} and compared in batches of {batches}: "
        f"logits differ by {done.difference:.1g} of the largest (allowed: {TOLERANCE:g})"
    )
    print(f"next: blockout predict {path} IMAGE")
    return 0


def _compact(run: "Run", values: argparse.Namespace) -> "TrainedModel":
    """What `blockout compact` left in the run folder, or else what it would make by default."""
    from blockout.runs import folder as files
    from blockout.training.compaction import BATCH_SIZE, USUAL, compact_classifier

    if (values.folder / files.COMPACT_MODEL).exists():
        if values.weights:
            refuse(
                "blockout export",
                f"the compact network in {values.folder} has weights of its own; leave out "
                "--weights, or say it to blockout compact",
            )
        return run.network("compact")
    print(f"compacting at a threshold of {USUAL:g}; `blockout compact` can choose another")
    trained = run.network(values.weights or "final")
    return replace(trained, model=compact_classifier(trained.model, USUAL, BATCH_SIZE))


def _parser() -> Parser:
    parser = Parser("export", DESCRIPTION)
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    flag(parser, "--format", FORMAT, FORMATS, required=True)
    flag(
        parser,
        "--compact",
        "the smaller network that `blockout compact RUN` made, or makes by default",
    )
    flag(parser, "--weights", WEIGHTS, ("final", "best"))
    flag(parser, "--out FILE", OUT, Path)
    return parser
