"""Collapses in words."""

import pytest
import torch

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
