import numpy as np
import pytest

from blockout.show.mistakes import Weakness, confused_pairs, nearness, row_shares, weakest_classes

from .made import made_run


def test_pairs_count_both_directions_the_worst_first():
    run = made_run()
    within = [(pair.classes, pair.count) for pair in confused_pairs(run, True, 9)]
    between = [(pair.classes, pair.count) for pair in confused_pairs(run, False, 9)]
    assert within == [((0, 1), 4), ((2, 3), 3)]
    assert between == [((1, 3), 3), ((0, 2), 1)]
    assert confused_pairs(run, True, 1)[0].classes == (0, 1)


def test_the_weakest_classes_come_with_what_they_are_taken_for():
    counts = [[6, 3, 1, 0], [1, 8, 0, 1], [0, 0, 10, 0], [0, 4, 4, 12]]
    found = weakest_classes(made_run(None, confusion=counts), 9)
    # equally weak: the one with more test images first; oak has no mistakes
    assert found == [
        Weakness(3, 60.0, 20, 1), Weakness(0, 60.0, 10, 1), Weakness(1, 80.0, 10, 0),
    ]  # fmt: skip
    assert weakest_classes(made_run(None, confusion=counts), 9, below=60.0) == []
    untested = [[0, 0, 0, 0], *counts[1:]]
    found = weakest_classes(made_run(None, confusion=untested), 9, below=np.inf)
    assert [weak.number for weak in found] == [3, 1, 2] and found[-1].taken_for is None


def test_images_are_those_of_the_mistakes_the_most_certain_first():
    run = made_run()
    assert confused_pairs(run, True, 1)[0].images == (6, 7, 8, 10)
    shuffled = run.predictions._replace(probabilities=run.predictions.probabilities[::-1])
    object.__setattr__(run, "predictions", shuffled)
    assert confused_pairs(run, True, 1)[0].images == (10, 8, 7, 6)


def test_many_classes_share_cells_that_hold_all_their_images():
    counts = np.random.default_rng(0).integers(0, 5, (600, 600))
    order = np.random.default_rng(1).permutation(600).tolist()
    shares = row_shares(counts, order, 300)
    assert shares.shape == (300, 300)
    rows, columns = order[14:16], order[200:202]
    expected = 100 * counts[np.ix_(rows, columns)].sum() / counts[rows].sum()
    assert shares[7, 100] == pytest.approx(expected)


def test_a_row_without_images_is_empty():
    assert row_shares(np.array([[0, 0], [1, 1]]), [0, 1], 9).tolist() == [[0, 0], [50, 50]]


def test_mistakes_within_the_group_are_counted():
    counts = np.array([[6, 3, 1, 0], [1, 8, 0, 1], [0, 0, 9, 1], [0, 2, 2, 6]])
    found = nearness(counts, np.array([0, 0, 1, 1]))
    assert found.within == pytest.approx((3 + 1 + 1 + 2) / 11)
    assert found.by_chance == pytest.approx(1 / 3)  # one of the three other classes


def test_random_groups_of_the_same_sizes_decide_what_is_chance():
    counts = np.kron(np.eye(10, dtype=int), np.ones((4, 4), dtype=int))
    group = np.repeat(np.arange(10), 4)
    assert nearness(counts, group).p_value == pytest.approx(1 / 1001)
    rng = np.random.default_rng(0)
    assert nearness(counts, rng.permutation(group)).p_value > 0.01
    averaged = [nearness(counts, rng.permutation(group), 1).within for _ in range(300)]
    # the mean of 300 shares; each deviates by 0.04
    assert np.mean(averaged) == pytest.approx(nearness(counts, group, 1).by_chance, abs=0.015)
