"""Heads on features: which images, which numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from blockout.data.features import FeatureSplit
from blockout.reproduce.hierarchies import give_probability
from blockout.reproduce.transfer import accuracy, confusion_of, some, train_head
from blockout.runs.config import TrainConfig

from ..training.conftest import make_images


@pytest.fixture
def data():
    """Four classes; the features of an image are its class and a number of its own."""
    images = make_images(train=200)
    counted = iter(range(1, 10_000))

    def split(one):
        own = torch.tensor([[next(counted) / 1e4] for _ in one.labels])
        known = torch.nn.functional.one_hot(one.labels, 4).float()
        return FeatureSplit(torch.cat([known, own], 1)[:, None], one)

    return replace(images, **{k: split(getattr(images, k)) for k in ("train", "holdout", "test")})


def config_for(data, **flags) -> TrainConfig:
    usual = {"trunk": "efficientnet-lite0", "nodes": 16, "clusters": 2, "steps": 40, "paper": True}
    return TrainConfig.from_flat(usual | flags).for_images(data)


def test_some_images_are_so_many_of_each_class_and_others_with_another_seed(data):
    one, again, other = (some(data, 6, seed) for seed in (1, 1, 2))
    assert one.train.labels.bincount().tolist() == [6] * 4
    assert (one.train.features[:, 0, :4].argmax(1) == one.train.labels).all()
    assert torch.equal(one.train.features, again.train.features)
    assert not torch.equal(one.train.features, other.train.features)
    assert one.test is data.test and one.holdout is data.holdout
    assert some(data, None, 1) is data


def test_a_curve_ends_with_the_accuracy_of_the_head_and_looking_changes_nothing(data):
    config = config_for(data, lr=0.5)
    often, once = (train_head(config, data, points=points) for points in (10, 1))
    assert often.curve.steps == list(range(4, 41, 4)) and once.curve.steps == [40]
    assert often.curve.test[-1] == pytest.approx(accuracy(often.head, data.test))
    assert np.mean(often.curve.loss) == pytest.approx(once.curve.loss[0], abs=1e-5)
    for a, b in zip(often.head.parameters(), once.head.parameters(), strict=True):
        assert torch.equal(a, b)
    assert often.curve.test[-1] > 90 > often.curve.loss[0] > often.curve.loss[-1]


def test_a_head_is_prepared_before_it_trains(data):
    config = config_for(data, learned=False)
    seen = []
    trained = train_head(
        config, data, lambda head: (give_probability(head, 0.8), seen.append(head))
    )
    assert seen == [trained.head] and trained.head.fc2.inputs.probabilities.unique().tolist() == (
        pytest.approx([0.8])
    )


def test_confusions_say_how_probable_classes_look_and_leave_the_test_alone(data):
    def head(x):
        assert (x[:, 4] < first_of_test).all()
        return 100 * x[:, [1, 0, 2, 3]]  # takes 0 for 1, and 1 for 0

    first_of_test = data.test.features[:, 0, 4].min()
    assert np.allclose(confusion_of(head, data), np.eye(4)[[1, 0, 2, 3]])
