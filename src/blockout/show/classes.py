"""How many clusters each class has, and whether that goes with its accuracy (Fig. 11)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

PERMUTATIONS = 2000
SMALLEST = 1e-9
"""Values that differ by less do not vary."""


@dataclass(frozen=True)
class Correlation:
    """How two numbers per class go together."""

    pearson: float
    spearman: float
    """Of the ranks; equal values share the mean of their ranks."""
    p_value: float
    """Share of random pairings whose Spearman correlation is at least as far from 0."""


def expected_clusters(p: Float[np.ndarray, "nodes clusters"]) -> Float[np.ndarray, " nodes"]:
    """The number of clusters that a node belongs to on average over draws: the sum of its P."""
    return p.sum(1, dtype=np.float64)


def quartiles(values: Float[np.ndarray, "*n"]) -> tuple[float, float, float]:
    """The 25th percentile, the median and the 75th percentile.

    >>> quartiles(np.array([0., 1., 2., 3., 4.]))
    (1.0, 2.0, 3.0)
    """
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return low, middle, high


def correlation(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], permutations: int = PERMUTATIONS
) -> Correlation | None:
    """Of the pairs without nan; None if one side does not vary, or for fewer than 3 pairs.

    >>> correlation(np.array([1., 2., 3., 4.]), np.array([8., 6., 4., 2.])).spearman
    -1.0
    """
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known].round(6), y[known].round(6)  # equal but for rounding is a tie
    if len(x) < 3 or np.ptp(x) < SMALLEST or np.ptp(y) < SMALLEST:
        return None
    ranks = [np.asarray(stats.zscore(stats.rankdata(values))) for values in (x, y)]
    by_chance = stats.permutation_test(
        ranks,
        lambda a, b, axis: np.abs((a * b).mean(axis)),
        permutation_type="pairings",
        alternative="greater",
        vectorized=True,
        n_resamples=permutations,
        rng=np.random.default_rng(0),
    )
    pearson, spearman = (np.corrcoef(a, b)[0, 1].round(12).item() for a, b in ((x, y), ranks))
    return Correlation(pearson, spearman, float(by_chance.pvalue))
