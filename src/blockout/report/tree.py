"""The tree in which classes join, the most alike first."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int64
from sklearn.cluster import AgglomerativeClustering

from blockout.analysis import similarities


@dataclass(frozen=True)
class Tree:
    """Merges of pairs, the nearest first; node ``n + i`` is made by merge ``i`` of n leaves."""

    merges: Int64[np.ndarray, "joins 2"]
    heights: Float[np.ndarray, "joins"]
    """Distance at which they join, 0 for the same memberships to 2 for opposite ones."""

    @property
    def count(self) -> int:
        """Leaves."""
        return len(self.merges) + 1

    @cached_property
    def below(self) -> list[list[int]]:
        """The leaves below every node, in the order in which they are drawn."""
        found = [[leaf] for leaf in range(self.count)]
        for a, b in self.merges.tolist():
            # the larger side first: a tree that adds one leaf at a time then reads from top down
            first, second = sorted((found[a], found[b]), key=len, reverse=True)
            found.append(first + second)
        return found

    @property
    def leaves(self) -> list[int]:
        """All leaves, such that no branches cross."""
        return self.below[-1]


def tree_of(p: Float[np.ndarray, "classes clusters"]) -> Tree:
    """By average linkage over the cosine of centred memberships, as ``Structure.class_groups``.

    >>> tree_of(np.array([[.9, .1], [.1, .9], [.8, .1]])).leaves
    [0, 2, 1]
    """
    if len(p) < 2:
        return Tree(np.zeros((0, 2), dtype=np.int64), np.zeros(0))
    distances = np.clip(1 - similarities(p.astype(np.float64)), 0, 2)
    np.fill_diagonal(distances, 0)
    linkage = AgglomerativeClustering(
        1, metric="precomputed", linkage="average", compute_distances=True
    ).fit(distances)
    return Tree(linkage.children_.astype(np.int64), linkage.distances_)
