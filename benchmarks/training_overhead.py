"""What data and recording cost on top of the bare forward, backward and step, side by side.

    python benchmarks/training_overhead.py            # needs CIFAR-100, see `blockout doctor`

Alternates between a bare loop on one batch that stays in memory and the recorded engine, so that
both see the same machine, and prints the ratio of their medians.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import psutil
import torch
from torch.nn import functional as F

from blockout.data import ImageData, load
from blockout.models import build_model
from blockout.optimisation import parameter_groups
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json
from blockout.training import (
    ComputeConfig,
    DataConfig,
    OptimisationConfig,
    RunConfig,
    TrainConfig,
)
from blockout.training.assembly import make_engine
from blockout.training.fabric import FabricProcesses
from blockout.training.progress import Narrator
from blockout.training.recording import Recording

STEPS, ROUNDS, BATCH = 25, 3, 256


def make_model(data: ImageData, config: TrainConfig):
    torch.manual_seed(0)
    return build_model(
        config.model, classes=len(data.classes), data_name=data.name, image_size=data.image_size
    )


def bare_seconds(data: ImageData, config: TrainConfig) -> float:
    model = make_model(data, config).to(memory_format=torch.channels_last)  # pyright: ignore
    optimizer = torch.optim.SGD(parameter_groups(model, 0.01), momentum=0.9, nesterov=True)
    x, y = next(iter(data.train.batches(BATCH, train=True)))
    began = time.perf_counter()
    for _ in range(STEPS):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - began


def real_seconds(data: ImageData, config: TrainConfig, folder: Path) -> float:
    processes = FabricProcesses(ComputeConfig("cpu", "1"))
    engine = make_engine(config, make_model(data, config), data, processes)
    recording = Recording(config, engine, data, folder)
    recording.narrator = Narrator(STEPS, 0, BATCH, silent=True)
    with recording.narrator.bar:
        batches = data.train.batches(BATCH, train=True)
        began = time.perf_counter()
        for _, (x, y) in zip(range(STEPS), batches, strict=False):
            recording.step(x, y)
        recording.log(engine.rate)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/training_overhead.json"))
    arguments = parser.parse_args()
    config = TrainConfig(
        data=DataConfig("cifar100"), optimisation=OptimisationConfig(steps=1000), run=RunConfig()
    )
    data = load(config.data)
    bare, real = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            bare.append(bare_seconds(data, config))
            real.append(real_seconds(data, config, Path(folder)))
    ratio = statistics.median(real) / statistics.median(bare)
    images = STEPS * BATCH
    memory = psutil.Process().memory_info().rss / 1e9
    print(
        f"bare {images / statistics.median(bare):.0f} images/s, real "
        f"{images / statistics.median(real):.0f} images/s: {ratio:.3f} times the time; "
        f"memory {memory:.2f} GB"
    )
    record = {"steps": STEPS, "batch": BATCH, "bare_seconds": bare, "real_seconds": real}
    write_json(
        arguments.out, {**record, "ratio": ratio, "memory_gb": memory, **as_json(environment())}
    )


if __name__ == "__main__":
    main()
