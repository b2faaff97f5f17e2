"""A trunk and a head in one module."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn

from blockout.layers import memberships_of
from blockout.memberships import Memberships
from blockout.models.heads import Head
from blockout.models.trunks import Trunk

fx.wrap("pool_features")  # so that `convert` can trace through it


def pool_features(x: Tensor) -> Float[Tensor, "n features"]:
    """Averages (N, features, H, W) over the grid; leaves (N, features) as it is."""
    if x.dim() == 4:
        return x.mean((2, 3))
    if x.dim() != 2:
        raise ValueError(
            "a trunk must give (N, features) or (N, features, H, W), "
            f"got shape {tuple(x.shape)}; wrap it in a module that pools"
        )
    return x


class ImageClassifier(nn.Module):
    """Images to logits: a trunk, average pooling if it outputs a grid, and a head.

    Args:
        trunk: any module that outputs (N, features) or (N, features, H, W).
        head: any module from (N, features) to (N, classes), such as ``Head``.
        freeze_trunk: the trunk gets no gradients and stays in eval mode (batch normalisation,
            dropout) while the head trains.

    Shape: (N, channels, H, W) to (N, classes).

    >>> trunk = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    >>> model = ImageClassifier(trunk, Head(8, 10, nodes=16, clusters=2))
    >>> model(torch.randn(4, 3, 32, 32)).shape
    torch.Size([4, 10])
    >>> model.memberships()
    {'P_0': Memberships(nodes=16, clusters=2, hard=True, learned=True), \
'P_1': Memberships(nodes=16, clusters=2, hard=True, learned=True), \
'P_2': Memberships(nodes=10, clusters=2, hard=True, learned=True)}
    """

    def __init__(self, trunk: nn.Module, head: nn.Module, *, freeze_trunk: bool = False) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head
        self.freeze_trunk = freeze_trunk
        if freeze_trunk:
            trunk.requires_grad_(False).eval()

    def features(self, x: Float[Tensor, "n channels h w"]) -> Float[Tensor, "n features"]:
        """What the head reads: the trunk's outputs, averaged over the grid."""
        return pool_features(self.trunk(x))

    def forward(self, x: Float[Tensor, "n channels h w"]) -> Float[Tensor, "n classes"]:
        return self.head(self.features(x))

    def train(self, mode: bool = True) -> "ImageClassifier":
        """As in any module, except that a frozen trunk stays in eval mode."""
        super().train(mode)
        if self.freeze_trunk:
            self.trunk.eval()
        return self

    def memberships(self) -> dict[str, Memberships]:
        """P_0, P_1, ... in the order the layers use them; empty without Blockout."""
        return memberships_of(self)

    def describe(self) -> dict[str, Any]:
        """JSON from which ``from_description`` rebuilds the architecture, without weights.

        A custom trunk is recorded by name only: pass it to ``from_description`` again.
        """
        if not isinstance(self.head, Head):
            raise ValueError(
                f"only a blockout.models.Head can be described, got {type(self.head).__name__}"
            )
        return {
            "format": 1,
            "trunk": _described(self.trunk),
            "head": self.head.describe(),
            "freeze_trunk": self.freeze_trunk,
        }


def count_features(trunk: nn.Module, image_size: int) -> int:
    """How many features a trunk outputs. Tries one black image and leaves the trunk unchanged."""
    if isinstance(trunk, Trunk):
        return trunk.features
    modes = {module: module.training for module in trunk.modules()}
    parameter = next(trunk.parameters(), torch.empty(0))
    image = torch.zeros(1, 3, image_size, image_size).to(parameter)
    try:
        with torch.no_grad():
            return pool_features(trunk.eval()(image)).shape[1]
    finally:
        for module, mode in modes.items():
            module.training = mode


def _described(trunk: nn.Module) -> dict[str, Any]:
    if isinstance(trunk, Trunk):
        return trunk.describe()
    return {"kind": "own", "class": f"{type(trunk).__module__}.{type(trunk).__qualname__}"}
