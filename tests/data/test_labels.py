"""Labels that look wrong are found, and few others; no label judges itself."""

import numpy as np
import pytest

from blockout.data import labels as module
from blockout.data.labels import LabelJudge


def clusters(per: int = 30, classes: int = 6, spread: float = 0.25, seed: int = 0):
    """Features around a centre per class, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(per * classes) % classes
    centres = rng.normal(size=(classes, 48)) / 7
    rows = centres[labels] + spread * rng.normal(size=(len(labels), 48)) / 7
    return rows.astype(np.float32), labels


def test_changed_labels_are_found_with_the_class_they_come_from_and_nothing_else():
    features, truth = clusters()
    labels = truth.copy()
    labels[[3, 50, 111]] = (truth[[3, 50, 111]] + 2) % 6
    found = LabelJudge(features, labels, 6).known()
    assert found.places.tolist() == [3, 50, 111]
    assert found.looks_like.tolist() == truth[[3, 50, 111]].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_label_is_found_in_a_set_of_thirty_images(seed: int):
    """Whose features have much in common, as those of photographs have: classes score little."""
    features, truth = clusters(per=10, classes=3, seed=seed)
    labels = truth.copy()
    labels[4] = (truth[4] + 1) % 3
    judge = LabelJudge(features + 0.45, labels, 3)
    assert judge.average.max() < 0.3 and judge.known().places.tolist() == [4]


def test_other_images_are_judged_by_the_same_rule():
    features, truth = clusters()
    labels = truth[120:].copy()
    labels[7] = (labels[7] + 1) % 6
    judge = LabelJudge(features[:120], truth[:120], 6)
    assert judge.others(features[120:], labels).places.tolist() == [7]


def test_scores_are_those_of_a_classifier_that_was_fitted_without_the_image():
    features, labels = clusters(per=6, classes=3, spread=1.0)
    judge = LabelJudge(features, labels, 3)
    ((_, fast),) = judge._left_out()
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    targets = np.eye(3)[labels] - judge.shares
    for i in range(len(labels)):
        rest = np.arange(len(labels)) != i
        x, y = unit[rest].astype(np.float64), targets[rest]
        centre, level = x.mean(0), y.mean(0)
        gram = (x - centre).T @ (x - centre) + module.RIDGE * np.eye(48)
        weights = np.linalg.solve(gram, (x - centre).T @ (y - level))
        wanted = (unit[i] - centre) @ weights + level
        np.testing.assert_allclose(fast[i], wanted, atol=1e-6)


def test_features_that_say_nothing_raise_no_doubts():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(300, 64)), rng.integers(0, 5, 300)
    assert len(LabelJudge(features, labels, 5).known().places) == 0


def test_an_image_of_nothing_known_is_not_said_to_look_like_a_class():
    """It does not look like its label, but like no other class either."""
    features, labels = clusters()
    strange = np.random.default_rng(1).normal(size=(200, 48))
    judge = LabelJudge(features, labels, 6)
    assert judge.others(strange, np.arange(200) % 6).places.tolist() == []


def test_an_image_that_also_looks_like_its_label_is_not_doubted():
    """It shows two things; of two labels that fit, one is no mistake."""
    features, labels = clusters()
    centre, other = (features[labels == label].mean(0) for label in (0, 1))
    judge = LabelJudge(features, labels, 6)
    found = judge.others(np.stack([other, other + centre / 2]), np.array([0, 0]))
    assert found.places.tolist() == [0] and found.looks_like.tolist() == [1]


def test_it_makes_no_difference_how_many_rows_are_computed_at_once(monkeypatch):
    features, labels = clusters(spread=0.8)
    labels[::9] = (labels[::9] + 1) % 6
    whole = LabelJudge(features, labels, 6).known()
    monkeypatch.setattr(module, "ROWS", 7)
    parts = LabelJudge(features, labels, 6).known()
    assert whole.places.tolist() == parts.places.tolist() != []
    assert parts.typical == pytest.approx(whole.typical)
