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
FEW_PLACES = 512
"""With more places in a batch of images, the mask of a 1x1 convolution costs little beside torch's
products, which are faster for images than compiled ones."""
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
    if ordinary and _fits(x, weight, bias) and _agree(x.shape[-1], weight, c_out, c_in, bias):
        is_native = _is_faster_compiled(x, weight)
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
    """As ``masking.masked_conv2d``. Large 1x1 convolutions are linear layers over all places, where
    that is faster; beside other products, as many as there are places, a mask costs little."""
    if (expected := _expected_weight(x, weight, c_out, c_in)) is not None:
        return F.conv2d(x, expected, bias, stride, padding, dilation)
    if _is_linear(x, weight, stride, padding) and _is_ordinary(x, weight, c_out, c_in, bias):
        of_nodes = weight.flatten(1)
        if _fits(x, weight, bias) and _agree(x.shape[1], of_nodes, c_out, c_in, bias):
            down, across = (stride, stride) if isinstance(stride, int) else stride
            read = x[:, :, ::down, ::across]
            places = read.movedim(1, -1)
            few = places.numel() <= FEW_PLACES * places.shape[-1]
            if few and _is_faster_compiled(places, of_nodes):
                y = _fast(places, of_nodes, c_out, c_in, bias, is_native=True)
                return _laid_out_as(x, y.movedim(-1, 1))
    return masking.masked_conv2d(x, weight, c_out, c_in, bias, stride, padding, dilation)


def _is_linear(
    x: Tensor,
    weight: Tensor,
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...] | str,
) -> bool:
    """Whether this is a convolution of single places, and large."""
    if weight.numel() < native.FEWEST_WEIGHTS or weight.dim() != 4 or x.dim() != 4:
        return False
    steps = (stride, stride) if isinstance(stride, int) else stride
    whole = len(steps) == 2 and min(steps) > 0
    return whole and weight.shape[2:] == (1, 1) and padding in (0, (0, 0), "valid")


def _laid_out_as(x: Tensor, y: Tensor) -> Tensor:
    """In memory, channels lie last or not as in x."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return y if last else y.contiguous()


def _expected_weight(x: Tensor, weight: Tensor, c_out: C, c_in: C) -> Tensor | None:
    """The weight of Eq. 5 if it is that of the last call, or may be kept for the next."""
    if torch.is_grad_enabled():
        if not torch.compiler.is_compiling():
            forget(weight)
        return None
    if isinstance(c_out, Assignments) or isinstance(c_in, Assignments):
        return None
    return kept_weight(weight, c_out, c_in) if _is_ordinary(x, weight, c_out, c_in) else None


def _is_faster_compiled(x: Tensor, weight: Tensor) -> bool:
    return native.can_multiply(x, weight) and not _is_faster_in_torch(x, weight)


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
    given = [x, weight, *_parts(c_out), *_parts(c_in), *(() if bias is None else (bias,))]
    return all(
        type(one) in (Tensor, torch.nn.Parameter)
        and one.is_cpu
        and one.layout == torch.strided
        and not one.is_nested
        for one in given
    )


def _agree(features: int, weight: Tensor, c_out: C, c_in: C, bias: Tensor | None) -> bool:
    """Whether the sizes fit each other. If not, the reference says what is wrong."""
    (bits_out, *of_out), (bits_in, *of_in) = _parts(c_out), _parts(c_in)
    return (
        features == weight.shape[1]
        and bits_out.shape == (len(weight), bits_in.shape[-1])
        and bits_in.dim() == 2
        and len(bits_in) > 0
        and features % len(bits_in) == 0
        and all(one.shape == bits_out.shape for one in of_out)
        and all(one.shape == bits_in.shape for one in of_in)
        and (bias is None or bias.shape == (len(weight),))
    )


def _parts(c: C) -> tuple[Tensor, ...]:
    return (c,) if isinstance(c, Tensor) else tuple(one for one in c[:2] if one is not None)
