"""Nodes as points in a plane, by their P (Fig. 10)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from sklearn.decomposition import PCA

ROUNDING = 1e-6
"""A smaller share of the variance comes from rounding: P is stored as float32."""
ALIKE = 1e-3
"""P that differ by less are shown as equal."""


class Projection(NamedTuple):
    """Nodes as points in a plane."""

    points: Float[np.ndarray, "nodes 2"]
    shares: Float[np.ndarray, "2"]
    """Of the variance, along each axis."""


def principal_components(p: Float[np.ndarray, "nodes clusters"]) -> Projection:
    """Nodes along the two directions in which their P differ most.

    Nodes with equal P fall on one point. A direction along which P do not differ, or that one
    cluster does not have, is zero.

    >>> seen = principal_components(np.array([[1., 0.], [1., 0.], [0., 1.], [0., 1.]]))
    >>> seen.points[:, 0].round(3).tolist(), seen.shares.round(3).tolist()
    ([0.707, 0.707, -0.707, -0.707], [1.0, 0.0])
    """
    points, shares = np.zeros((len(p), 2)), np.zeros(2)
    if np.ptp(p, axis=0).max() < ROUNDING:
        return Projection(points, shares)
    fitted = PCA(min(2, *p.shape)).fit(p.astype(np.float64))
    directions, found = np.asarray(fitted.components_), fitted.explained_variance_ratio_
    largest = np.abs(directions).round(9).argmax(1)  # of loadings equal but for rounding, the first
    directions = directions * np.sign(directions[range(len(directions)), largest])[:, None]
    kept = np.flatnonzero(found >= ROUNDING)
    points[:, kept] = (p - fitted.mean_) @ directions[kept].T
    shares[kept] = found[kept]
    return Projection(points, shares)


def strongest_clusters(p: Float[np.ndarray, "*nodes clusters"]) -> Int64[np.ndarray, "*nodes"]:
    """The cluster with the largest P of each node; of equal ones, the first.

    >>> strongest_clusters(np.array([[0.1, 0.9], [0.7, 0.7 + 1e-7]])).tolist()
    [1, 0]
    """
    return (p > p.max(-1, keepdims=True) - ALIKE).argmax(-1)
