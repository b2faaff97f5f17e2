"""``blockout export``."""

from pathlib import Path

from blockout.commands.runs import load_run
from blockout.flags import Parser, refuse

DESCRIPTION = """Writes the network of a finished run as one file that runs without this library
(onnx, pt2) or reloads without pickle (safetensors). Memberships are folded into plain layers, the
batch may have any size, and class names and preprocessing are in the file's metadata. The file is
loaded back and compared with the run before it appears. `blockout predict` takes it in place of
RUN."""
FORMATS = ("onnx", "pt2", "safetensors")
RUNTIMES = {"onnx": "onnxruntime", "pt2": "torch.export", "safetensors": "torch"}


def run(arguments: list[str]) -> int:
    values = _parser().parse_args(arguments)
    if values.out is not None and values.out.suffix.lower() != f".{values.format}":
        refuse("blockout export", f"--out must end in .{values.format}, got {values.out}")
    trained, _ = load_run(values.folder, values.weights)
    from blockout.export import BATCHES, TOLERANCE, export

    path = values.out or values.folder / f"model.{values.format}"
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


# fmt: off
def _parser() -> Parser:
    parser = Parser("export", DESCRIPTION)
    add = parser.add_argument
    add("folder", type=Path, metavar="RUN", help="folder of a finished run")
    add("--format", required=True, choices=FORMATS,
        help="onnx (needs 'blockout[export]'), pt2 (torch.export) or safetensors")
    add("--weights", default="final", choices=["final", "best"],
        help="the last, or the best on the hold-out (default: final)")
    add("--out", type=Path, metavar="FILE", help="where to write (default: RUN/model.FORMAT)")
    return parser
# fmt: on
