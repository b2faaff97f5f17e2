import numpy as np
import pytest

from blockout.show.classes import correlation


def test_correlations_are_those_worked_out_by_hand():
    found = correlation(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 6.0]))
    assert found.pearson == pytest.approx(3 / (2 / 3 * 14) ** 0.5)
    assert found.spearman == pytest.approx(3**0.5 / 2)  # ranks 1.5, 1.5, 3 and 1, 2, 3


def test_the_p_value_is_the_share_of_pairings_that_correlate_as_well():
    found = correlation(np.arange(4.0), np.arange(4.0) ** 2)
    assert found.p_value == pytest.approx(2 / 24)  # of the 24 orders of four numbers, 2 are as far
    many = correlation(np.arange(9.0), np.arange(9.0))
    assert many.p_value == pytest.approx(1 / 2001)  # too many orders to try: a sample of them


def test_classes_without_test_images_play_no_part():
    x, y = np.array([1.0, 2.0, 3.0, 9.0]), np.array([3.0, 2.0, 1.0, np.nan])
    assert correlation(x, y).pearson == -1
    assert correlation(x, np.array([1.0, 1.0, 1.0, np.nan])) is None
