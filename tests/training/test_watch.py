"""Collapses in words."""

import pytest
import torch

from blockout.training import watch
from blockout.training.watch import collapses, distribution

CLASSES = ("cat", "dog", "fox")


def healthy() -> dict[str, torch.Tensor]:
    one = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    return {"P_0": one.repeat(50, 1), "P_1": one.repeat(50, 1), "P_2": one.repeat(2, 1)[:3]}


def test_healthy_memberships_and_no_memberships_are_not_talked_about():
    assert collapses(healthy(), CLASSES) == {}
    assert collapses({}, CLASSES) == {}


@pytest.mark.parametrize(
    ("name", "value", "key", "advice"),
    [
        ("P_1", 0.97, "P_1 near one", "--weight-decay"),
        ("P_1", 0.01, "P_1 near zero", "--membership-scale"),
        ("P_0", 0.01, "P_0 dead nodes", "--nodes"),
        ("P_2", 0.01, "classes without a cluster", "--membership-scale"),
    ],
)
def test_a_collapse_is_named_with_what_to_try(name, value, key, advice):
    p = healthy()
    p[name] = torch.full_like(p[name], value)
    said = collapses(p, CLASSES)
    assert key in said and advice in said[key]


def test_the_lost_class_is_named_and_a_few_dead_nodes_are_not():
    p = healthy()
    p["P_2"][1] = 0.0
    p["P_1"][:20] = 0.0
    said = collapses(p, CLASSES)
    assert list(said) == ["classes without a cluster"]
    assert "1 of 3 classes" in said["classes without a cluster"]
    assert "(dog)" in said["classes without a cluster"]


def test_the_distribution_counts_every_membership():
    found = distribution(torch.tensor([[0.0, 1.0], [0.5, 0.51]]))
    assert sum(found["histogram"]) == 4
    assert found["histogram"][0] == found["histogram"][-1] == 1
    assert found["histogram"][25] == 2
    assert found["quartiles"] == pytest.approx([0.375, 0.505, 0.6325], abs=1e-4)


def test_branches_without_classes_or_nodes_are_starved():
    hidden, last, classes = torch.zeros(60, 3), torch.zeros(6, 3), tuple("abcdef")
    hidden[:, 0], hidden[:30, 1], hidden[:1, 2] = 0.5, 1, 1
    last[:, 0], last[:2, 2] = 1, 1
    (said,) = watch.starved({"P_0": hidden, "P_1": last}, classes).values()
    assert "2 of 3 branches are starved" in said and "try --clusters 1" in said
    assert "3 has 1 of 60 nodes in P_0" in said and "2 serves no class" in said
    last[3, 1], hidden[:2, 2] = 1, 1  # a tenth of an equal share
    assert watch.starved({"P_0": hidden, "P_1": last}, classes) == {}
    assert watch.starved({"P_0": torch.zeros(8, 1)}, ("a",)) == {} == watch.starved({}, ())


def test_a_branch_that_few_classes_do_not_need_is_not_starved():
    hidden, last = torch.zeros(60, 3), torch.zeros(4, 3)
    hidden[:, :2], last[:2, 0], last[2:, 1] = 1, 1, 1
    assert watch.starved({"P_0": hidden, "P_1": last}, tuple("abcd")) == {}
    hidden[:, 1] = 0
    (said,) = watch.starved({"P_0": hidden, "P_1": last}, tuple("abcd")).values()
    assert "1 of 3 branches are starved (2 has 0 of 60 nodes in P_0)" in said
