"""A tiny set of images and a network without batch normalisation, for whole runs in a second."""

from pathlib import Path

import pytest
import torch
from torch import nn

from blockout import BlockoutLinear
from blockout.data import ImageData, MemorySplit
from blockout.training import ComputeConfig, OptimisationConfig, RunConfig, TrainConfig

HALF = (0.5, 0.5, 0.5)


def make_images(train: int = 80, size: int = 16) -> ImageData:
    """Four classes of noise, each brighter in one channel or in all; 19 held out, 21 to test."""
    chance = torch.Generator().manual_seed(3)
    labels = torch.arange(train + 40) % 4
    tint = torch.tensor([[90, 0, 0], [0, 90, 0], [0, 0, 90], [60, 60, 60]])[labels]
    noise = torch.randint(0, 160, (len(labels), size, size, 3), generator=chance)
    pixels = (noise + tint[:, None, None, :]).to(torch.uint8)

    def split(first: int, last: int) -> MemorySplit:
        rows = torch.arange(first, last)
        return MemorySplit(pixels, rows, labels[first:last], HALF, HALF)

    return ImageData(
        "noise",
        ("red", "green", "blue", "bright"),
        None,
        None,
        split(0, train),
        split(train, train + 19),
        split(train + 19, train + 40),
        HALF,
        HALF,
        size,
        None,
        (),
    )


class PlainNet(nn.Module):
    """Images to logits through two Blockout layers, without batch normalisation."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        fc2 = BlockoutLinear(32, 16, 3)
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2),
            nn.BatchNorm2d(8) if norm else nn.Identity(),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(fc2, nn.ReLU(), BlockoutLinear(16, 4, 3, inputs=fc2.outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk(x))


def make_net(norm: bool = False) -> PlainNet:
    torch.manual_seed(0)
    return PlainNet(norm)


def make_config(folder: Path, *, compute: ComputeConfig | None = None, **values) -> TrainConfig:
    """Twenty steps, five an epoch; values of the optimisation and of the run by name."""
    run = {"run": folder, "log_every": 1, "tensorboard": False}
    names = RunConfig.__dataclass_fields__
    run |= {k: values.pop(k) for k in list(values) if k in names}
    return TrainConfig(
        optimisation=OptimisationConfig(
            **{
                "steps": 20,
                "batch_size": 16,
                "lr": 0.05,
                "membership_scale": 30.0,
                "paper": True,
                **values,
            }
        ),
        compute=compute or ComputeConfig(accelerator="cpu", devices="1"),
        run=RunConfig(**run),
    )


@pytest.fixture
def images() -> ImageData:
    return make_images()


@pytest.fixture
def net() -> PlainNet:
    return make_net()
