"""Grad-CAM: which part of an image speaks for a class."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockout.models.classifier import ImageClassifier, pool_features
from blockout.models.pretrained import PretrainedTrunk

LEAST_GRID = 2
"""Cells a side below which a map says nothing about where."""


def grad_cam(
    model: ImageClassifier,
    images: Float[Tensor, "n channels h w"],
    classes: Int64[Tensor, " n"],
) -> Float[Tensor, "n grid_h grid_w"] | None:
    """relu(sum_c a_c A_c), where a_c is the mean over the grid of d logit / d A_c.

    A is the last feature map of the trunk; gradients run from the logit of each image's class back
    through the head to A, and no further, so a frozen trunk is no obstacle (Selvaraju et al.,
    "Grad-CAM", 2017). Each map is divided by its largest value; it is zero where no place speaks
    for the class. The model should be in eval mode, as ``Run.network`` gives it.

    Returns:
        None if the trunk gives features without a grid, or tokens instead of a map.

    >>> from torch import nn
    >>> trunk = nn.Conv2d(3, 1, 1).requires_grad_(False)
    >>> head = nn.Linear(1, 2)
    >>> trunk.weight[:], trunk.bias[:] = 1, 0
    >>> head.weight.data[:] = torch.tensor([[1.0], [-1.0]])
    >>> image = torch.tensor([[0.0, 1.0], [2.0, 4.0]]).expand(2, 3, 2, 2)
    >>> grad_cam(ImageClassifier(trunk, head), image, torch.tensor([0, 1]))
    tensor([[[0.0000, 0.2500],
             [0.5000, 1.0000]],
    <BLANKLINE>
            [[0.0000, 0.0000],
             [0.0000, 0.0000]]])
    """
    with torch.enable_grad():
        seen, features = _last_map(model, images)
        if seen is None or min(seen.shape[2:]) < LEAST_GRID:
            return None
        logits = model.head(features)
        chosen = logits.gather(1, classes[:, None]).sum()
        (slopes,) = torch.autograd.grad(chosen, seen)
    speaks = (slopes.mean((2, 3), keepdim=True) * seen.detach()).sum(1).relu()
    largest = speaks.amax((1, 2), keepdim=True)
    return speaks / largest.clamp(min=torch.finfo(speaks.dtype).tiny)


def _last_map(model: ImageClassifier, images: Tensor) -> tuple[Tensor | None, Tensor]:
    """The trunk's last map, and the features as a function of it."""
    trunk = model.trunk
    if isinstance(trunk, PretrainedTrunk) and trunk.readout == "pooler":
        # Without an input that asks for gradients, frozen weights would leave no graph.
        return trunk.map_and_features(images.clone().requires_grad_())
    with torch.no_grad():
        output = trunk(images)
    if output.dim() != 4:
        return None, output
    output.requires_grad_()
    return output, pool_features(output)
