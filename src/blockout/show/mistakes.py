"""Which classes are confused, and whether mistakes stay within groups of classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64
from scipy.stats import permutation_test

from blockout.runs import Run
from blockout.show.groups import groups_to_show

Counts = Int64[np.ndarray, "classes classes"]
"""A row per class: how many of its images were taken for each class."""
PERMUTATIONS = 1000
WEAK = 50.0
"""Per cent below which a class is more often wrong than right."""


@dataclass(frozen=True)
class Pair:
    """Two classes, and the test images of one that were taken for the other."""

    classes: tuple[int, int]
    count: int
    images: tuple[int, ...]
    """Indices of the mistakes, the most certain first."""


@dataclass(frozen=True)
class Weakness:
    """How badly a class is recognised."""

    number: int
    accuracy: float
    """Per cent of its test images."""
    count: int
    """Test images."""
    taken_for: int | None
    """The class that most of its mistakes were taken for."""


def weakest_classes(run: Run, most: int, below: float = 100.0) -> list[Weakness]:
    """The classes with the lowest accuracy, as far as it is lower than ``below`` per cent.

    Of two that are equally weak, the one with more test images comes first.
    """
    if not run.classes or run.class_accuracy is None or run.confusion is None:
        return []
    counts, accuracy = run.confusion.sum(1), run.class_accuracy
    order = np.lexsort((-counts, np.nan_to_num(accuracy, nan=np.inf))).tolist()
    weak = [c for c in order if counts[c] and accuracy[c] < below][:most]
    return [
        Weakness(c, float(accuracy[c]), int(counts[c]), _most_often(run.confusion, c)) for c in weak
    ]


def _most_often(confusion: Counts, number: int) -> int | None:
    """What mistakes about a class were most often taken for; None if there are none."""
    wrong = confusion[number].copy()
    wrong[number] = 0
    return int(wrong.argmax()) if wrong.any() else None


def confused_pairs(run: Run, together: bool, most: int) -> list[Pair]:
    """The most confused pairs of classes of one group (``together``) or of two, the worst first."""
    assert run.confusion is not None
    group = groups_to_show(run).of_class
    both = np.triu(run.confusion + run.confusion.T, 1)
    both = both * ((group[:, None] == group[None, :]) == together)
    worst = np.argsort(-both, axis=None, kind="stable")[:most]
    found = [divmod(int(cell), len(both)) for cell in worst]
    return [Pair((a, b), int(both[a, b]), _mistaken(run, a, b)) for a, b in found if both[a, b] > 0]


def _mistaken(run: Run, a: int, b: int) -> tuple[int, ...]:
    assert run.predictions is not None
    labels, predicted, probabilities = run.predictions
    one, other = (labels == a) & (predicted[:, 0] == b), (labels == b) & (predicted[:, 0] == a)
    found = np.flatnonzero(one | other)
    certain = np.argsort(-probabilities[found, 0], kind="stable")
    return tuple(found[certain].tolist())


def row_shares(counts: Counts, order: Sequence[int], most: int) -> Float[np.ndarray, "cells cells"]:
    """Per cent of the images of each row, in this order; many classes share cells.

    >>> row_shares(np.array([[8, 2], [1, 3]]), [1, 0], 2).tolist()
    [[75.0, 25.0], [20.0, 80.0]]
    """
    starts = cell_starts(len(order), most)
    ordered = counts[np.ix_(order, order)]
    joined = np.add.reduceat(np.add.reduceat(ordered, starts, axis=0), starts, axis=1)
    return 100 * joined / np.maximum(joined.sum(1, keepdims=True), 1)


def cell_starts(count: int, most: int) -> Int64[np.ndarray, " cells"]:
    """Where each of at most ``most`` cells of about equal size begins.

    >>> cell_starts(5, 2).tolist()
    [0, 2]
    """
    cells = min(count, most)
    return np.arange(cells) * count // cells


@dataclass(frozen=True)
class Nearness:
    """How many mistakes stay within the group of the true class."""

    within: float
    """Share of the mistakes, 0 to 1."""
    by_chance: float
    """The same on average for random groups of the same sizes."""
    p_value: float
    """Share of random groups of the same sizes that hold at least as many mistakes."""


def nearness(
    confusion: Counts, group: Int64[np.ndarray, " classes"], permutations: int = PERMUTATIONS
) -> Nearness | None:
    """Of the mistakes in a confusion matrix; None without any.

    >>> found = nearness(np.array([[9, 3, 0], [0, 9, 1], [0, 0, 9]]), np.array([0, 0, 1]))
    >>> found.within, round(found.by_chance, 3)
    (0.75, 0.333)
    """
    true, predicted = np.nonzero(confusion - np.diag(confusion.diagonal()))
    counts = confusion[true, predicted]
    if not len(counts):
        return None

    def held(groups: np.ndarray) -> int:
        return int(counts[groups[true] == groups[predicted]].sum())

    tested = permutation_test(
        (group,),
        held,
        permutation_type="pairings",
        alternative="greater",
        vectorized=False,
        n_resamples=permutations,
        rng=0,
    )
    sizes, n = np.bincount(group), len(group)
    expected = float((sizes * (sizes - 1)).sum() / (n * (n - 1)))
    return Nearness(held(group) / int(counts.sum()), expected, float(tested.pvalue))
