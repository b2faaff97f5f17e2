"""Which way a masked product is computed."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from blockout import masking
from blockout.kernels import half, native
from blockout.kernels.kept import forget, kept_weight
from blockout.kernels.native import NativeProduct
from blockout.kernels.product import TiledProduct
from blockout.kernels.tiles import dense_tiles, sparse_tiles
from blockout.masking import Assignments

FEWEST_WEIGHTS = 1 << 19
"""Of smaller layers nobody sees what a mask costs, if torch alone computes it."""
NATIVE_HALF = 128
"""In larger batches torch's products in bfloat16 are faster than compiled ones, which compute with
bfloat16 values in float32."""
DENSE_HALF = 512
"""In larger batches a mask costs less than cutting fast products into tiles, if all is computed."""
C = Assignments | Float[Tensor, "nodes clusters"]


def masked_linear(
    x: Float[Tensor, "*batch features_in"],
    weight: Float[Tensor, "nodes_out features_in"],
    c_out: C,
    c_in: C,
    bias: Float[Tensor, "nodes_out"] | None = None,
) -> Float[Tensor, "*batch nodes_out"]:
    """As ``masking.masked_linear``."""
    if (expected := _expected_weight(x, weight, c_out, c_in)) is not None:
        return F.linear(x, expected, bias)
    least = min(FEWEST_WEIGHTS, native.FEWEST_WEIGHTS)
    ordinary = weight.numel() >= least and _is_ordinary(x, weight, c_out, c_in, bias)
    if ordinary and _fits(x, weight, bias):
        is_native = native.can_multiply(x, weight) and not _is_faster_in_torch(x, weight)
        if is_native or _has_tiles(x, weight):
            return _fast(x, weight, c_out, c_in, bias, is_native)
    return masking.masked_linear(x, weight, c_out, c_in, bias)


def masked_conv2d(
    x: Float[Tensor, "*batch nodes_in h w"],
    weight: Float[Tensor, "nodes_out nodes_in kh kw"],
    c_out: C,
    c_in: C,
    bias: Float[Tensor, "nodes_out"] | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
) -> Float[Tensor, "*batch nodes_out h2 w2"]:
    """As ``masking.masked_conv2d``. In training its mask costs little beside its products, which
    are as many as there are places in the images."""
    if (expected := _expected_weight(x, weight, c_out, c_in)) is not None:
        return F.conv2d(x, expected, bias, stride, padding, dilation)
    return masking.masked_conv2d(x, weight, c_out, c_in, bias, stride, padding, dilation)


def _expected_weight(x: Tensor, weight: Tensor, c_out: C, c_in: C) -> Tensor | None:
    """The weight of Eq. 5 if it is that of the last call, or may be kept for the next."""
    if torch.is_grad_enabled():
        if not torch.compiler.is_compiling():
            forget(weight)
        return None
    if isinstance(c_out, Assignments) or isinstance(c_in, Assignments):
        return None
    return kept_weight(weight, c_out, c_in) if _is_ordinary(x, weight, c_out, c_in) else None


def _is_faster_in_torch(x: Tensor, weight: Tensor) -> bool:
    """Whether fast products in bfloat16 are better than compiled ones."""
    many = x.numel() > NATIVE_HALF * x.shape[-1]
    copied = weight.dtype == torch.bfloat16 and weight.numel() >= FEWEST_WEIGHTS
    return (many or copied) and half.is_half(x, weight) and half.are_fast()


def _has_tiles(x: Tensor, weight: Tensor) -> bool:
    """Whether torch alone is faster than the reference."""
    return weight.numel() >= FEWEST_WEIGHTS and (not half.is_half(x, weight) or half.are_fast())


def _fast(
    x: Tensor, weight: Tensor, c_out: C, c_in: C, bias: Tensor | None, is_native: bool
) -> Tensor:
    partial = _learns_where_drawn(c_out) and _learns_where_drawn(c_in)
    in_half = half.is_half(x, weight)
    real = torch.float32 if in_half else weight.dtype
    values_out, values_in = (masking.differentiable(c).to(real) for c in (c_out, c_in))
    if len(values_in) != weight.shape[1]:
        values_in = values_in.repeat_interleave(weight.shape[1] // len(values_in), dim=0)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    given = rows.to(torch.bfloat16) if in_half else rows, weight, values_out, values_in, bias
    tiles = None
    if not is_native:
        tiles = sparse_tiles(values_out.detach(), values_in.detach()) if partial else None
        if tiles is None and in_half and len(rows) > DENSE_HALF:
            return masking.masked_linear(x, weight, c_out, c_in, bias)
        tiles = dense_tiles(*weight.shape) if tiles is None else tiles
    y: Tensor
    with torch.autocast("cpu", enabled=False):  # the products themselves say what they round
        if tiles is None:
            y = NativeProduct.apply(*given, partial)  # pyright: ignore
        else:
            y = TiledProduct.apply(*given, tiles)  # pyright: ignore
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], len(weight))


def _learns_where_drawn(c: C) -> bool:
    """Whether only entries that are not zero need a gradient."""
    if isinstance(c, Tensor):
        return not c.requires_grad
    return c.learns is None or not c.learns.requires_grad or c.estimator == "eq9"


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether there are twins for these precisions: float32 or float64 alone, or bfloat16."""
    kinds = {one.dtype for one in (x, weight, bias) if one is not None}
    if torch.is_autocast_enabled("cpu"):
        return half.is_half(x, weight) and kinds <= {torch.float32, torch.bfloat16}
    return len(kinds) == 1 and x.dtype in (torch.float32, torch.float64, torch.bfloat16)


def _is_ordinary(x: Tensor, weight: Tensor, c_out: C, c_in: C, bias: Tensor | None = None) -> bool:
    """Tensors on this processor, seen by no tracer and no transform."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if torch._C._are_functorch_transforms_active():  # pyright: ignore
        return False
    if torch._C._len_torch_dispatch_stack() or torch.autograd.forward_ad._current_level >= 0:  # pyright: ignore
        return False
    if len(_parts(c_out)[0]) != len(weight):
        return False
    given = [x, weight, *_parts(c_out), *_parts(c_in), *(() if bias is None else (bias,))]
    return all(
        type(one) in (Tensor, torch.nn.Parameter)
        and one.is_cpu
        and one.layout == torch.strided
        and not one.is_nested
        for one in given
    )


def _parts(c: C) -> tuple[Tensor, ...]:
    return (c,) if isinstance(c, Tensor) else tuple(one for one in c[:2] if one is not None)
