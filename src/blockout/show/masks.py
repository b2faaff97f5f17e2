"""Masks of weights (Fig. 5): one draw of each method, and the masks that a run has learned."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64

from blockout.masking import block_mask, draw_assignments
from blockout.runs import Run
from blockout.show.mistakes import cell_starts
from blockout.structure.nodes import Layer

P = Float[np.ndarray, "nodes clusters"]
NODES, CLUSTERS, SEED = 48, 4, 5
"""Of the examples."""
KEPT, BELONGS = 0.5, 0.3
"""Chance that Dropout keeps a node and DropConnect a weight; that a node belongs to a cluster."""
MOST_CELLS = 256
"""Per side of a mask."""
THRESHOLD = 0.5
"""A node belongs to a cluster if P is at least this, as in the ``Structure`` of a run."""


@dataclass(frozen=True)
class Mask:
    """The mask of one layer, 0 to 1: a row per output node, a column per input node."""

    title: str
    as_it_is: Float[np.ndarray, "rows columns"]
    in_order: Float[np.ndarray, "rows columns"]
    """The same mask with nodes of the same clusters side by side."""
    layer: Layer | None = None
    """The layer that learned it; None for an example."""

    @property
    def largest(self) -> float:
        return float(self.in_order.max())


def example_masks() -> list[Mask]:
    """One draw each of Dropout, Blockout and DropConnect."""
    chance = torch.Generator().manual_seed(SEED)
    return [
        _drawn("Dropout", 1, KEPT, chance),
        _drawn(f"Blockout, {CLUSTERS} clusters", CLUSTERS, BELONGS, chance),
        _dropconnect(chance),
    ]


def _drawn(title: str, clusters: int, p: float, chance: torch.Generator) -> Mask:
    """C_j C_{j-1}^T / k (Eq. 3); with one cluster, Dropout of inputs and outputs."""
    c_out, c_in = (draw_assignments(torch.full((NODES, clusters), p), chance) for _ in range(2))
    mask = block_mask(c_out, c_in).numpy()
    rows, columns = order_by_code(c_out.numpy()), order_by_code(c_in.numpy())
    return Mask(title, mask, mask[rows][:, columns])


def _dropconnect(chance: torch.Generator) -> Mask:
    """Each weight on its own: no order of nodes makes blocks, so they stand by weights kept."""
    mask = torch.bernoulli(torch.full((NODES, NODES), KEPT), generator=chance).numpy()
    rows, columns = (np.argsort(-mask.sum(axis), kind="stable") for axis in (1, 0))
    return Mask("DropConnect", mask, mask[rows][:, columns])


def learned_masks(run: Run) -> list[Mask]:
    """P_j P_{j-1}^T / k (Eq. 5) of each Blockout layer, the mean of the masks that it draws.

    ``as_it_is`` shows some of the nodes of a large layer; in ``in_order``, a cell is the mean of
    neighbours.
    """
    assert run.structure is not None
    found = []
    for layer in run.structure.layers:
        p_out, p_in = run.memberships[layer.outputs], run.memberships[layer.inputs]
        ordered = (_fewer_rows(p[order_by_code(p)]) for p in (p_out, p_in))
        as_it_is = expected_mask(_some(p_out), _some(p_in))
        found.append(Mask(layer.name, as_it_is, expected_mask(*ordered), layer))
    return found


def expected_mask(p_out: P, p_in: P) -> Float[np.ndarray, "nodes_out nodes_in"]:
    """P_j P_{j-1}^T / k (Eq. 5). It is linear in each P: means of rows give means of cells.

    >>> expected_mask(np.array([[1., 0.]]), np.array([[1., 1.], [0., 1.]])).tolist()
    [[0.5, 0.0]]
    """
    return p_out @ p_in.T / p_out.shape[1]


def order_by_code(p: P) -> Int64[np.ndarray, " nodes"]:
    """Indices of the nodes, with nodes of one code (a set of clusters) side by side.

    Codes are in Gray's order: neighbours differ by few clusters, which keeps the nodes of a cluster
    together as far as possible. Within a code the most decided nodes come first; nodes without a
    cluster come last.

    >>> order_by_code(np.array([[0., 0.], [0., 1.], [1., 1.], [1., 0.]])).tolist()
    [3, 2, 1, 0]
    """
    place = np.bitwise_xor.accumulate(p >= THRESHOLD, axis=1)  # from Gray's code to its rank
    decided = np.abs(p - THRESHOLD).sum(1)
    return np.lexsort((-decided, *(~place).T[::-1]))


def _fewer_rows(p: P) -> P:
    """At most ``MOST_CELLS`` rows, each the mean of the rows that it stands for."""
    starts = cell_starts(len(p), MOST_CELLS)
    counts = np.diff(starts, append=len(p))
    return (np.add.reduceat(p, starts, axis=0, dtype=np.float64) / counts[:, None]).astype(p.dtype)


def _some(p: P) -> P:
    """Evenly spaced nodes: a mean of unrelated neighbours would show nothing."""
    return p[np.linspace(0, len(p) - 1, min(len(p), MOST_CELLS // 2)).round().astype(int)]
