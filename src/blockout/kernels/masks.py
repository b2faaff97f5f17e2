"""C_j C_{j-1}^T / k of a tile: the code of a node determines its row of the mask."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockout.kernels.tiles import Tile, chosen

MOST_CLUSTERS = 8
"""A table of all codes has 2 ** clusters rows."""


class Masks:
    """Masks of one layer. With few clusters and hard memberships they are rows of a table.

    Args:
        c_out, c_in: C of both sides.
        codes, table: those of an earlier object with the same C.
    """

    def __init__(
        self,
        c_out: Float[Tensor, "nodes_out clusters"],
        c_in: Float[Tensor, "nodes_in clusters"],
        codes: Int64[Tensor, "nodes_out"] | None = None,
        table: Float[Tensor, "codes nodes_in"] | None = None,
    ) -> None:
        clusters = c_in.shape[1]
        self.c_out, self.c_in = c_out, c_in
        self.codes, self.table = codes, table
        self.shares = (c_in / clusters).T
        few = clusters <= MOST_CLUSTERS and 2**clusters < len(c_out)
        if codes is None and few and bool(((c_out == 0) | (c_out == 1)).all()):
            powers = 2 ** torch.arange(clusters, device="cpu")
            bits = (torch.arange(2**clusters, device="cpu")[:, None] & powers) != 0
            self.codes, self.table = c_out.long() @ powers, bits.to(c_out) @ self.shares

    def row_of(self, tile: Tile) -> Float[Tensor, "1 columns"] | None:
        """The row that all rows of a tile have, if they have one code."""
        if self.codes is None or self.table is None or isinstance(tile.rows, slice):
            return None
        first, last = self.codes[tile.rows[[0, -1]]].tolist()
        return chosen(self.table[first : first + 1], tile.columns, 1) if first == last else None

    def of(self, tile: Tile, out: Tensor) -> Tensor:
        if self.codes is None or self.table is None:
            return torch.mm(self.c_out[tile.rows], chosen(self.shares, tile.columns, 1), out=out)
        table = chosen(self.table, tile.columns, 1)
        return torch.index_select(table, 0, self.codes[tile.rows], out=out)
