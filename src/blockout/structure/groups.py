"""Groups of classes by their memberships, and how well these match a taxonomy or another run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from scipy.stats import rankdata
from sklearn.metrics import (
    adjusted_rand_score,
    normalized_mutual_info_score,
    roc_auc_score,
    silhouette_score,
)

PERMUTATIONS = 2000
DIGITS = 9
"""Similarities that are equal to this many decimals are tied."""
TIED = 1e-2
"""Unit directions that are closer than this are the same, because P is rounded to float32."""
SAME_P = 1e-3
"""P that differ by less are equal."""

P = Float[np.ndarray, "classes clusters"]
Table = Float[np.ndarray, "classes classes"]
Numbers = Int64[np.ndarray, "classes"]
"""The number of each class's group."""
Orders = Int64[np.ndarray, "permutations classes"]


@dataclass(frozen=True)
class Agreement:
    """How well groups of classes and their similarities match a taxonomy.

    A p-value is the share of random permutations of the classes that match at least as well.
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
    """The probability that two classes of one known group are more similar than two of different
    known groups; ties count half. 1 is perfect, 0.5 is chance. None without similarities, or if all
    or no pairs share a known group."""
    auc_p_value: float | None = None
    """Of the AUC."""


@dataclass(frozen=True)
class Consistency:
    """Whether two training runs group the same classes together."""

    correlation: float
    """Between the similarities of all pairs of classes: 1 for the same structure in any order of
    clusters, about 0 for unrelated ones, and 0 if a run does not distinguish any pairs."""
    p_value: float
    """The share of random permutations of one run's classes that correlate at least as well."""


def similarities(p: P) -> Table:
    """Cosine of the centred rows: which classes share clusters, however many each has."""
    unit = _unit_rows(p)
    return unit @ unit.T


def clusters_differ(p: P) -> bool:
    """Whether P of any node differs between two clusters.

    >>> clusters_differ(np.array([[0.2, 0.2], [0.9, 0.9]])), clusters_differ(np.array([[0.2, 0.3]]))
    (False, True)
    """
    return bool((np.ptp(p, axis=1) > SAME_P).any())


def class_groups(p: P, count: int) -> Numbers:
    """``count`` groups of classes by average linkage over the cosine of centred memberships.

    >>> class_groups(np.array([[.9, .1], [.8, .1], [.1, .9]]), 2)
    array([0, 0, 1])
    """
    if not 1 <= count <= len(p):
        raise ValueError(f"count must lie between 1 and the {len(p)} classes, got {count}")
    return _cut(class_tree(p), count)


def class_tree(p: P) -> Float[np.ndarray, "merges 4"]:
    """The merges of average linkage over the cosine distance, as scipy's ``linkage`` gives them."""
    return linkage(squareform(_distances(p)), "average") if len(p) > 1 else np.zeros((0, 4))


def different_classes(p: P) -> int:
    """The number of classes with different memberships: an upper bound on meaningful groups.

    >>> different_classes(np.array([[1., 0.], [1., 0.], [0., 1.]]))
    2
    """
    if len(p) < 2:
        return len(p)
    heights = linkage(_unit_rows(p.astype(np.float64)), "average")[:, 2]
    return 1 + int((heights >= TIED).sum())


def natural_count(p: P, most: int) -> int:
    """The number of groups, up to ``most``, with the highest mean silhouette; 1 if none is above 0.

    >>> natural_count(np.array([[.9, .1], [.8, .1], [.1, .9], [.2, .8]]), most=3)
    2
    """
    distances, tree = _distances(p), class_tree(p)
    best, best_score = 1, 1e-9
    for count in range(2, min(most, len(p) - 1) + 1):
        score = silhouette_score(distances, _cut(tree, count), metric="precomputed")
        if score > best_score + 1e-9:
            best, best_score = count, float(score)
    return best


def agreement(
    found: Sequence[int] | Numbers,
    taxonomy: Sequence[int] | Sequence[str] | Numbers,
    *,
    alike: Table | None = None,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Agreement:
    """How well ``found`` groups, and similarities ``alike``, match the groups of a ``taxonomy``.

    >>> agreement([0, 0, 1, 1, 2, 2], [5, 5, 3, 3, 4, 4]).adjusted_rand
    1.0
    >>> p = np.array([[1., 0.], [1., 0.], [0., 1.], [0., 1.]])
    >>> agreement([0, 0, 1, 1], ["cat", "cat", "dog", "dog"], alike=similarities(p)).auc
    1.0
    """
    found_groups, known = _numbered(found), _numbered(taxonomy)
    if len(found_groups) != len(known):
        raise ValueError(
            f"{len(found_groups)} classes are grouped but {len(known)} have a known group; give "
            "each class one known group"
        )
    rng = np.random.default_rng(seed)
    orders = np.stack([rng.permutation(len(known)) for _ in range(permutations)])
    rand_p, nmi_p = _table_p_values(found_groups, known, orders)
    nmi = float(normalized_mutual_info_score(known, found_groups))
    auc, auc_p = (None, None) if alike is None else _auc(alike, known, orders)
    rand = float(adjusted_rand_score(known, found_groups))
    return Agreement(rand, nmi, rand_p, nmi_p, auc, auc_p)


def consistency(p: P, other: P, *, permutations: int = PERMUTATIONS, seed: int = 0) -> Consistency:
    """Correlation of the pairwise similarities of the same classes in two training runs.

    >>> p = np.array([[.9, .1, .1], [.8, .2, .0], [.1, .9, .3], [.2, .1, .9]])
    >>> round(consistency(p, p[:, [2, 0, 1]]).correlation, 6)
    1.0
    """
    one, two = (_unit_rows(q.astype(np.float64)) for q in (p, other))
    squares = (one**2).sum(1), (two**2).sum(1)  # 1, or 0 for a class at the mean

    def products(order: np.ndarray) -> float:
        """The sum over pairs of one similarity times the other; cheap, as clusters are few."""
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


def _unit_rows(p: P) -> P:
    """Centred rows of length one; a row at the mean stays zero."""
    centred = p - p.mean(0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 1e-12)


def _cut(tree: Float[np.ndarray, "merges 4"], count: int) -> Numbers:
    """The groups before the last ``count - 1`` merges; scipy's ``cut_tree`` reorders ties."""
    classes = len(tree) + 1
    label = np.arange(classes)
    for i, (first, second) in enumerate(tree[: classes - count, :2]):
        label[(label == first) | (label == second)] = classes + i
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(group, len(seen)) for group in label.tolist()])


def _distances(p: P) -> Table:
    distances = np.clip(1 - similarities(p.astype(np.float64)), 0, 2)
    np.fill_diagonal(distances, 0)
    return distances


def _numbered(groups: Sequence | np.ndarray) -> Numbers:
    return np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)


def _table_p_values(found: Numbers, known: Numbers, orders: Orders) -> tuple[float, float]:
    """Of the adjusted Rand index and of mutual information.

    A permutation keeps the sizes of all groups. Both measures then depend only on n_ij, the classes
    that found group i shares with known group j: they grow with sum n_ij^2 and sum n_ij log n_ij.
    ``scipy.stats.permutation_test`` takes one statistic; here several share one set of orders.
    """
    width, cells = known.max() + 1, (found.max() + 1) * (known.max() + 1)

    def table(order: np.ndarray) -> tuple[float, float]:
        counts = np.bincount(found[order] * width + known, minlength=cells)
        some = counts[counts > 0]
        return float((some**2).sum()), float((some * np.log(some)).sum())

    observed = table(np.arange(len(known)))
    by_chance = np.array([table(order) for order in orders])
    first, second = (_share_of_at_least(by_chance[:, i], observed[i]) for i in (0, 1))
    return first, second


def _auc(alike: Table, known: Numbers, orders: Orders) -> tuple[float | None, float | None]:
    """The AUC over all pairs and its p-value; ranks order permutations as the AUC does."""
    i, j = np.triu_indices(len(known), 1)
    together = known[i] == known[j]
    if together.all() or not together.any():
        return None, None
    scores = alike[i, j].round(DIGITS)
    ranks = np.zeros(alike.shape)
    ranks[i, j] = ranks[j, i] = rankdata(scores)
    a, b = i[together], j[together]
    observed = ranks[a, b].sum()
    by_chance = np.array([ranks[order[a], order[b]].sum() for order in orders])
    return float(roc_auc_score(together, scores)), _share_of_at_least(by_chance, observed)


def _share_of_at_least(by_chance: Float[np.ndarray, "permutations"], observed: float) -> float:
    """Never 0, because the observed arrangement is one of the possible ones."""
    tolerance = 1e-9 * max(1.0, abs(observed))
    return float(1 + (by_chance >= observed - tolerance).sum()) / (1 + len(by_chance))
