"""What a trunk of ours offers, and the stages of any trunk."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Trunk(nn.Module, ABC):
    """Images to features: (N, 3, H, W) to (N, features) or (N, features, H', W')."""

    features: int
    """Width of the output."""
    is_chain = False
    """Whether its ``stages`` and nothing else, one after another, turn images into its output."""

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


@final
class FirstStages(Trunk):
    """The beginning of a trunk that is a chain: images to what its next stage reads, flat.

    Args:
        trunk: the whole, whose modules it shares.
        count: how many of its stages are left out at its end.
        image_size: height and width of the images.

    Shape: (N, 3, H, W) to (N, features); ``shape`` says what the features are a view of.
    """

    def __init__(self, trunk: Trunk, count: int, image_size: int) -> None:
        super().__init__()
        assert trunk.is_chain
        first = dict(list(stages(trunk).items())[:-count])
        self.parts, self._about = nn.Sequential(*first.values()), trunk.describe()
        self._last = list(first)[-1]
        weight = next(trunk.parameters())
        with torch.no_grad():
            output = self.parts(weight.new_zeros(1, 3, image_size, image_size))
        self.shape, self.features = tuple(output.shape[1:]), output.numel()

    def forward(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n features"]:
        return self.parts(x).flatten(1)

    def describe(self) -> dict[str, Any]:
        return {**self._about, "up_to": self._last}


def last_stages(trunk: Trunk, count: int, shape: tuple[int, ...]) -> nn.Sequential:
    """What follows ``FirstStages``, which has this ``shape``; weights are named as in the trunk.

    >>> import torch
    >>> from blockout.models import EfficientNetLite
    >>> trunk, x = EfficientNetLite("efficientnet-lite0").eval(), torch.rand(1, 3, 64, 64)
    >>> first = FirstStages(trunk, 2, image_size=64)
    >>> found, expected = last_stages(trunk, 2, first.shape)(first(x)), trunk(x)
    >>> bool((found - expected).abs().max() < 1e-4 * expected.abs().max())
    True
    """
    assert trunk.is_chain
    chosen = list(stages(trunk).items())[-count:]
    return _nested({"shape": nn.Unflatten(1, shape), **dict(chosen)})


def _nested(parts: Mapping[str, nn.Module]) -> nn.Sequential:
    """One after another, under their dotted names."""
    whole = nn.Sequential()
    for name, part in parts.items():
        *parents, own = name.split(".")
        place: nn.Module = whole
        for parent in parents:
            if parent not in place._modules:
                place.add_module(parent, nn.Sequential())
            place = place.get_submodule(parent)
        place.add_module(own, part)
    return whole
