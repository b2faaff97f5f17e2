"""What a trunk of ours offers, and the stages of any trunk."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import nn


class Trunk(nn.Module, ABC):
    """Images to features: (N, 3, H, W) to (N, features) or (N, features, H', W')."""

    features: int
    """Width of the output."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What ``from_description`` needs to rebuild the architecture, without weights."""


def stages(trunk: nn.Module) -> dict[str, nn.Module]:
    """The parts of a trunk by name, from images to features; they own every weight once.

    A part that holds more than half of the weights is divided further, as long as its own parts
    hold all of them. To fine-tune the end of a trunk, unfreeze the last few.

    >>> from blockout.models import EfficientNetLite
    >>> list(stages(EfficientNetLite("efficientnet-lite0")))[-3:]
    ['blocks.stage6', 'blocks.stage7', 'head']
    """
    half = sum(weight.numel() for weight in trunk.parameters()) / 2
    return dict(_divided("", trunk, half))


def _divided(name: str, part: nn.Module, most: float) -> Iterator[tuple[str, nn.Module]]:
    weights = sum(weight.numel() for weight in part.parameters())
    if weights > most and next(part.parameters(recurse=False), None) is None:
        for child_name, child in part.named_children():
            yield from _divided(f"{name}.{child_name}".lstrip("."), child, most)
    elif weights:
        yield name, part
