"""bfloat16: whether products are to be computed in it, and whether that is faster here."""

import functools
import time

import torch
from torch import Tensor

CLEARLY = 0.7
"""Times of products in bfloat16 beside float32 lie far on both sides of this: processors that have
instructions for them take at most half, others twice as long and more. So noise in the measurement
does not change which products are used, and with them the last bits of a run that is resumed."""
ROUNDS = 20
SIZE = 512


def is_half(x: Tensor, weight: Tensor) -> bool:
    """Whether autocast asks for products of bfloat16 matrices, or the tensors do."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") == torch.bfloat16
    return x.dtype == weight.dtype == torch.bfloat16


def are_fast() -> bool:
    """Whether products in bfloat16 are clearly faster than in float32 on this machine."""
    return bfloat16_time() < CLEARLY


@functools.cache
def bfloat16_time() -> float:
    """Time of a matrix product in bfloat16 beside float32, measured once per process.

    Some processors compute in bfloat16 by emulation. Draws no random numbers.
    """
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        wide = torch.full((SIZE, SIZE), 0.5, dtype=torch.float32, device="cpu")
        half = wide.to(torch.bfloat16)
        times = [[_seconds(one) for one in (half, wide)] for _ in range(ROUNDS)]
    in_half, in_full = (min(column) for column in zip(*times, strict=True))
    return in_half / in_full


def _seconds(matrix: Tensor) -> float:
    start = time.perf_counter()
    torch.mm(matrix, matrix)
    return time.perf_counter() - start
