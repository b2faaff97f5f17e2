"""x W^T + b tile by tile, and its gradients (Eqs. 7 and 8).

Matrices of activations have one row per node here, so that the nodes of a tile are whole rows.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from blockout import masking
from blockout.kernels.masks import Masks
from blockout.kernels.tiles import Places, Tile, chosen, count

AT_ONCE = 1 << 18
"""Weights of whole rows that are gathered or scattered at a time, in a core's cache."""
KEPT = 0.3
"""Gathered weights up to this share of all are kept for the backward pass."""
Gradients = tuple[Tensor | None, ...]


class TiledProduct(torch.autograd.Function):
    """``masking.masked_linear`` of two axes, whose C are plain tensors that receive dL/dC.

    Where tiles leave out columns, dL/dC has the entries at which C is not zero, which are all that
    Eq. 9 uses, and zeros elsewhere.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "n nodes_in"],
        weight: Float[Tensor, "nodes_out nodes_in"],
        c_out: Float[Tensor, "nodes_out clusters"],
        c_in: Float[Tensor, "nodes_in clusters"],
        bias: Float[Tensor, "nodes_out"] | None,
        tiles: Sequence[Tile],
    ) -> Float[Tensor, "n nodes_out"]:
        masks, ctx.half = Masks(c_out, c_in), x.dtype == torch.bfloat16
        bench, inputs = _Bench(weight, tiles, masks, ctx.half), _by_node(x, tiles)
        parts = bench.keeps_parts()
        result = x.new_zeros(len(x), len(weight))
        if ctx.half and bias is not None:  # before products are rounded
            result.add_(bias)
        y = _by_node(result, tiles)
        for tile in tiles:
            masked = bench.masked(tile, bench.weights(tile, parts), bench.mask(tile))
            put = _put_onto if ctx.half else _put
            put(y, tile.rows, masked, chosen(inputs, tile.columns))
        _collect(result, y)
        read = x if any(ctx.needs_input_grad[1:4]) else None
        saved = read, weight, c_out, c_in, masks.codes, masks.table
        ctx.save_for_backward(*saved, *(parts or ()))
        ctx.tiles = tiles
        return result if bias is None or ctx.half else result.add_(bias)

    @staticmethod
    def backward(ctx: Any, delta: Float[Tensor, "n nodes_out"]) -> Gradients:  # pyright: ignore
        x, weight, c_out, c_in, codes, table, *parts = ctx.saved_tensors
        needs = ctx.needs_input_grad
        with torch.autocast("cpu", enabled=False):
            if torch.is_grad_enabled() or is_batched(delta):
                return (*written_out(needs, delta, x, weight, c_out, c_in), None)
            masks = Masks(c_out, c_in, codes, table)
            bench = _Bench(weight, ctx.tiles, masks, ctx.half)
            return (*_tiled(needs, delta, x, bench, ctx.tiles, parts), None)


def is_batched(delta: Tensor) -> bool:
    """Whether this is the gradient of many outputs at once."""
    functorch = torch._C._functorch  # pyright: ignore
    transformed = torch._C._are_functorch_transforms_active()  # pyright: ignore
    return transformed or functorch.is_legacy_batchedtensor(delta)


def _tiled(
    needs: Sequence[bool],
    delta: Tensor,
    x: Tensor | None,
    bench: "_Bench",
    tiles: Sequence[Tile],
    parts: Sequence[Tensor],
) -> Gradients:
    """The gradients of x, W~, both C and the bias."""
    weight, c = bench.weight, (bench.masks.c_out, bench.masks.c_in)
    result = c[1].new_zeros(len(delta), weight.shape[1]) if needs[0] else None
    d_x = None if result is None else _by_node(result, tiles)
    d_weight = torch.empty_like(weight) if needs[1] else None
    d_c = (torch.zeros_like(c[0]), torch.zeros_like(c[1])) if any(needs[2:4]) else None
    deltas = _by_node(delta, tiles)
    inputs = None if x is None else _by_node(x, tiles)
    for number, tile in enumerate(tiles):
        weights = parts[number] if parts else bench.weights(tile)
        mask, back = bench.mask(tile), deltas[tile.rows]
        if inputs is not None:
            g = bench.product(tile, back, chosen(inputs, tile.columns).T)
            if d_weight is not None:
                bench.put_product(d_weight, tile, g, mask)
            if d_c is not None:
                _add_assignment_gradients(d_c, c, tile, g.mul_(weights))
        if d_x is not None:
            _add(d_x, tile.columns, bench.masked(tile, weights, mask).T, back)
    if result is not None and d_x is not None:
        _collect(result, d_x)
    if d_weight is not None:
        d_weight.index_fill_(0, _untouched(tiles, len(weight)), 0)
    d_bias = delta.sum(0, dtype=c[1].dtype) if needs[4] else None
    return result, d_weight, *(d_c or (None, None)), d_bias


def written_out(
    needs: Sequence[bool],
    delta: Tensor,
    x: Tensor | None,
    weight: Tensor,
    c_out: Tensor,
    c_in: Tensor,
) -> Gradients:
    """The same as plain functions of tensors, which can be differentiated again and batched.

    In the precision of C, to which autograd rounds less than bfloat16 would.
    """
    delta, weight = delta.to(c_out.dtype), weight.to(c_out.dtype)
    x = None if x is None else x.to(c_out.dtype)
    d_x = masking.input_gradient(delta, weight, c_out, c_in) if needs[0] else None
    d_bias = delta.sum(0) if needs[4] else None
    if x is None:
        return d_x, None, None, None, d_bias
    g = delta.T @ x
    return (
        d_x,
        masking.masked_weight(g, c_out, c_in) if needs[1] else None,
        masking.assignment_gradient(weight, g, c_in) if needs[2] else None,
        masking.assignment_gradient(weight.T, g.T, c_out) if needs[3] else None,
        d_bias,
    )


class _Places(threading.local):
    """Memory of a thread that its products use again: new memory is slow at first use."""

    def __init__(self) -> None:
        self.named: dict[tuple[str, torch.dtype], Tensor] = {}


_places = _Places()


class _Bench:
    """Room for one tile at a time. If ``half``, products are those of bfloat16 matrices."""

    def __init__(self, weight: Tensor, tiles: Sequence[Tile], masks: Masks, half: bool) -> None:
        self.weight, self.masks, self.half = weight.detach(), masks, half
        self.counts = [rows * columns for rows, columns in map(self.sizes, tiles)]
        self.largest = max(*self.counts, AT_ONCE, weight.shape[1])
        self.few = max(AT_ONCE // weight.shape[1], 1)

    def sizes(self, tile: Tile) -> tuple[int, int]:
        return count(tile.rows, len(self.weight)), count(tile.columns, self.weight.shape[1])

    def place(self, name: str, rows: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for a matrix, in the precision of C unless you name another; what an earlier one
        of this name held is lost."""
        key = name, dtype or self.masks.c_out.dtype
        if (found := _places.named.get(key)) is None or len(found) < self.largest:
            with torch.inference_mode(False):
                found = _places.named[key] = self.weight.new_empty(self.largest, dtype=key[1])
        return found[: rows * columns].view(rows, columns)

    def product(self, tile: Tile, a: Tensor, b: Tensor) -> Tensor:
        """In the precision of C, whatever that of the factors."""
        into = self.place("product", *self.sizes(tile))
        if not self.half:
            return torch.mm(a, b, out=into)
        return into.copy_(torch.mm(a, b, out=self.place("half", *self.sizes(tile), a.dtype)))

    def mask(self, tile: Tile) -> Tensor:
        """C_j C_{j-1}^T / k of the tile; one row if all are alike."""
        if (row := self.masks.row_of(tile)) is not None:
            return row
        return self.masks.of(tile, out=self.place("mask", *self.sizes(tile)))

    def masked(self, tile: Tile, weights: Tensor, mask: Tensor) -> Tensor:
        """W_j of the tile, where its mask was."""
        found = torch.mul(weights, mask, out=self.place("mask", *self.sizes(tile)))
        if not self.half:
            return found
        return self.place("half", *self.sizes(tile), torch.bfloat16).copy_(found)

    def keeps_parts(self) -> list[Tensor] | None:
        """A list for gathered weights if they are few enough to be kept for the backward pass."""
        return [] if sum(self.counts) <= KEPT * self.weight.numel() else None

    def weights(self, tile: Tile, kept: list[Tensor] | None = None) -> Tensor:
        """W~ of the tile; do not write to it. Adds it to ``kept``."""
        if isinstance(tile.columns, slice) or isinstance(tile.rows, slice):
            return self.weight[tile.rows]
        if kept is None:
            part = self.place("part", *self.sizes(tile), self.weight.dtype)
        else:
            kept.append(part := self.weight.new_empty(self.sizes(tile)))
        for rows, into in self._few(tile.rows, part):
            whole = self.place("whole", len(rows), self.weight.shape[1], self.weight.dtype)
            torch.index_select(self.weight, 0, rows, out=whole)
            torch.index_select(whole, 1, tile.columns, out=into)
        return part

    def put_product(self, total: Tensor, tile: Tile, a: Tensor, b: Tensor) -> None:
        """Writes the elementwise product of two matrices to the tile's rows, and zeros beside."""
        if isinstance(tile.columns, slice) or isinstance(tile.rows, slice):
            torch.mul(a, b, out=total[tile.rows])
            return
        part = torch.mul(a, b, out=self.place("spare", *self.sizes(tile), total.dtype))
        whole = self.place("whole", self.few, self.weight.shape[1], total.dtype).zero_()
        columns = tile.columns.expand(self.few, -1)
        for rows, values in self._few(tile.rows, part):
            some = whole[: len(rows)].scatter_(1, columns[: len(rows)], values)
            total.index_copy_(0, rows, some)

    def _few(self, *matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """So many rows at a time as a core's cache holds."""
        return zip(*(matrix.split(self.few) for matrix in matrices), strict=True)


def _by_node(batch: Float[Tensor, "n nodes"], tiles: Sequence[Tile]) -> Float[Tensor, "nodes n"]:
    """One row per node, and in memory so where tiles choose single nodes."""
    consecutive = all(isinstance(places, slice) for tile in tiles for places in tile)
    return batch.T if consecutive else batch.T.contiguous()


def _collect(batch: Tensor, by_node: Tensor) -> None:
    """Writes what has one row per node back to the batch, unless it lies there already."""
    if by_node.data_ptr() != batch.data_ptr():
        batch.copy_(by_node.T)


def _put(total: Tensor, rows: Places, a: Tensor, b: Tensor) -> None:
    if isinstance(rows, slice):
        torch.mm(a, b, out=total[rows])
    else:
        total.index_copy_(0, rows, a @ b)


def _put_onto(total: Tensor, rows: Places, a: Tensor, b: Tensor) -> None:
    """Adds to rows that are in no other tile; torch rounds the sum, not its parts."""
    if isinstance(rows, slice):
        total[rows].addmm_(a, b)
    else:
        total.index_copy_(0, rows, torch.addmm(total[rows], a, b))


def _add(total: Tensor, rows: Places, a: Tensor, b: Tensor) -> None:
    if not isinstance(rows, slice):
        total.index_add_(0, rows, (a @ b).to(total.dtype))
    elif a.dtype == total.dtype:
        total[rows].addmm_(a, b)
    else:
        total[rows] += a @ b  # sums of tiles are not rounded to bfloat16


def _add_assignment_gradients(
    d_c: tuple[Tensor, Tensor], c: tuple[Tensor, Tensor], tile: Tile, of_mask: Tensor
) -> None:
    """[W~ * G] C / k for both sides (``masking.assignment_gradient``)."""
    c_out, c_in = (chosen(one, places) / one.shape[1] for one, places in zip(c, tile, strict=True))
    of_out = (c_in.T.contiguous() @ of_mask.T).T  # several times faster than the other way round
    of_in = (c_out.T @ of_mask).T
    for total, places, part in zip(d_c, tile, (of_out, of_in), strict=True):
        if isinstance(places, slice):
            total[places] += part
        else:
            total.index_add_(0, places, part)


def _untouched(tiles: Sequence[Tile], nodes: int) -> Tensor:
    """The rows that are in no tile."""
    untouched = torch.ones(nodes, dtype=torch.bool, device="cpu")
    for tile in tiles:
        untouched[tile.rows] = False
    return untouched.nonzero()[:, 0]
