"""Images to look at: copies of training images in the test, and labels that look wrong."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from blockout.data import MemorySplit
from blockout.data.features import FeatureSplit
from blockout.runs import Run, RunError
from blockout.runs import folder as files
from blockout.training import checks as module
from blockout.training import train
from blockout.training.checks import checked, table, write_checks
from blockout.training.evaluation import Evaluation

from .conftest import HALF, make_config, make_images, make_net

NOTHING = torch.empty(0)


def with_features(images, changed=()):
    """What a good trunk would say of the images; the labels of some training images are wrong."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 32))

    def split(some, wrong=()):
        rows = centres[some.labels] + 0.3 * rng.normal(size=(len(some), 32))
        views = torch.from_numpy(rows[:, None].astype(np.float32)).repeat(1, 3, 1)
        labels = some.labels.clone()
        labels[list(wrong)] = (labels[list(wrong)] + 1) % 4
        twin = MemorySplit(some._images, some._rows, labels, HALF, HALF)
        return FeatureSplit(views, twin)

    return replace(
        images,
        train=split(images.train, changed),
        holdout=split(images.holdout),
        test=split(images.test),
    )


def saying(classes) -> dict[str, Evaluation]:
    """A network that takes the test images for these classes."""
    return {"test": Evaluation(0.0, 0.0, 1.0, torch.as_tensor(classes)[:, None], NOTHING)}


def copied(images, places, of, noise=0):
    """Test images that are copies of training images, but for some noise."""
    pixels, rows = images.test._images.clone(), images.test._rows
    source = pixels[images.train._rows[of]].int()
    change = torch.randint(-noise, noise + 1, source.shape) if noise else 0
    pixels[rows[places]] = (source + change).clamp(0, 255).byte()
    test = MemorySplit(pixels, rows, images.test.labels, HALF, HALF)
    return replace(images, test=test)


def test_equal_files_are_found_without_features_and_the_rest_is_said_to_be_skipped():
    images = copied(make_images(), [2, 5], [10, 7])
    found = checked(images, {})
    of = {(c.test, c.train): (c.exact, c.test_label == c.train_label) for c in found.copies}
    names = images.test.pictures.name, images.train.pictures.name
    same = [int(images.test.labels[t]) == int(images.train.labels[i]) for t, i in ((2, 10), (5, 7))]
    assert of == {
        (names[0](2), names[1](10)): (True, same[0]),
        (names[0](5), names[1](7)): (True, same[1]),
    }
    assert found.copies_found == 2 and "features of a frozen trunk" in found.skipped


def test_near_copies_are_found_where_features_and_pixels_agree():
    images = with_features(copied(make_images(), [4], [9], noise=6))
    images.test.features[4] = images.train.features[9]
    found = checked(images, saying(images.test.labels))
    (near,) = found.copies
    assert not near.exact and near.similarity == 1 and not found.skipped
    assert near.test == images.test.pictures.name(4) and near.train == images.train.pictures.name(9)


def test_an_exact_copy_is_not_listed_again_as_a_near_one():
    images = with_features(copied(make_images(), [4, 6], [9, 3]))
    images.test.features[[4, 6]] = images.train.features[[9, 3]]
    found = checked(images, saying(images.test.labels))
    names = images.test.pictures.name, images.train.pictures.name
    listed = {(c.test, c.train, c.exact) for c in found.copies}
    assert listed == {(names[0](4), names[1](9), True), (names[0](6), names[1](3), True)}
    assert found.copies_found == 2


def test_wrong_training_labels_are_listed_beside_an_image_of_the_class_they_look_like():
    images = with_features(make_images(), changed=[6, 33])
    found = checked(images, saying(images.test.labels))
    names = {images.train.pictures.name(i): i for i in range(len(images.train))}
    assert {names[d.image] for d in found.doubts} == {6, 33} and found.doubts_found == 2
    for doubt in found.doubts:
        place = names[doubt.image]
        assert doubt.part == "train" and doubt.label == images.train.labels[place]
        assert doubt.looks_like == (doubt.label - 1) % 4
        assert images.train.labels[names[doubt.beside]] == doubt.looks_like


def test_a_test_label_is_doubted_only_if_the_network_agrees():
    images = with_features(make_images())
    right = images.test.labels.clone()
    images.test.labels[3] = (right[3] + 1) % 4
    (doubt,) = checked(images, saying(right)).doubts
    assert (doubt.part, doubt.image) == ("test", images.test.pictures.name(3))
    assert not checked(images, saying(images.test.labels)).doubts


def test_long_lists_are_cut_and_the_total_is_said(monkeypatch):
    monkeypatch.setattr(module, "LISTED", 1)
    images = with_features(copied(make_images(), [2, 5], [10, 7]), changed=[6, 33])
    found = checked(images, saying(images.test.labels))
    assert (len(found.copies), len(found.doubts)) == (1, 1)
    assert found.copies_found == 2 and found.doubts_found >= 2


def test_large_sets_are_searched_for_equal_files_only_and_slow_ones_say_so(monkeypatch):
    images, said = with_features(copied(make_images(), [2], [10])), []
    monkeypatch.setattr(module, "SLOW", 1)
    assert not checked(images, saying(images.test.labels), said.append).skipped
    assert said == ["looking for copies and wrong labels among 120 images ..."]
    monkeypatch.setattr(module, "MOST_COMPARED", 100)
    found = checked(images, saying(images.test.labels), said.append)
    assert "there are 120 images, more than 100" in found.skipped
    assert found.copies_found == 1 and len(said) == 1


def test_the_table_names_images_and_classes(tmp_path):
    images = with_features(copied(make_images(), [2], [10]), changed=[6])
    write_checks(tmp_path, images, saying(images.test.labels))
    rows = list(csv.DictReader((tmp_path / files.CHECKS_TABLE).read_text().splitlines()))
    assert rows[0]["problem"] == "exact copy" and rows[0]["part"] == "test"
    assert rows[0]["other_image"] == images.train.pictures.name(10)
    wrong = [row for row in rows if row["problem"] == "label looks wrong"]
    label = int(images.train.labels[6])
    assert images.train.pictures.name(6) in [row["image"] for row in wrong]
    assert images.classes[label] in [row["label"] for row in wrong]
    assert len(table(checked(images, {}), images.classes).splitlines()) >= len(rows)


def test_a_run_without_anything_to_look_at_has_no_table_and_an_older_one_no_file(tmp_path):
    folder = train(make_config(tmp_path / "run"), model=make_net(), data=make_images())
    run = Run.open(folder)
    assert run.checks is not None and not run.checks.copies and not run.checks.doubts
    assert not (folder / files.CHECKS_TABLE).exists()
    (folder / files.CHECKS).unlink()
    with pytest.raises(RunError, match=r"checks\.json is missing"):
        Run.open(folder)
    digests = (folder / "digests.txt").read_text().splitlines()
    kept = [line for line in digests if not line.endswith(files.CHECKS)]
    (folder / "digests.txt").write_text("\n".join(kept) + "\n")
    assert Run.open(folder).checks is None
