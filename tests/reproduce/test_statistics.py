"""Paired differences and their intervals."""

import numpy as np
import pytest
from scipy import stats

from blockout.reproduce.statistics import Difference, paired


def test_the_interval_is_that_of_a_paired_t_test():
    rng = np.random.default_rng(0)
    one, other = rng.normal(60, 2, 8), rng.normal(58, 2, 8)
    found = paired(dict(enumerate(one)), dict(enumerate(other)))
    assert found is not None
    low, high = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.mean == pytest.approx((one - other).mean()) and found.seeds == 8


def test_only_common_seeds_count():
    found = paired({0: 1.0, 1: 2.0, 5: 100.0}, {0: 0.5, 1: 1.5, 7: -100.0})
    assert found == Difference(0.5, 0.5, 0.5, 2)
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: 3.0}, {0: 1.0}) == Difference(2.0, None, None, 1)


def test_a_difference_has_a_sign_where_its_interval_leaves_out_zero():
    signs = [Difference(1, *limits, 5).sign for limits in ((0.1, 2), (-0.1, 2), (-2, -0.1))]
    assert signs == [1, 0, -1] and Difference(1, None, None, 1).sign == 0
