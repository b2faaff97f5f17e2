"""What the page and the figures compute from P, as pure functions of arrays."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64

THRESHOLD = 0.5
"""A node belongs to a cluster where P is at least this, as in a ``Structure`` of a run."""
ROUNDING = 1e-6
"""A smaller share of the variance comes from rounding: P are kept in float32."""
ALIKE = 1e-3
"""P that differ by less are shown as equal."""


class Projection(NamedTuple):
    """Nodes as points in a plane."""

    points: Float[np.ndarray, "nodes 2"]
    shares: Float[np.ndarray, "2"]
    """Of the variance, along each axis."""


def principal_components(p: Float[np.ndarray, "nodes clusters"]) -> Projection:
    """Nodes by the two directions in which their P differ most; the same P give the same points.

    Nodes with equal P fall on one point. With one cluster, or where P differ along one line or
    not at all, what is missing is zero.

    >>> seen = principal_components(np.array([[1., 0.], [1., 0.], [0., 1.], [0., 1.]]))
    >>> seen.points[:, 0].round(3).tolist(), seen.shares.round(3).tolist()
    ([0.707, 0.707, -0.707, -0.707], [1.0, 0.0])
    """
    centred = p.astype(np.float64) - p.mean(0, dtype=np.float64)
    variances, directions = np.linalg.eigh(centred.T @ centred)
    variances, directions = np.clip(variances[::-1][:2], 0, None), directions[:, ::-1][:, :2]
    largest = np.abs(directions).round(9).argmax(0)  # equal but for rounding: the first decides
    directions = directions * np.sign(directions[largest, range(directions.shape[1])])
    missing = 2 - directions.shape[1]
    total = (centred**2).sum()
    shares = variances / total if total > 0 else np.zeros_like(variances)
    shares = np.where(shares < ROUNDING, 0, shares)
    points = np.pad(np.where(shares > 0, centred @ directions, 0), ((0, 0), (0, missing)))
    return Projection(points, np.pad(shares, (0, missing)))


def strongest_clusters(p: Float[np.ndarray, "*nodes clusters"]) -> Int64[np.ndarray, "*nodes"]:
    """The cluster with the largest P of each node; of equal ones the first.

    >>> strongest_clusters(np.array([[0.1, 0.9], [0.7, 0.7 + 1e-7]])).tolist()
    [1, 0]
    """
    return (p > p.max(-1, keepdims=True) - ALIKE).argmax(-1)


def branches_differ(p: Float[np.ndarray, "nodes clusters"]) -> bool:
    """Whether any node has another P in one cluster than in another.

    >>> branches_differ(np.array([[0.2, 0.2], [0.9, 0.9]])), branches_differ(np.array([[0.2, 0.3]]))
    (False, True)
    """
    return bool((np.ptp(p, axis=1) > ALIKE).any())


def order_by_code(p: Float[np.ndarray, "nodes clusters"]) -> Int64[np.ndarray, "nodes"]:
    """Indices of the nodes, such that nodes of one code (a set of clusters) stand side by side.

    Codes follow each other in the reflected order of Gray: neighbours differ by few clusters, so
    that the nodes of a cluster lie together as far as they can. Within a code the most decided
    nodes come first; nodes without any cluster come last.

    >>> order_by_code(np.array([[0., 0.], [0., 1.], [1., 1.], [1., 0.]])).tolist()
    [3, 2, 1, 0]
    """
    bits = p >= THRESHOLD
    place = np.bitwise_xor.accumulate(bits, axis=1)  # from Gray's code to its number in the order
    decided = np.abs(p - THRESHOLD).sum(1)
    return np.lexsort((-decided, *(~place).T[::-1]))


def expected_mask(
    p_out: Float[np.ndarray, "nodes_out clusters"], p_in: Float[np.ndarray, "nodes_in clusters"]
) -> Float[np.ndarray, "nodes_out nodes_in"]:
    """P_j P_{j-1}^T / k (Eq. 5): the mean of the masks that training draws.

    It is linear in each: for many nodes, ``shrunk`` P give the shrunk mask at little cost.

    >>> expected_mask(np.array([[1., 0.]]), np.array([[1., 1.], [0., 1.]])).tolist()
    [[0.5, 0.0]]
    """
    return p_out @ p_in.T / p_out.shape[1]


def shrunk(matrix: Float[np.ndarray, "rows columns"], most: int) -> Float[np.ndarray, "r c"]:
    """At most ``most`` cells a side, each the mean of what it stands for; smaller ones stay.

    Cells stand for equally many rows and columns, but for one more in some.

    >>> shrunk(np.array([[0., 2., 5.], [4., 6., 5.]]), 1).round(3).tolist()
    [[3.667]]
    """
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    return _averaged(_averaged(matrix, most).T, most).T


def expected_clusters(p: Float[np.ndarray, "nodes clusters"]) -> Float[np.ndarray, "nodes"]:
    """The number of clusters that a node belongs to on average over draws: the sum of its P."""
    return p.sum(1, dtype=np.float64)


def quartiles(values: Float[np.ndarray, "n"]) -> tuple[float, float, float]:
    """25th percentile, median, 75th percentile.

    >>> quartiles(np.array([0., 1., 2., 3., 4.]))
    (1.0, 2.0, 3.0)
    """
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return low, middle, high


def _averaged(rows: Float[np.ndarray, "rows columns"], most: int) -> Float[np.ndarray, "r columns"]:
    if len(rows) <= most:
        return rows
    starts = np.arange(most) * len(rows) // most
    counts = np.diff(np.append(starts, len(rows)))
    sums = np.add.reduceat(rows, starts, axis=0, dtype=np.float64)
    return (sums / counts[:, None]).astype(rows.dtype if rows.dtype.kind == "f" else np.float64)
