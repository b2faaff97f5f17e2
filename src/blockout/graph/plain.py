"""Plain layers: those that compute with their own weight and nothing else."""

from typing import Any

from torch import nn

from blockout.layers import BlockoutLayer

PlainLayer = nn.Linear | nn.Conv2d
GEOMETRY = ("kernel_size", "stride", "padding", "dilation", "padding_mode")


def geometry(conv: nn.Conv2d) -> dict[str, Any]:
    """The arguments of a convolution beside its channels."""
    return {name: getattr(conv, name) for name in GEOMETRY}


def why_not_plain(layer: nn.Module) -> str | None:
    """Why rows and columns of its weight do not say all about a layer; None if they do.

    >>> why_not_plain(nn.Linear(2, 2)) is None
    True
    >>> why_not_plain(nn.Conv2d(4, 4, 3, groups=2))
    'it has groups=2; clusters take the place of groups, use groups=1'
    """
    if isinstance(layer, BlockoutLayer):
        return "it is a Blockout layer already; leave it out"
    if type(layer) not in (nn.Linear, nn.Conv2d):
        return (
            f"it is a {type(layer).__name__}; only nn.Linear and nn.Conv2d themselves (not "
            "subclasses or parametrised layers) are known to compute with their weight alone. "
            "Replace it with a plain layer first"
        )
    if isinstance(layer, nn.Conv2d) and layer.groups != 1:
        return f"it has groups={layer.groups}; clusters take the place of groups, use groups=1"
    if "weight" not in layer._parameters:
        return "a hook computes its weight (old-style weight norm); remove the hook first"
    if "forward" in layer.__dict__:
        return "its forward has been replaced on the object; use a plain layer"
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
        return "it has hooks that would be lost; add them to the converted layer instead"
    return None
