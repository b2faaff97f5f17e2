"""Groups of classes and their agreement, against sums written out and against brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockout.structure.groups import (
    agreement,
    class_groups,
    consistency,
    different_classes,
    natural_count,
    similarities,
)

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


def average_linkage_by_hand(p, count) -> set[frozenset[int]]:
    """Joins the two groups whose classes are the nearest on average, until ``count`` are left."""
    distance = 1 - similarities(p)
    groups = [frozenset([i]) for i in range(len(p))]
    while len(groups) > count:
        a, b = min(
            itertools.combinations(groups, 2),
            key=lambda pair: np.mean([distance[i, j] for i in pair[0] for j in pair[1]]),
        )
        groups = [group for group in groups if group not in (a, b)] + [a | b]
    return set(groups)


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_those_of_average_linkage_by_hand(seed):
    p = np.random.default_rng(seed).random((14, 4))
    for count in range(1, 15):
        found = class_groups(p, count)
        groups = {frozenset(np.flatnonzero(found == g).tolist()) for g in set(found.tolist())}
        assert groups == average_linkage_by_hand(p, count)


def test_one_class_is_one_group():
    np.testing.assert_array_equal(class_groups(np.ones((1, 2)), 1), [0])


# --- the area under the curve -------------------------------------------------------------------


def area_by_pairs(alike, true) -> float:
    """How often a pair of one group beats a pair of two groups; a tie counts half."""
    together, apart = [], []
    for i, j in itertools.combinations(range(len(true)), 2):
        (together if true[i] == true[j] else apart).append(round(float(alike[i, j]), 9))
    wins = [(a > b) + (a == b) / 2 for a in together for b in apart]
    return sum(wins) / len(wins)


@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 0.3, 1.0])] * 3), min_size=4, max_size=9),
    st.lists(st.integers(0, 2), min_size=9, max_size=9),
)
def test_auc_is_the_share_of_all_pairs_of_pairs_and_ties_count_half(p, groups):
    true = [0, 0, 1, *groups][: len(p)]  # a pair within a group and one between two
    alike = similarities(np.array(p))
    got = agreement(true, true, alike=alike, permutations=1).auc
    assert got == pytest.approx(area_by_pairs(alike, true), abs=1e-12)


def test_auc_of_constant_memberships_is_one_half_and_of_one_group_undefined():
    alike = similarities(np.full((6, 3), 0.5))
    flat = agreement(FOUND, TRUE, alike=alike, permutations=20)
    assert (flat.auc, flat.auc_p_value) == (0.5, 1.0)
    for true in ([0] * 6, range(6)):
        got = agreement(FOUND, list(true), alike=alike, permutations=1)
        assert (got.auc, got.auc_p_value) == (None, None)
    assert agreement(FOUND, TRUE, permutations=1).auc is None


def test_p_values_of_auc_and_information_are_shares_of_all_permutations():
    p = np.random.default_rng(3).random((6, 3))
    alike = similarities(p)
    got = agreement(FOUND, TRUE, alike=alike, permutations=1000)
    orders = [list(order) for order in itertools.permutations(range(6))]
    for value, p_value, every in (
        (got.auc, got.auc_p_value, [area_by_pairs(alike[o][:, o], TRUE) for o in orders]),
        (got.nmi, got.nmi_p_value,
         [information_by_counting([FOUND[i] for i in o], TRUE) for o in orders]),
    ):  # fmt: skip
        exact = np.mean(np.array(every) >= value - 1e-9)
        # five standard deviations of a share of 1000: false alarms below 1e-6
        assert p_value == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / 1000))


def test_p_values_of_auc_are_about_uniform_by_chance_and_small_for_the_truth():
    rng, true = np.random.default_rng(2), np.repeat(np.arange(5), 4)
    chance = []
    for seed in range(60):
        alike = similarities(rng.random((20, 4)))
        chance.append(agreement(true, true, alike=alike, permutations=19, seed=seed).auc_p_value)
    for level in (0.25, 0.5, 0.75):
        # 60 trials: 0.32 is five standard deviations at one half, false alarms below 1e-6
        assert np.mean(np.array(chance) <= level) == pytest.approx(level, abs=0.32)
    right = similarities(np.eye(5)[true] + rng.normal(0, 0.1, (20, 5)))
    assert agreement(true, true, alike=right, permutations=999).auc_p_value == 1 / 1000


def test_names_are_groups_as_well_as_numbers():
    named = agreement(FOUND, list("aabbcc"), permutations=50)
    assert named == agreement(FOUND, TRUE, permutations=50)


def test_groupings_of_different_classes_are_refused():
    with pytest.raises(ValueError, match="6 classes are grouped but 5 have a known group"):
        agreement(FOUND, TRUE[:5])


# --- number of groups ---------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_clear_groups_are_counted(groups):
    true = np.arange(20) % groups
    p = np.eye(groups)[true] * 0.8 + np.random.default_rng(0).normal(0.1, 0.02, (20, groups))
    assert natural_count(p, most=12) == groups
    assert natural_count(p, most=2) == 2


@pytest.mark.parametrize(
    ("p", "count"),
    [
        ([[1, 0], [0, 1], [1, 0]], 2),
        ([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8]], 2),  # the same side of the mean
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], 4),
        ([[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0, 0, 1]], 4),
        ([[0.5, 0.5]] * 3, 1),
    ],
)
def test_classes_are_told_apart_by_the_direction_from_the_mean(p, count):
    assert different_classes(np.array(p)) == count


def test_classes_that_are_all_alike_are_one_group():
    assert natural_count(np.full((6, 3), 0.5), most=5) == 1
    assert natural_count(np.eye(1), most=5) == 1


# --- two trainings ------------------------------------------------------------------------------


def correlation_by_hand(p, q) -> float:
    a, b = similarities(p), similarities(q)
    pairs = list(itertools.combinations(range(len(p)), 2))
    return float(np.corrcoef([a[i, j] for i, j in pairs], [b[i, j] for i, j in pairs])[0, 1])


def test_consistency_is_the_correlation_over_pairs_with_its_permutation_test():
    rng = np.random.default_rng(5)
    p = rng.random((6, 3))
    q = p + rng.normal(0, 0.5, (6, 3))
    got = consistency(p, q, permutations=1000)
    assert got.correlation == pytest.approx(correlation_by_hand(p, q))
    every = [correlation_by_hand(p, q[list(o)]) for o in itertools.permutations(range(6))]
    exact = np.mean(np.array(every) >= got.correlation - 1e-9)
    # five standard deviations of a share of 1000: false alarms below 1e-6, and the seed is fixed
    assert got.p_value == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / 1000))


def test_consistency_does_not_see_the_names_or_the_number_of_clusters():
    p = np.random.default_rng(6).random((10, 4))
    assert consistency(p, p[:, [2, 0, 3, 1]]).correlation == pytest.approx(1)
    wider = np.hstack([p, np.full((10, 2), 0.3)])  # two clusters that tell nothing apart
    assert consistency(p, wider).correlation == pytest.approx(1)


@pytest.mark.parametrize("classes", [1, 2, 6])
def test_consistency_with_a_training_that_tells_nothing_apart_is_zero(classes):
    p = np.random.default_rng(7).random((classes, 3))
    got = consistency(p, np.full((classes, 3), 0.5), permutations=10)
    assert (got.correlation, got.p_value) == (0, 1)


def test_the_digits_of_float32_tell_no_classes_apart():
    chance = np.random.default_rng(0)
    one_branch = np.repeat(chance.random((40, 1)), 6, axis=1).astype(np.float32)
    kept = one_branch * (1 + 1e-7 * chance.standard_normal((40, 6)))
    assert different_classes(kept.astype(np.float32)) == 2  # more than the mean, and less
