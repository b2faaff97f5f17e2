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


def rows(images, first: int, last: int) -> MemorySplit:
    """Some of the images that can be trained on."""
    index = torch.arange(first, last)
    return MemorySplit(images.train._images, index, index % 4, (0.5,) * 3, (0.5,) * 3)


def test_a_small_hold_out_tiny_classes_and_a_tiny_test_are_doubted():
    images = make_images()
    held, tested = doubts(images)
    assert held.startswith("only 19 images are held out") and "--holdout 0.2" in held
    assert tested.startswith("only 21 images are in the test") and "5 points" in tested
    assert tested.endswith("add photographs, or test a larger share with --test-share")
    few = doubts(replace(images, train=rows(images, 0, 9)))[1]
    assert "4 of 4 classes have fewer than 5" in few
    assert few.endswith("for training with --holdout 0 and a lower --test-share")


def test_enough_images_are_not_doubted():
    images = make_images(train=300)
    large = replace(images, holdout=rows(images, 0, 200), test=rows(images, 200, 250))
    assert doubts(large) == []


def test_a_division_that_no_flag_changes_is_mended_by_photographs():
    images = make_images()
    own = replace(images, own_holdout=True, own_test=True, train=rows(images, 0, 9))
    held, few, tested = doubts(own)
    assert held.endswith("add images to val/") and few.endswith("); add photographs")
    assert tested.endswith("add photographs to test/")
    one_each = rows(images, 0, 4)
    two = replace(images, train=one_each, holdout=rows(images, 0, 0), test=one_each)
    assert [text.rpartition("; ")[2] for text in doubts(two)] == ["add photographs"] * 3


def test_an_empty_hold_out_is_doubted_unless_it_was_asked_for():
    images = make_images()
    images = replace(images, holdout=rows(images, 0, 0), test=rows(images, 0, 50))
    (said,) = doubts(images)
    assert said.startswith("no image is held out") and said.endswith("with --holdout")
    assert doubts(images, holdout=0) == []
