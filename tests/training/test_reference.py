"""What a result stands beside, and what is said when it goes badly."""

from dataclasses import replace

import torch

from blockout.data import MemorySplit
from blockout.data.features import FeatureSplit
from blockout.models import ModelConfig
from blockout.training import OptimisationConfig, TrainConfig
from blockout.training.evaluation import Evaluation
from blockout.training.reference import chance_accuracy, linear_reference
from blockout.training.watch import doubts, verdict

from .conftest import make_images

NOTHING = torch.empty(0)


def scores(accuracy: float, classes=NOTHING) -> Evaluation:
    return Evaluation(accuracy, accuracy, 1.0, classes, NOTHING)


def with_labels_as_features(images):
    """Features that a linear classifier separates perfectly."""

    def split(some):
        return FeatureSplit(torch.nn.functional.one_hot(some.labels, 4)[:, None].float(), some)

    return replace(images, train=split(images.train), test=split(images.test))


def test_a_linear_classifier_learns_features_that_are_linear():
    images = with_labels_as_features(make_images())
    config = TrainConfig(optimisation=OptimisationConfig(steps=60, batch_size=16, lr=0.5))
    trunk = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 4))
    found = linear_reference(config, images, 60, trunk)
    assert found is not None and found.accuracy == 100
    baseline = replace(config, model=ModelConfig(method="baseline"))
    assert linear_reference(baseline, images, 60) is None
    assert linear_reference(config, make_images(), 60) is None


def test_chance_is_the_share_of_the_most_frequent_training_class():
    images = make_images()

    def split(*labels: int) -> MemorySplit:
        rows = torch.arange(len(labels))
        return MemorySplit(images.train._images, rows, torch.tensor(labels), (0.5,) * 3, (0.5,) * 3)

    changed = replace(images, train=split(2, 2, 1, 0, 3), test=split(1, 1, 1, 2))
    assert chance_accuracy(changed) == 25, "who guesses does not know the test"


def test_a_head_that_misses_a_linear_classifier_is_told_so():
    assert "use --method baseline" in next(
        iter(verdict({"test": scores(60), "linear": scores(61)}, 99.0).values())
    )
    assert not verdict({"test": scores(60), "linear": scores(60.4)}, 99.0)


def test_a_linear_classifier_that_is_ahead_by_chance_is_not_recommended():
    """Of 400 images 16 are named differently: two points are two standard errors."""
    ours, other = torch.zeros(400, 1), torch.zeros(400, 1)
    other[:16] = 1
    for ahead, said in ((1.5, []), (2.5, ["worse than linear"])):
        final = {"test": scores(90, ours), "linear": scores(90 + ahead, other)}
        assert list(verdict(final, 99.0)) == said


def test_a_network_that_has_not_learned_its_training_images_is_told_so():
    assert list(verdict({"test": scores(40)}, 50.0)) == ["not learned"]
    assert not verdict({"test": scores(40)}, 90.0)
    assert not verdict({"test": scores(40), "holdout": scores(80)}, 50.0), "drawn, it knew less"


def test_a_pretrained_trunk_is_not_recommended_to_those_who_have_one():
    text = verdict({"test": scores(40)}, 50.0, pretrained=True)["not learned"]
    assert "--epochs" in text and "--trunk" not in text


def test_a_small_validation_split_of_the_data_is_not_mended_by_a_flag():
    images = replace(make_images(), own_holdout=True)
    assert doubts(images)[0].endswith("partly chance; add images to val/")


def test_a_small_hold_out_and_tiny_classes_are_doubted():
    said = doubts(make_images())
    assert "only 19 images are held out" in said[0] and len(said) == 1
    images = make_images()
    few = MemorySplit(
        images.train._images, torch.arange(9), torch.arange(9) % 4, (0.5,) * 3, (0.5,) * 3
    )
    assert "4 of 4 classes have fewer than 5" in doubts(replace(images, train=few))[1]
