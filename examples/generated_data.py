"""Vectors with a known hierarchy for the examples: 4 groups of 4 classes."""

import torch
from torch import Tensor

GROUPS, CLASSES, FEATURES = 4, 16, 64


def generate(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points around fixed class centres; classes of one group lie close together."""
    world = torch.Generator().manual_seed(0)
    group_centres = 2 * torch.randn(GROUPS, FEATURES, generator=world)
    group = torch.arange(CLASSES) % GROUPS
    centres = group_centres[group] + torch.randn(CLASSES, FEATURES, generator=world)
    chance = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=chance)
    return centres[y] + 3.5 * torch.randn(n, FEATURES, generator=chance), y
