"""The masked weight of the last call in eval mode, until something that it depends on changes."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from blockout.masking import masked_weight

SAMPLE = 4096
"""Weights that are compared as well: torch does not count what is written through ``.data``."""


class _Kept(NamedTuple):
    version: int
    address: int
    sample: Tensor
    c_out: Tensor
    c_in: Tensor
    weight: Tensor


_kept = WeakTensorKeyDictionary()


def kept_weight(
    weight: Float[Tensor, "nodes_out features_in *kernel"],
    c_out: Float[Tensor, "nodes_out clusters"],
    c_in: Float[Tensor, "nodes_in clusters"],
) -> Float[Tensor, "nodes_out features_in *kernel"]:
    """``masked_weight`` without its gradients; computed anew only if W~ or the memberships changed.

    Changes are what torch counts (``Tensor._version``), other memory, or another value in a sample
    of the weights. Do not write to the result.
    """
    if weight.is_inference():
        return masked_weight(weight, c_out, c_in).detach()
    found: _Kept | None = _kept.get(weight)
    sample = weight.detach().flatten()[:: _stride(weight.numel())]
    if found is not None and (
        (found.version, found.address) == (weight._version, weight.data_ptr())
        and torch.equal(found.c_out, c_out)
        and torch.equal(found.c_in, c_in)
        and torch.equal(found.sample, sample)
    ):
        return found.weight
    masked = masked_weight(weight, c_out, c_in).detach()
    sample, c_out, c_in = (one.detach().clone() for one in (sample, c_out, c_in))
    _kept[weight] = _Kept(weight._version, weight.data_ptr(), sample, c_out, c_in, masked)
    return masked


def _stride(count: int) -> int:
    """Between two weights of the sample; has no factor in common with the number of columns, so
    that the sample meets all of them alike."""
    stride = max(count // SAMPLE, 1)
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride


def forget(weight: Tensor) -> None:
    """Frees what is kept of a weight that is about to change."""
    _kept.pop(weight, None)
