"""How the product is cut: which rows of W~ are computed together, and with which columns."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

TILE = 1 << 20
"""Weights in a tile: few enough for a processor's cache, enough for a fast product."""
FEWEST_ROWS = 32
"""A product of fewer rows is slow for its size."""
SPARSE = 0.6
"""Below this share of pairs that have a cluster in common, leaving out the others pays."""
MOST_CLUSTERS = 62
"""So many clusters have their bits in one whole number."""
ALL = slice(None)


Places = slice | Int64[Tensor, "places"]
"""Consecutive rows or columns, or any."""


class Tile(NamedTuple):
    """Rows of W~ and the columns that they use."""

    rows: Places
    columns: Places


def count(places: Places, size: int) -> int:
    return len(range(size)[places]) if isinstance(places, slice) else len(places)


def chosen(matrix: Tensor, places: Places, dim: int = 0) -> Tensor:
    """The rows of a matrix, or its columns (``dim=1``), at these places."""
    if isinstance(places, slice):
        return matrix[places] if dim == 0 else matrix[:, places]
    return matrix.index_select(dim, places)


def dense_tiles(nodes_out: int, nodes_in: int) -> list[Tile]:
    """All rows in order, each tile with all columns."""
    rows = max(TILE // max(nodes_in, 1), FEWEST_ROWS)
    return [Tile(slice(i, min(i + rows, nodes_out)), ALL) for i in range(0, nodes_out, rows)]


def sparse_tiles(
    c_out: Float[Tensor, "nodes_out clusters"], c_in: Float[Tensor, "nodes_in clusters"]
) -> list[Tile] | None:
    """Rows with like codes together, each tile with the columns that share a cluster with them.

    Rows that share none with any column are in no tile. None if little would be left out.
    """
    sees_out, sees_in = c_out != 0, c_in != 0
    codes, counts, order = _codes(sees_out)
    if not codes or len(codes) * FEWEST_ROWS > 2 * len(c_out):
        return None
    rows, seen = (
        order.split(counts),
        torch.stack([sees_out[group[0]] for group in order.split(counts)]),
    )
    visible = _share_a_cluster(seen, sees_in)  # codes by inputs
    pairs = int((visible.sum(1) * torch.tensor(counts, device="cpu")).sum())
    if pairs > SPARSE * len(c_out) * len(c_in):
        return None
    return list(_joined(rows, visible))


def _codes(sees: Bool[Tensor, "nodes clusters"]) -> tuple[list[int], list[int], Tensor]:
    """The codes, how many nodes have each, and the nodes in the order of their codes.

    Codes with the same highest cluster follow each other.
    """
    clusters = sees.shape[1]
    if clusters > MOST_CLUSTERS:
        return [], [], torch.empty(0, dtype=torch.int64, device="cpu")
    powers = 2 ** torch.arange(clusters, device="cpu")
    code = (sees * powers).sum(1)
    ordered, order = code.sort(stable=True)
    found, counts = ordered.unique_consecutive(return_counts=True)
    return found.tolist(), counts.tolist(), order


def _share_a_cluster(
    a: Bool[Tensor, "n clusters"], b: Bool[Tensor, "m clusters"]
) -> Bool[Tensor, "n m"]:
    return (a.float() @ b.float().T) > 0


def _joined(rows: tuple[Tensor, ...], visible: Bool[Tensor, "codes nodes_in"]) -> Iterator[Tile]:
    """Tiles of one code each; codes of few rows are put together."""
    few: list[int] = []
    for code, those in enumerate(rows):
        if not bool(visible[code].any()):
            continue
        if len(those) >= FEWEST_ROWS:
            yield from _cut(rows, visible, [code])
            continue
        few.append(code)
        if sum(len(rows[one]) for one in few) >= FEWEST_ROWS:
            yield from _cut(rows, visible, few)
            few = []
    if few:
        yield from _cut(rows, visible, few)


def _cut(rows: tuple[Tensor, ...], visible: Tensor, codes: list[int]) -> Iterator[Tile]:
    columns = visible[codes].any(0).nonzero()[:, 0]
    together = torch.cat([rows[code] for code in codes])
    for some in together.split(max(TILE // len(columns), FEWEST_ROWS)):
        yield Tile(some, columns)
