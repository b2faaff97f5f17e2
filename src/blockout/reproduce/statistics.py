"""Mean, spread and paired differences of runs, with their intervals."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """Mean of one method less another over the seeds that both have."""

    mean: float
    low: float | None
    """Limits of the 95 % interval (Student's t); None with a single seed."""
    high: float | None
    seeds: int

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves out zero, else 0."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample; None of a single value.

    >>> spread([1.0, 2.0, 3.0]), spread([1.0])
    (1.0, None)
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """The difference of two methods, seed by seed; None where no seed is common.

    >>> paired({0: 3.0, 1: 5.0, 2: 4.0}, {0: 1.0, 1: 4.0, 2: 1.0, 3: 9.0}).mean
    2.0
    """
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    values = np.array([one[seed] - other[seed] for seed in seeds])
    mean, deviation = float(values.mean()), spread(values.tolist())
    if deviation is None:
        return Difference(mean, None, None, 1)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(seeds) - 1) * deviation / math.sqrt(len(seeds))
    return Difference(mean, mean - float(half), mean + float(half), len(seeds))
