"""The network of a run with what classifying takes: class names, image size, normalisation."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from blockout.data import ImageData
from blockout.models import ImageClassifier, restored
from blockout.runs.documents import FORMAT, Description, read_description
from blockout.runs.errors import RunError
from blockout.runs.folder import read_tensors


@dataclass(frozen=True)
class TrainedModel:
    """A model in eval mode with what belongs to it."""

    model: ImageClassifier
    classes: tuple[str, ...]
    groups: tuple[int, ...] | None
    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop: float = 1.0
    images: str | None = None
    """Fingerprint of the data it was trained and tested on."""


def read_trained(about: Path, weights: Path, trunk: nn.Module | None = None) -> TrainedModel:
    """A network from its description and its weights; what is missing or damaged is named."""
    said = read_description(about)
    found = read_tensors(weights)
    try:
        model = restored(said.model, found, trunk)
    except ValueError as error:
        raise RunError(
            f"the network in {weights}, described in {about.name}, cannot be used: {error}"
        ) from error
    return TrainedModel(
        model.eval().to(memory_format=torch.channels_last),  # pyright: ignore
        said.classes,
        said.groups,
        said.image_size,
        said.mean,
        said.std,
        said.crop,
        said.images,
    )


def description(model: ImageClassifier, data: ImageData) -> Description:
    """What classifying takes beside the weights: architecture, names, preprocessing."""
    return Description(
        format=FORMAT,
        model=model.describe(),
        classes=data.classes,
        groups=data.groups,
        group_names=data.group_names,
        data=data.name,
        images=data.fingerprint(),
        image_size=data.image_size,
        mean=data.mean,
        std=data.std,
        crop=data.crop,
    )
