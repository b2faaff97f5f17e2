import numpy as np
import pytest

from blockout.analysis import class_groups
from blockout.report.tree import tree_of

from .made import HALVES


def test_the_same_memberships_join_at_zero_and_opposite_ones_at_two():
    tree = tree_of(HALVES)
    assert tree.heights == pytest.approx([0, 0, 2])
    assert sorted(map(sorted, tree.below[4:6])) == [[0, 1], [2, 3]]


def test_averages_of_distances_decide():
    p = np.array([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    centred = p - p.mean(0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    far = 1 - unit @ unit.T
    tree = tree_of(p)
    assert tree.heights[0] == pytest.approx(far[np.triu_indices(3, 1)].min())
    assert tree.heights.sum() - tree.heights[0] == pytest.approx(
        sorted(far[np.triu_indices(3, 1)])[1:] @ np.array([0.5, 0.5])
    )


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_a_structure_are_never_torn_apart(seed):
    p = np.random.default_rng(seed).random((30, 4)).round(1)
    found = class_groups(p, 6)[tree_of(p).leaves]
    assert (np.diff(found) != 0).sum() == 5


def test_a_single_class_and_a_thousand_alike_are_trees_too():
    assert tree_of(np.ones((1, 3))).leaves == [0]
    assert sorted(tree_of(np.ones((1000, 2))).leaves) == list(range(1000))
