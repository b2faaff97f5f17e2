"""Layers of a compact network: dense blocks side by side, each of which reads some nodes."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

# torch below 2.7 does not tell exporting from compiling; what is computed is the same
_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


class SparseLinear(nn.Linear):
    """``nn.Linear`` whose zero weights are missing connections: training keeps them zero.

    >>> layer = SparseLinear(2, 1)
    >>> _ = layer.weight.data.copy_(torch.tensor([[3., 0.]]))
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> layer.weight.grad
    tensor([[1., 0.]])
    """

    note = ""

    def forward(self, input: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        weight = _connections(self.weight) if self.training else self.weight
        return F.linear(input, weight, self.bias)


class SparseConv2d(nn.Conv2d):
    """``nn.Conv2d`` whose zero weights are missing connections: training keeps them zero."""

    note = ""

    def forward(self, input: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch c2 h2 w2"]:
        weight = _connections(self.weight) if self.training else self.weight
        return self._conv_forward(input, weight, self.bias)


class DenseBlocks(nn.Module):
    """A linear layer or convolution as dense blocks: each makes some outputs from some inputs.

    Args:
        blocks: ``nn.Linear`` or ``nn.Conv2d``; their outputs are concatenated.
        columns: what each block reads: the first input of a contiguous range, or all input numbers.
        sums: if several blocks add to one output: where the first summand of each output lies among
            the outputs of all blocks, then the second summand of the first few outputs, and so on.
        order: a final reordering of the outputs, if they need one.
        note: why the layer looks as it does.

    Shape: as the plain layer that it replaces.

    >>> halves = DenseBlocks([nn.Linear(2, 3), nn.Linear(2, 3)], columns=[0, torch.tensor([1, 3])])
    >>> halves(torch.randn(8, 4)).shape
    torch.Size([8, 6])
    """

    order: Tensor | None

    def __init__(
        self,
        blocks: Sequence[nn.Linear | nn.Conv2d],
        columns: Sequence[int | Int[Tensor, " columns"]],
        *,
        sums: Sequence[Int[Tensor, " places"]] = (),
        order: Int[Tensor, " outputs"] | None = None,
        note: str = "",
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.starts = [c if isinstance(c, int) else None for c in columns]
        self.widths = [block.weight.shape[1] for block in blocks]
        for i, chosen in enumerate(columns):
            if not isinstance(chosen, int):
                self.register_buffer(f"columns_{i}", chosen)
        self.summed = [len(places) for places in sums]
        for i, places in enumerate(sums):
            self.register_buffer(f"sums_{i}", places)
        self.register_buffer("order", order)
        self.dim = -1 if isinstance(blocks[0], nn.Linear) else -3
        self.note = note

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        parts = [block(self._read(x, i)) for i, block in enumerate(self.blocks)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)
        if self.summed:
            y = self._added(y)
        return y if self.order is None else _picked(y, self.dim, self.order)

    def _read(self, x: Tensor, i: int) -> Tensor:
        start = self.starts[i]
        if start is None:
            return _picked(x, self.dim, getattr(self, f"columns_{i}"))
        here = slice(start, start + self.widths[i])
        return x[..., here] if self.dim == -1 else x[..., here, :, :]

    def _added(self, parts: Tensor) -> Tensor:
        """Adds the last summands first: they belong to the fewest outputs."""
        *before, last = (f"sums_{i}" for i in range(len(self.summed)))
        total = _picked(parts, self.dim, getattr(self, last))
        for name in reversed(before):
            more = _picked(parts, self.dim, getattr(self, name))
            count = total.shape[self.dim]
            first, rest = more.split([count, more.shape[self.dim] - count], self.dim)
            total = torch.cat([first + total, rest], self.dim)
        return total

    def extra_repr(self) -> str:
        return self.note


def _picked(x: Tensor, dim: int, index: Int[Tensor, " n"]) -> Tensor:
    """``x.index_select(dim, index)``; exported graphs select along the first dimension.

    Runtimes copy whole rows there. Along the last dimension onnxruntime copies value by value, at
    9 ns each.
    """
    if dim == -1 and _exporting():
        return x.transpose(0, -1).index_select(0, index).transpose(0, -1)
    return x.index_select(dim, index)


def _connections(weight: Tensor) -> Tensor:
    return weight * (weight != 0)
