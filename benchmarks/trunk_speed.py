"""Ways through a frozen EfficientNet-Lite0, in milliseconds per image; `fast_features` chooses one.

    python benchmarks/trunk_speed.py         # two minutes on two busy cores

All ways take turns, so that they see the same machine. Seconds are those on the clock and, since
other work on the machine stretches them, the processor time of all threads; the best of the
repeats. onnxruntime gets the same chunks; the time to export the trunk to ONNX is given apart.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

from blockout.models import EfficientNetLite, features
from blockout.models.efficientnet import MEAN, STD, VARIANTS
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json

NAME = "efficientnet-lite0"
SIZE = VARIANTS[NAME].image_size
IMAGES = 16


class Pooled(nn.Module):
    """The trunk and the average over its grid."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, x: Tensor) -> Tensor:
        return features.pool_features(self.trunk(x))


def exported(trunk: nn.Module, path: Path) -> float:
    """Writes the trunk as ONNX; how many seconds that takes."""
    began = time.perf_counter()
    batch = {0: torch.export.Dim("batch")}
    example = (torch.zeros(2, 3, SIZE, SIZE),)
    program = torch.onnx.export(
        Pooled(trunk), example, dynamo=True, dynamic_shapes=(batch,), verbose=False
    )
    assert program is not None
    program.save(path)
    return time.perf_counter() - began


def ways(trunk: nn.Module, model: Path, threads: int) -> dict[str, Callable[[Tensor], object]]:
    plain = features._plain(trunk, MEAN, STD, threads)
    found = {way.name: way for way in (*features._ways(plain, SIZE, bfloat16=True), plain)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def normalised(images: Tensor) -> Tensor:
        return images.float().mul_(plain.scale).add_(plain.shift)

    def in_onnxruntime(images: Tensor) -> None:
        for chunk in images.split(features.CHUNK):
            session.run(None, {name: normalised(chunk).numpy()})

    @torch.no_grad()
    def as_one_batch(images: Tensor) -> None:
        torch.set_num_threads(threads)
        Pooled(trunk)(normalised(images))

    return {**found, "onnxruntime": in_onnxruntime, "trunk, one batch": as_one_batch}


def measure(trunk: nn.Module, model: Path, threads: int, repeats: int) -> dict[str, list[float]]:
    """Milliseconds per image by way: on the clock, and of the processor."""
    images = torch.randint(256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8)
    tried = ways(trunk, model, threads)
    best = {name: [float("inf"), float("inf")] for name in tried}
    for turn in range(repeats + 1):
        for name, way in tried.items():
            clock, processor = time.perf_counter(), time.process_time()
            way(images)
            spent = time.perf_counter() - clock, time.process_time() - processor
            if turn:  # the first only warms up
                now = [1000 * seconds / IMAGES for seconds in spent]
                best[name] = [round(min(pair), 2) for pair in zip(best[name], now, strict=True)]
    return best


def main() -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # torchvision is not missed
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/trunk_speed.json"))
    chosen = parser.parse_args()
    trunk = EfficientNetLite.load(NAME).eval()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "trunk.onnx"
        exporting = exported(trunk, model)
        for threads in (1, 2):
            for way, (clock, processor) in measure(trunk, model, threads, chosen.repeats).items():
                times = {"clock ms": clock, "processor ms": processor}
                rows.append({"threads": threads, "way": way, **times})
                print(f"{threads} threads, {way:18} {clock:7.2f} ms  {processor:7.2f} ms processor")
    print(f"export to ONNX: {exporting:.1f} s")
    record = {"trunk": NAME, "rows": rows, "export to ONNX s": round(exporting, 1)}
    write_json(chosen.out, record | as_json(environment()))


if __name__ == "__main__":
    main()
