"""x W^T + b and its gradients by compiled code: one pass over W~ each, at several times the speed.

The twin of ``product``, for layers of this processor in float32 and float64. See ``native.c``.
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from blockout import masking
from blockout.kernels.library import Found, found
from blockout.kernels.product import Gradients, is_batched, written_out

FEWEST_WEIGHTS = 1 << 17
"""Of smaller layers a call costs as much as it saves."""
MOST_EXAMPLES = 2048
"""In larger batches a mask costs little, and the memory for these activations much."""
KEPT_BYTES = 1 << 25
"""More memory than this is not kept for the next call."""
KINDS = {torch.float32: "float", torch.float64: "double"}
SIZES = "n", "rows", "columns", "clusters", "threads", "sparse", "half"
TENSORS = (
    "x", "weight", "c_out", "c_in", "bias", "y", "delta", "d_x", "d_weight", "d_out", "d_in",
    "scratch",
)  # fmt: skip


class _Layer(ctypes.Structure):
    """As ``layer`` in ``native.c``."""

    _fields_ = [(name, ctypes.c_int64) for name in SIZES] + [
        (name, ctypes.c_void_p) for name in TENSORS
    ]


class _Scratch(threading.local):
    """Memory of a thread that its products use again: new memory is slow at first use."""

    def __init__(self) -> None:
        self.bytes: Tensor | None = None
        self.off = False


_scratch = _Scratch()


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Inside, this thread computes without compiled code, for comparison."""
    before, _scratch.off = _scratch.off, True
    try:
        yield
    finally:
        _scratch.off = before


def is_large(weight: Tensor) -> bool:
    """Whether compiled code is for a layer with this weight; compiles nothing."""
    precisions = torch.float32, torch.float64, torch.bfloat16
    return weight.is_cpu and weight.dtype in precisions and weight.numel() >= FEWEST_WEIGHTS


def can_multiply(x: Float[Tensor, "*batch nodes_in"], weight: Tensor) -> bool:
    """Whether compiled code is there for a layer; compiles it at the first large one."""
    examples = x.numel() // max(x.shape[-1], 1)
    if weight.numel() < FEWEST_WEIGHTS or not 0 < examples <= MOST_EXAMPLES or _scratch.off:
        return False
    there = found()
    return (
        there.code is not None
        and (there.threads or torch.get_num_threads() == 1)
        and weight.is_contiguous()
        and agrees(there)
    )


def compiled() -> tuple[bool, str]:
    """Whether compiled code is used for large layers, and where it is; or why not."""
    there = found()
    if there.code is None:
        return False, there.told
    if not there.threads and torch.get_num_threads() > 1:
        return False, "torch's threads cannot be shared; OMP_NUM_THREADS=1 does without"
    if not agrees(there):
        return False, f"what the compiler made of them is wrong; delete {there.told}"
    return True, there.told


@functools.cache
@torch.autocast("cpu", enabled=False)
def agrees(there: Found) -> bool:
    """Whether compiled code computes what ``masking`` says, for a small layer of each precision."""
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        x, weight, delta, *c = _example(dtype)
        y, d_x, d_weight, d_out, d_in = (torch.empty_like(one) for one in (delta, x, weight, *c))
        rounded = torch.empty_like(y)
        given = {"x": x, "weight": weight, "c_out": c[0], "c_in": c[1]}
        _call("forward", True, given, {"y": y})
        into = {"d_x": d_x, "d_weight": d_weight, "d_out": d_out, "d_in": d_in}
        _call("backward", True, given | {"delta": delta}, into)
        g = delta.T @ x
        _call("forward", True, given, {"y": rounded}, half=dtype == torch.float32)
        w = masking.masked_weight(weight, *c)
        w = w.bfloat16().to(dtype) if dtype == torch.float32 else w
        for got, expected in (
            (rounded, x @ w.T),
            (y, masking.masked_linear(x, weight, *c)),
            (d_x, masking.input_gradient(delta, weight, *c)),
            (d_weight, masking.weight_gradient(delta, x, *c)),
            (d_out * c[0], masking.assignment_gradient(weight, g, c[1]) * c[0]),
            (d_in * c[1], masking.assignment_gradient(weight.T, g.T, c[0]) * c[1]),
        ):
            if not torch.allclose(got, expected, tolerance, tolerance):
                return False
    return True


def _example(dtype: torch.dtype) -> list[Tensor]:
    """x, W~, delta and both C of some layer."""
    shapes = (5, 70), (37, 70), (5, 37), (37, 3), (70, 3)
    waves = [
        torch.arange(a * b, dtype=dtype, device="cpu").mul_(1.7 + i).sin_().reshape(a, b)
        for i, (a, b) in enumerate(shapes)
    ]
    return [*waves[:3], *((one > 0.3).to(dtype) for one in waves[3:])]


class NativeProduct(torch.autograd.Function):
    """``masking.masked_linear`` of two axes, whose C are plain tensors that receive dL/dC.

    If ``sparse``, pairs of nodes that share no cluster may be left out. dL/dC is then right where C
    is not zero, which is all that Eq. 9 uses.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "n nodes_in"],
        weight: Float[Tensor, "nodes_out nodes_in"],
        c_out: Float[Tensor, "nodes_out clusters"],
        c_in: Float[Tensor, "nodes_in clusters"],
        bias: Float[Tensor, "nodes_out"] | None,
        sparse: bool,
    ) -> Float[Tensor, "n nodes_out"]:
        half = x.dtype == torch.bfloat16
        result = c_out.new_empty(len(x), len(weight))
        given = {"x": x, "weight": weight, "c_out": c_out, "c_in": c_in, "bias": bias}
        _call("forward", sparse, given, {"y": result}, half)
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:4]) else None, weight, c_out, c_in)
        ctx.sparse, ctx.half = sparse, half
        return result.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, delta: Float[Tensor, "n nodes_out"]) -> Gradients:  # pyright: ignore
        x, weight, c_out, c_in = ctx.saved_tensors
        needs = ctx.needs_input_grad
        with torch.autocast("cpu", enabled=False):
            if torch.is_grad_enabled() or is_batched(delta):
                return (*written_out(needs, delta, x, weight, c_out, c_in), None)
            found = _gradients(needs, delta, x, weight, c_out, c_in, ctx.sparse, ctx.half)
            return (*found, None)


def _gradients(
    needs: Sequence[bool],
    delta: Tensor,
    x: Tensor | None,
    weight: Tensor,
    c_out: Tensor,
    c_in: Tensor,
    sparse: bool,
    half: bool,
) -> Gradients:
    """The gradients of x, W~, both C and the bias."""
    d_x = c_in.new_empty(len(delta), weight.shape[1]) if needs[0] else None
    d_weight = torch.empty_like(weight, dtype=c_in.dtype) if needs[1] else None
    d_c = (torch.empty_like(c_out), torch.empty_like(c_in)) if any(needs[2:4]) else (None, None)
    given = {"x": x, "weight": weight, "c_out": c_out, "c_in": c_in, "delta": delta}
    wanted = {"d_x": d_x, "d_weight": d_weight, "d_out": d_c[0], "d_in": d_c[1]}
    if any(one is not None for one in wanted.values()):
        _call("backward", sparse, given, wanted, half)
    d_bias = delta.sum(0, dtype=c_in.dtype) if needs[4] else None
    return d_x, d_weight, *d_c, d_bias


def _call(
    what: str,
    sparse: bool,
    given: Mapping[str, Tensor | None],
    into: Mapping[str, Tensor | None],
    half: bool = False,
) -> None:
    """Calls a function of the library; ``into`` is written to.

    It multiplies in the precision of C. If ``half``, all that it multiplies has bfloat16 values.
    """
    code = found().code
    assert code is not None
    assert given["c_out"] is not None
    real = given["c_out"].dtype
    lasting = {name: one.to(real).contiguous() for name, one in given.items() if one is not None}
    weight, clusters = lasting["weight"], lasting["c_out"].shape[1]
    n = len(lasting["x"] if what == "forward" else lasting["delta"])
    layer = _Layer(n, *weight.shape, clusters, torch.get_num_threads(), sparse, half)
    for name, one in (*lasting.items(), *into.items()):
        if one is not None:
            setattr(layer, name, one.data_ptr())
    kind, pointer = KINDS[weight.dtype], ctypes.byref(layer)
    measure = code[f"blockout_scratch_{kind}"]
    measure.restype = ctypes.c_int64
    scratch = _room(measure(pointer, int(what == "backward")))
    layer.scratch = scratch.data_ptr()
    code[f"blockout_{what}_{kind}"](pointer)


def _room(size: int) -> Tensor:
    """Memory of at least so many bytes; what an earlier call left there is lost."""
    if _scratch.bytes is None or len(_scratch.bytes) < size:
        with torch.inference_mode(False):
            room = torch.empty(size, dtype=torch.uint8, device="cpu")
        if size > KEPT_BYTES:
            return room
        _scratch.bytes = room
    return _scratch.bytes
