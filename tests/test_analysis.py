"""Groups of classes and their agreement, against sums written out and against brute force."""

import itertools
import math

import numpy as np
import pytest

from blockout.analysis import agreement, class_groups, similarities

FOUND = [0, 0, 0, 1, 1, 1]
TRUE = [0, 0, 1, 1, 2, 2]


def pairs_together(grouping) -> set[tuple[int, int]]:
    return {
        (i, j)
        for i, j in itertools.combinations(range(len(grouping)), 2)
        if grouping[i] == grouping[j]
    }


def rand_by_pairs(found, true) -> float:
    """(pairs in both - expected) / (mean of pairs in each - expected)."""
    a, b = pairs_together(found), pairs_together(true)
    expected = len(a) * len(b) / math.comb(len(found), 2)
    return (len(a & b) - expected) / ((len(a) + len(b)) / 2 - expected)


def information_by_counting(found, true) -> float:
    n = len(found)

    def share(grouping, group):
        return sum(g == group for g in grouping) / n

    both = list(zip(found, true, strict=True))
    mutual = sum(
        share(both, cell)
        * math.log(share(both, cell) / share(found, cell[0]) / share(true, cell[1]))
        for cell in set(both)
    )
    entropies = [
        -sum(share(g, x) * math.log(share(g, x)) for x in set(g)) for g in (list(found), list(true))
    ]
    return mutual / (sum(entropies) / 2)


def test_adjusted_rand_and_information_are_the_sums_over_pairs_and_cells():
    got = agreement(FOUND, TRUE, permutations=1)
    assert got.adjusted_rand == pytest.approx(8 / 33)  # 2 shared of 6 and 3 pairs, 1.2 expected
    assert got.adjusted_rand == pytest.approx(rand_by_pairs(FOUND, TRUE))
    assert got.nmi == pytest.approx(information_by_counting(FOUND, TRUE))


def test_p_value_is_the_share_of_all_permutations_that_agree_as_well():
    observed = rand_by_pairs(FOUND, TRUE)
    every = [rand_by_pairs(order, TRUE) for order in itertools.permutations(FOUND)]
    exact = np.mean([value >= observed - 1e-12 for value in every])
    p = agreement(FOUND, TRUE, permutations=1000).p_value
    # five standard deviations of a share of 1000: false alarms below 1e-6, and the seed is fixed
    assert p == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / 1000))


def test_p_value_of_perfect_agreement_is_small_and_never_zero():
    groups = np.repeat(np.arange(5), 4)
    assert agreement(groups, groups, permutations=99).p_value == 1 / 100


def test_p_value_of_one_single_group_is_one():
    assert agreement([0] * 6, TRUE, permutations=20).p_value == 1


def test_p_values_of_unrelated_groupings_are_about_uniform():
    rng, true = np.random.default_rng(1), np.repeat(np.arange(5), 8)
    p = [
        agreement(rng.integers(5, size=40), true, permutations=19, seed=i).p_value
        for i in range(60)
    ]
    for level in (0.25, 0.5, 0.75):
        # 60 trials: 0.32 is five standard deviations at one half
        assert np.mean(np.array(p) <= level) == pytest.approx(level, abs=0.32)


def test_a_relabelling_changes_nothing():
    relabelled = agreement([7, 7, 7, 3, 3, 3], TRUE, permutations=50)
    assert relabelled == agreement(FOUND, TRUE, permutations=50)


def test_similarity_is_the_cosine_of_centred_rows_and_zero_for_a_row_at_the_mean():
    p = np.array([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    expected = [[1, -1, 0], [-1, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(similarities(p), expected, atol=1e-12)


def test_clear_groups_are_found_in_any_order():
    centres = np.eye(4) * 0.8 + 0.1
    true = np.array([0, 1, 2, 3] * 5)
    p = centres[true] + np.random.default_rng(0).normal(0, 0.02, (20, 4))
    found = class_groups(p.astype(np.float32), 4)
    assert agreement(found, true, permutations=1).adjusted_rand == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_constant_memberships_still_give_as_many_groups_as_asked(count):
    groups = class_groups(np.full((4, 3), 0.5), count)
    assert len(set(groups.tolist())) == count
    np.testing.assert_array_equal(groups, class_groups(np.full((4, 3), 0.5), count))


@pytest.mark.parametrize("count", [0, -1, 4])
def test_a_count_out_of_range_is_refused(count):
    with pytest.raises(ValueError, match=f"between 1 and the 3 classes, got {count}"):
        class_groups(np.eye(3), count)
