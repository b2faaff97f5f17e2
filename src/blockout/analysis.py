"""What memberships say about classes: groups of them, and how these agree with other knowledge."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

PERMUTATIONS = 2000
DIGITS = 9
"""Similarities that are equal to so many decimals are tied."""
TIED = 1e-2
"""Directions of unit length that are nearer are the same: trainings round, and P are float32."""


@dataclass(frozen=True)
class Agreement:
    """How well groups of classes, and their similarities, agree with a given grouping.

    A p-value is the share of random relabellings of the classes that agree at least as well.
    """

    adjusted_rand: float
    """1 for equal groupings, 0 on average for unrelated ones."""
    nmi: float
    """Normalised mutual information, 0 to 1; unrelated groupings have more than 0."""
    p_value: float
    """Of the adjusted Rand index."""
    nmi_p_value: float
    """Of the normalised mutual information."""
    auc: float | None = None
    """Probability that two classes of one given group are more alike than two of different groups,
    ties counting half: 1 is perfect, 0.5 chance. None without similarities, or where the given
    groups hold all pairs or none."""
    auc_p_value: float | None = None
    """Of the area under the curve."""


@dataclass(frozen=True)
class Consistency:
    """Whether two trainings put the same classes together."""

    correlation: float
    """Of the similarities of all pairs of classes: 1 for the same structure whatever the order of
    its clusters, about 0 for unrelated ones; 0 also where a training tells no pairs apart."""
    p_value: float
    """Share of random relabellings of one training's classes that correlate at least as well."""


def similarities(p: Float[np.ndarray, "classes clusters"]) -> Float[np.ndarray, "classes classes"]:
    """Cosine of the centred rows: who shares clusters, whatever the number of clusters each has."""
    unit = _unit_rows(p)
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
    if count == 1:
        return np.zeros(len(p), dtype=np.int64)
    linkage = AgglomerativeClustering(count, metric="precomputed", linkage="average")
    return linkage.fit_predict(_distances(p))


def different_classes(p: Float[np.ndarray, "classes clusters"]) -> int:
    """How many classes can be told apart by memberships: more groups would part what is the same.

    >>> different_classes(np.array([[1., 0.], [1., 0.], [0., 1.]]))
    2
    """
    if len(p) < 2:
        return len(p)
    linkage = AgglomerativeClustering(
        n_clusters=None,  # pyright: ignore[reportArgumentType]
        linkage="average",
        distance_threshold=TIED,
    )
    return int(linkage.fit(_unit_rows(p.astype(np.float64))).n_clusters_)


def natural_count(p: Float[np.ndarray, "classes clusters"], most: int) -> int:
    """The number of groups, up to ``most``, with the highest mean silhouette; 1 if none is above 0.

    >>> natural_count(np.array([[.9, .1], [.8, .1], [.1, .9], [.2, .8]]), most=3)
    2
    """
    distances = _distances(p)
    best, best_score = 1, 1e-9
    for count in range(2, min(most, len(p) - 1) + 1):
        score = silhouette_score(distances, class_groups(p, count), metric="precomputed")
        if score > best_score + 1e-9:
            best, best_score = count, float(score)
    return best


def agreement(
    found: Sequence[int] | Int64[np.ndarray, "n"],
    true: Sequence[int] | Sequence[str] | Int64[np.ndarray, "n"],
    *,
    alike: Float[np.ndarray, "n n"] | None = None,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Agreement:
    """How well ``found`` groups, and similarities ``alike``, agree with ``true`` groups.

    >>> agreement([0, 0, 1, 1, 2, 2], [5, 5, 3, 3, 4, 4]).adjusted_rand
    1.0
    >>> p = np.array([[1., 0.], [1., 0.], [0., 1.], [0., 1.]])
    >>> agreement([0, 0, 1, 1], ["cat", "cat", "dog", "dog"], alike=similarities(p)).auc
    1.0
    """
    found_groups, true_groups = _numbered(found), _numbered(true)
    if len(found_groups) != len(true_groups):
        raise ValueError(
            f"{len(found_groups)} classes are grouped and {len(true_groups)} have a given group; "
            "give one group a class"
        )
    rng = np.random.default_rng(seed)
    orders = np.stack([rng.permutation(len(true_groups)) for _ in range(permutations)])
    rand_p, nmi_p = _table_p_values(found_groups, true_groups, orders)
    nmi = float(normalized_mutual_info_score(true_groups, found_groups))
    auc, auc_p = (None, None) if alike is None else _auc(alike, true_groups, orders)
    rand = float(adjusted_rand_score(true_groups, found_groups))
    return Agreement(rand, nmi, rand_p, nmi_p, auc, auc_p)


def consistency(
    p: Float[np.ndarray, "classes clusters"],
    other: Float[np.ndarray, "classes other_clusters"],
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Consistency:
    """Correlation of the pairwise similarities of the same classes in two trainings.

    >>> p = np.array([[.9, .1, .1], [.8, .2, .0], [.1, .9, .3], [.2, .1, .9]])
    >>> round(consistency(p, p[:, [2, 0, 1]]).correlation, 6)
    1.0
    """
    one, two = (_unit_rows(q.astype(np.float64)) for q in (p, other))
    squares = (one**2).sum(1), (two**2).sum(1)  # 1, or 0 for a class at the mean

    def products(order: np.ndarray) -> float:
        """Sum over all pairs of one's similarity times the other's; cheap, as clusters are few."""
        together = ((one.T @ two[order]) ** 2).sum() - squares[0] @ squares[1][order]
        return float(together) / 2

    rng = np.random.default_rng(seed)
    observed = products(np.arange(len(p)))
    by_chance = np.array([products(rng.permutation(len(p))) for _ in range(permutations)])
    pairs = np.triu_indices(len(p), 1)
    first, second = (one @ one.T)[pairs], (two @ two.T)[pairs]
    scale = len(first) * first.std() * second.std() if len(first) else 0.0
    if scale < 1e-9:
        return Consistency(0.0, 1.0)
    correlation = (observed - len(first) * first.mean() * second.mean()) / scale
    return Consistency(float(correlation), _share_of_at_least(by_chance, observed))


def _unit_rows(p: Float[np.ndarray, "n clusters"]) -> Float[np.ndarray, "n clusters"]:
    """Centred rows of length one; a row at the mean stays zero."""
    centred = p - p.mean(0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 1e-12)


def _distances(p: Float[np.ndarray, "n clusters"]) -> Float[np.ndarray, "n n"]:
    distances = np.clip(1 - similarities(p.astype(np.float64)), 0, 2)
    np.fill_diagonal(distances, 0)
    return distances


def _numbered(groups: Sequence | np.ndarray) -> Int64[np.ndarray, "n"]:
    return np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)


def _table_p_values(
    found: Int64[np.ndarray, "n"],
    true: Int64[np.ndarray, "n"],
    orders: Int64[np.ndarray, "permutations n"],
) -> tuple[float, float]:
    """Of the adjusted Rand index and of mutual information.

    While the sizes of all groups stay, both only depend on how many classes each found group has in
    common with each true one, n_ij: they rise with sum n_ij^2 and with sum n_ij log n_ij.
    """
    width, cells = true.max() + 1, (found.max() + 1) * (true.max() + 1)

    def table(order: np.ndarray) -> tuple[float, float]:
        counts = np.bincount(found[order] * width + true, minlength=cells)
        some = counts[counts > 0]
        return float((some**2).sum()), float((some * np.log(some)).sum())

    observed = table(np.arange(len(true)))
    by_chance = np.array([table(order) for order in orders])
    first, second = (_share_of_at_least(by_chance[:, i], observed[i]) for i in (0, 1))
    return first, second


def _auc(
    alike: Float[np.ndarray, "n n"],
    true: Int64[np.ndarray, "n"],
    orders: Int64[np.ndarray, "permutations n"],
) -> tuple[float | None, float | None]:
    """Area under the curve from the ranks of all pairs (Mann and Whitney), and its p-value."""
    i, j = np.triu_indices(len(true), 1)
    together = true[i] == true[j]
    positives, negatives = int(together.sum()), int((~together).sum())
    if not positives or not negatives:
        return None, None
    ranks = np.zeros(alike.shape)
    ranks[i, j] = ranks[j, i] = _mean_ranks(alike[i, j])
    a, b = i[together], j[together]
    observed = ranks[a, b].sum()
    by_chance = np.array([ranks[order[a], order[b]].sum() for order in orders])
    auc = (observed - positives * (positives + 1) / 2) / (positives * negatives)
    return float(auc), _share_of_at_least(by_chance, observed)


def _mean_ranks(values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, which, counts = np.unique(values.round(DIGITS), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def _share_of_at_least(by_chance: Float[np.ndarray, "permutations"], observed: float) -> float:
    """Never 0: the arrangement that was observed is one of the possible ones."""
    tolerance = 1e-9 * max(1.0, abs(observed))
    return float(1 + (by_chance >= observed - tolerance).sum()) / (1 + len(by_chance))
