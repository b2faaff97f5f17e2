"""Hierarchies that are fixed beforehand."""

import numpy as np
import torch

from blockout.layers import memberships_of
from blockout.models import Head
from blockout.reproduce import hierarchies

PAIRS = np.kron(np.eye(3), np.full((2, 2), 0.4)) + 0.03
"""Three pairs of classes that are confused within each pair."""


def sets(groups) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(np.asarray(groups) == g).tolist()) for g in set(groups)}


def test_classes_that_are_confused_are_grouped():
    order = np.array([0, 2, 4, 1, 3, 5])
    found = hierarchies.confused_groups(PAIRS[np.ix_(order, order)], 3)
    assert sets(found) == {frozenset({0, 3}), frozenset({1, 4}), frozenset({2, 5})}


def test_superclasses_are_merged_whole_by_their_confusions():
    confusion = np.full((6, 6), 0.01)
    for a, b, value in [(0, 1, 0.4), (2, 3, 0.4), (4, 5, 0.4), (2, 4, 0.15), (2, 5, 0.15),
                        (3, 4, 0.15), (3, 5, 0.15)]:  # fmt: skip
        confusion[a, b] = confusion[b, a] = value
    alone = hierarchies.confused_groups(confusion, 2)
    assert sets(alone) == {frozenset({0, 1}), frozenset({2, 3, 4, 5})}
    superclasses = np.array([0, 1, 0, 1, 2, 2])  # which that would tear apart
    found = hierarchies.merged_groups(superclasses, confusion, 2)
    assert sets(found) == {frozenset({0, 1, 2, 3}), frozenset({4, 5})}


def test_random_groups_keep_the_sizes_and_follow_the_seed():
    groups = np.repeat([0, 1, 2], [12, 5, 3])
    one, again, other = (hierarchies.shuffled_groups(groups, seed) for seed in (1, 1, 2))
    assert np.bincount(one).tolist() == [12, 5, 3]
    assert (one == again).all() and (one != other).any() and (one != groups).any()


def test_a_given_head_connects_what_shares_a_group_and_nothing_else():
    head = Head(4, 4, nodes=8, clusters=2, hard=False, learned=False)
    hierarchies.give(head, np.array([0, 0, 0, 1]))
    p0, p1, p2 = (m.probabilities for m in memberships_of(head).values())
    assert p2.tolist() == [[1, 0], [1, 0], [1, 0], [0, 1]]
    assert p0.sum(0).tolist() == p1.sum(0).tolist() == [6, 2]
    weight = head.classifier.expected_weight()
    assert ((weight != 0) == (p2 @ p1.T > 0)).all()
    head.train()
    x = torch.randn(16, 4)
    assert torch.equal(head.fc2(head.fc1(x)), head.fc2(head.fc1(x)))  # nothing is drawn


def test_fixed_memberships_take_another_probability_and_the_scale_that_fits():
    torch.manual_seed(0)
    head = Head(64, 10, nodes=256, clusters=6, learned=False)
    usual = head.fc2.weight.std()
    hierarchies.give_probability(head, 0.8)
    assert all((m.probabilities == 0.8).all() for m in memberships_of(head).values())
    # thicker masks need smaller weights for the output variance of a plain layer
    plain = 1 / (3 * 256) ** 0.5
    mask = 0.8**4 + 0.8**2 * (1 - 0.8**2) / 6
    assert head.fc2.weight.std() < usual
    torch.testing.assert_close(head.fc2.weight.std().item(), plain / mask**0.5, rtol=0.05, atol=0)
