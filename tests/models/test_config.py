"""blockout.models.config: wrong values name their flag, open ones become the paper's."""

import ast
import dataclasses
import inspect
import itertools

import pytest

from blockout.models import ModelConfig, paper_defaults, resolved


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "blokout"}, "--method must be one of baseline, fc, dropout, .* got 'blokout'"),
        (
            {"trunk": ""},
            "--trunk must be auto, inception-small, inception-bn, .* got an empty name",
        ),
        ({"width": 0.0}, "--width must be positive and at most 100, got 0"),
        ({"width": float("nan")}, "--width must be positive and at most 100, got nan"),
        ({"nodes": 0}, "--nodes must be at least 1, got 0"),
        ({"clusters": 0}, "--clusters must be at least 1, got 0"),
        ({"dropout": 1.0}, r"--dropout must lie in \[0, 1\), got 1"),
        ({"dropout": -0.1}, r"--dropout must lie in \[0, 1\), got -0.1"),
    ],
)
def test_a_wrong_value_names_its_flag(wrong, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**wrong)


@pytest.mark.parametrize(
    ("name", "nodes", "clusters", "dropout"),
    [
        ("cifar100", 512, 6, 0.3),
        ("uoft-cs/cifar100", 512, 6, 0.3),
        ("cifar10", 512, 2, 0.5),
        ("imagenet", 4096, 6, 0.5),
        ("ILSVRC/imagenet-1k", 4096, 6, 0.5),
        ("/data/ImageNet/", 4096, 6, 0.5),
        ("shapes", 512, 6, 0.5),
        ("my/cifar100-like", 512, 6, 0.5),
    ],
)
def test_open_values_become_those_of_section_7(name, nodes, clusters, dropout):
    assert paper_defaults(name) == (nodes, clusters, dropout)
    full = resolved(ModelConfig(), name, 32)
    assert (full.nodes, full.clusters, full.dropout) == (nodes, clusters, dropout)


@pytest.mark.parametrize(
    ("name", "classes", "clusters"),
    [("photos", 81, 6), ("photos", 5, 5), ("photos", 2, 2), ("cifar100", 3, 6), ("cifar10", 10, 2)],
)
def test_there_are_no_more_clusters_than_classes_on_data_of_your_own(name, classes, clusters):
    assert resolved(ModelConfig(), name, 32, classes).clusters == clusters
    assert resolved(ModelConfig(clusters=9), name, 32, classes).clusters == 9


def test_values_that_were_chosen_stay():
    chosen = ModelConfig(
        "dropout", "inception-bn", 0.25, False, 7, 3, False, False, dropout=0.0, freeze_trunk=True
    )
    assert resolved(chosen, "cifar100", 32) == chosen


@pytest.mark.parametrize(
    ("data", "image_size", "trunk"),
    [
        ("photos", 28, "inception-small"),
        ("photos", 64, "inception-small"),
        ("photos", 65, "efficientnet-lite0"),
        ("photos", 224, "efficientnet-lite0"),
        ("imagenet", 224, "inception-bn"),
    ],
)
def test_auto_chooses_the_trunk_by_image_size(data, image_size, trunk):
    assert resolved(ModelConfig(), data, image_size).trunk == trunk


def test_auto_does_without_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert resolved(ModelConfig(), "photos", 224).trunk == "inception-bn"


@pytest.mark.parametrize(
    ("trunk", "given", "frozen"),
    [
        ("efficientnet-lite1", None, True),
        ("someone/some-model", None, True),
        ("inception-bn", None, False),
        ("efficientnet-lite0", False, False),
        ("inception-small", True, True),
    ],
)
def test_pretrained_trunks_are_frozen_unless_you_say_otherwise(trunk, given, frozen):
    config = ModelConfig(trunk=trunk, freeze_trunk=given)
    assert resolved(config, "photos", 224).freeze_trunk is frozen


def test_resolving_twice_changes_nothing():
    once = resolved(ModelConfig(), "imagenet", 224)
    assert resolved(once, "cifar10", 32) == once


def test_every_field_has_a_help_text_and_cannot_be_changed():
    body = ast.parse(inspect.getsource(ModelConfig)).body[0].body
    helped = {
        field.target.id
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    assert helped == {field.name for field in dataclasses.fields(ModelConfig)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().width = 1.0
