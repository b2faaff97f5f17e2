import numpy as np
import pytest

from blockout.show.groups import groups_to_show, known_groups, learned_groups, tree_of
from blockout.structure.groups import class_groups

from .made import HALVES, made_run

MIXED = [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_learned_groups_are_those_of_the_structure():
    run = made_run(MIXED)
    found = learned_groups(run)
    by_name = dict(zip(found.names, map(sorted, found.members), strict=True))
    assert by_name == {g.name: list(g.members) for g in run.structure.class_groups}
    assert found.learned and sorted(found.order) == [0, 1, 2, 3]
    assert found.of_class[0] == found.of_class[2] != found.of_class[1] == found.of_class[3]


def test_known_groups_are_those_of_the_data():
    found = known_groups(made_run(groups=(1, 0, 1, 1)))
    assert found.names == ("known 0", "known 1")
    assert found.members == ((1,), (0, 2, 3))
    assert found.starts == [0, 1, 4]
    assert known_groups(made_run()) is None


def test_without_blockout_the_known_groups_are_shown_and_without_these_all_in_one():
    assert groups_to_show(made_run(MIXED, groups=(0, 0, 1, 1))).learned
    assert groups_to_show(made_run(None, groups=(0, 0, 1, 1))).members == ((0, 1), (2, 3))
    assert groups_to_show(made_run(None)).members == ((0, 1, 2, 3),)


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
