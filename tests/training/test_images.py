"""The images of a run: what its trunk calls alike stays on one side, and features are kept."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blockout.data import DataConfig
from blockout.data.duplicates import copies
from blockout.data.folders import list_folder
from blockout.models import ModelConfig
from blockout.runs import TrainConfig
from blockout.training import OptimisationConfig, RunConfig, train
from blockout.training import images as module
from blockout.training.images import training_images, trunk_grouping

FROZEN = ModelConfig(trunk="efficientnet-lite0", freeze_trunk=True)


def say(text: str) -> None:
    pass


@pytest.fixture
def photographs(tmp_path):
    """Two classes of ten photographs; in each, the first three are of one burst."""
    rng = np.random.default_rng(0)
    for name in ("dark", "light"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        burst = None
        for i in range(10):
            small = rng.integers(0, 255, (5, 6, 3), dtype=np.uint8)
            burst = small if burst is None else burst
            image = Image.fromarray(burst if i < 3 else small).resize((150, 130))
            image.save(tmp_path / "photos" / name / f"{i}.jpg", quality=95 - 5 * i)
    return tmp_path / "photos"


@pytest.fixture
def config(photographs, tmp_path):
    return DataConfig(str(photographs), image_size=224, cache=tmp_path / "cache", workers=0)


def grouped(config, monkeypatch, features=None):
    """Groups of the photographs; ``features`` stand in for what the trunk says."""
    table = list_folder(Path(config.data)).open()
    if features is not None:
        monkeypatch.setattr(module, "_features", lambda *given: features)
    grouping = trunk_grouping(FROZEN, config, say)
    assert grouping is not None
    return grouping(table.rows, table.catalogue.labels).groups


def test_a_burst_is_one_group_by_what_the_trunk_says(config, monkeypatch):
    groups = grouped(config, monkeypatch)
    for first in (0, 10):
        assert len(set(groups[first : first + 3])) == 1
        assert len(set(groups[first : first + 10])) >= 4, "the others are not all one burst"
    assert not set(groups[:10]) & set(groups[10:])
    assert list((config.cache_folder / "features").iterdir()), "training finds them there"


@pytest.mark.parametrize(("alike", "together"), [(0.95, False), (0.85, True)])
def test_images_are_alike_if_they_are_as_alike_as_crops(config, monkeypatch, alike, together):
    cosine = 0.9  # of the first two; all others are at right angles
    whole = np.eye(20, dtype=np.float32)
    whole[1, :2] = cosine, np.sqrt(1 - cosine**2)
    crops = np.zeros((4, 3, 20), np.float32)
    crops[:, 0, 0], crops[:, 2, 0], crops[:, 2, 1] = 1, alike, np.sqrt(1 - alike**2)
    groups = grouped(config, monkeypatch, (whole, crops))
    assert (groups[0] == groups[1]) == together and len(set(groups)) == 20 - together


def test_large_sets_are_compared_by_small_pictures(config, monkeypatch):
    monkeypatch.setattr(module, "MOST_COMPARED", 5)
    monkeypatch.setattr(module, "_features", None)  # nothing passes through the trunk
    called = []
    monkeypatch.setattr(module, "copies", lambda *given: called.append(1) or copies(*given))
    assert len(grouped(config, monkeypatch)) == 20 and called == [1]


@pytest.mark.parametrize(
    ("model", "views"),
    [(FROZEN, 0), (ModelConfig(trunk="inception-small", freeze_trunk=False), 4)],
    ids=["nothing is kept", "a trunk that knows nothing yet"],
)
def test_without_kept_features_no_trunk_is_asked(config, model, views):
    assert trunk_grouping(model, replace(config, views=views), say) is None


def test_the_images_of_a_run_keep_bursts_on_one_side(config):
    images = training_images(TrainConfig(data=config, model=FROZEN), say)
    parts = {}
    for part, split in enumerate((images.train, images.holdout, images.test)):
        parts |= {split.pictures.name(i): part for i in range(len(split))}
    assert len(parts) == 20 and len(images.test) > 0
    for name in ("dark", "light"):
        assert len({parts[f"{name}/{i}.jpg"] for i in range(3)}) == 1
    assert images.crop == 0.875 and images.image_size == 224


def test_before_the_first_pass_the_trunk_and_the_time_of_all_passes_are_said(
    config, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(module, "SAMPLE", 4)
    data, steps = replace(config, image_size=None), OptimisationConfig(steps=2)
    train(TrainConfig(data=data, optimisation=steps, run=RunConfig(run=tmp_path / "run")))
    first, estimate, later, *rest = capsys.readouterr().out.splitlines()
    assert first == (
        "2 classes, 20 images of 224 px, trunk efficientnet-lite0 (chosen because the shorter side "
        "is above 64 px; ImageNet weights, frozen); 4 views of each training image: mirrored and "
        "cropped"
    )
    planned = re.match(
        r"about (\d+) views of images pass through .* once: about .* in all", estimate
    )
    passed = re.match(r"\d+ of (\d+) views have passed .*; the other \d+ follow: about", later)
    assert planned and passed and abs(int(planned[1]) - int(passed[1])) <= 3 * 3  # a burst
    assert not any("pass through the trunk" in line for line in rest)
    assert any("trunk efficientnet-lite0 (" in r and "frozen), head" in r for r in rest)
