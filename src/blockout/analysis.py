"""What memberships say about classes: groups of them, and how groups agree with others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score


@dataclass(frozen=True)
class Agreement:
    """How well two groupings of the same things agree."""

    adjusted_rand: float
    """1 for equal groupings, 0 on average for unrelated ones."""
    nmi: float
    """Normalised mutual information, 0 to 1; unrelated groupings have more than 0."""
    p_value: float
    """Share of random relabellings whose adjusted Rand index is at least as high."""


def similarities(p: Float[np.ndarray, "classes clusters"]) -> Float[np.ndarray, "classes classes"]:
    """Cosine of the centred rows: who shares clusters, whatever the number of clusters each has."""
    centred = p - p.mean(0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 1e-12)
    return unit @ unit.T


def class_groups(
    p: Float[np.ndarray, "classes clusters"], count: int
) -> Int64[np.ndarray, "classes"]:
    """``count`` groups of classes by average linkage over the cosine of centred memberships.

    >>> class_groups(np.array([[.9, .1], [.8, .1], [.1, .9]]), 2)
    array([0, 0, 1])
    """
    if not 1 <= count <= len(p):
        raise ValueError(f"count must lie between 1 and the {len(p)} classes, got {count}")
    distances = np.clip(1 - similarities(p.astype(np.float64)), 0, 2)
    linkage = AgglomerativeClustering(count, metric="precomputed", linkage="average")
    return linkage.fit_predict(distances)


def agreement(
    found: Sequence[int] | Int64[np.ndarray, "n"],
    true: Sequence[int] | Int64[np.ndarray, "n"],
    *,
    permutations: int = 2000,
    seed: int = 0,
) -> Agreement:
    """Adjusted Rand index and mutual information, with a permutation test of the former.

    >>> agreement([0, 0, 1, 1, 2, 2], [5, 5, 3, 3, 4, 4]).adjusted_rand
    1.0
    """
    rng = np.random.default_rng(seed)
    rand = float(adjusted_rand_score(true, found))
    by_chance = [adjusted_rand_score(true, rng.permutation(found)) for _ in range(permutations)]
    at_least = sum(value >= rand - 1e-12 for value in by_chance)
    nmi = float(normalized_mutual_info_score(true, found))
    return Agreement(rand, nmi, (1 + at_least) / (1 + permutations))
