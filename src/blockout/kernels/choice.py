"""Which way a masked product is computed."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from blockout import masking
from blockout.kernels import native
from blockout.kernels.kept import forget, kept_weight
from blockout.kernels.native import NativeProduct
from blockout.kernels.product import TiledProduct
from blockout.kernels.tiles import dense_tiles, sparse_tiles
from blockout.masking import Assignments

FEWEST_WEIGHTS = 1 << 19
"""Of smaller layers nobody sees what a mask costs, if torch alone computes it."""
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
    if weight.numel() >= least and _is_ordinary(x, weight, c_out, c_in, bias):
        is_native = native.can_multiply(x, weight)
        if is_native or weight.numel() >= FEWEST_WEIGHTS:
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


def _fast(
    x: Tensor, weight: Tensor, c_out: C, c_in: C, bias: Tensor | None, is_native: bool
) -> Tensor:
    partial = _learns_where_drawn(c_out) and _learns_where_drawn(c_in)
    values_out, values_in = (masking.differentiable(c).to(weight.dtype) for c in (c_out, c_in))
    if len(values_in) != weight.shape[1]:
        values_in = values_in.repeat_interleave(weight.shape[1] // len(values_in), dim=0)
    given = (x if x.dim() == 2 else x.reshape(-1, x.shape[-1])), weight, values_out, values_in, bias
    y: Tensor
    if is_native:
        y = NativeProduct.apply(*given, partial)  # pyright: ignore
    else:
        tiles = sparse_tiles(values_out.detach(), values_in.detach()) if partial else None
        tiles = dense_tiles(*weight.shape) if tiles is None else tiles
        y = TiledProduct.apply(*given, tiles)  # pyright: ignore
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], len(weight))


def _learns_where_drawn(c: C) -> bool:
    """Whether only entries that are not zero need a gradient."""
    if isinstance(c, Tensor):
        return not c.requires_grad
    return c.learns is None or not c.learns.requires_grad or c.estimator == "eq9"


def _is_ordinary(x: Tensor, weight: Tensor, c_out: C, c_in: C, bias: Tensor | None = None) -> bool:
    """Tensors of one precision on this processor, seen by no tracer and no transform."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if x.dtype != weight.dtype or x.dtype not in (torch.float32, torch.float64):
        return False
    if torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active():  # pyright: ignore
        return False
    if torch._C._len_torch_dispatch_stack() or torch.autograd.forward_ad._current_level >= 0:  # pyright: ignore
        return False
    if (bias is not None and bias.dtype != x.dtype) or len(_parts(c_out)[0]) != len(weight):
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
