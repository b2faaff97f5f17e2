"""`blockout compact` as a user meets it."""

import dataclasses
import json
import shutil

import pytest

from blockout.runs import folder as files
from blockout.training import ModelConfig, train

from ..training.conftest import make_config, make_images


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = dataclasses.replace(
        make_config(folder, steps=10), model=ModelConfig(width=0.1, nodes=8, clusters=2)
    )
    return train(config, data=make_images(size=28))


@pytest.fixture
def lies_there(monkeypatch):
    """Which images the run's data are today."""
    return lambda images: monkeypatch.setattr("blockout.runs.run.load", lambda *_, **__: images)


def test_it_says_how_small_and_how_accurate_the_network_became(said, run, lies_there):
    lies_there(make_images(size=28))
    code, out, err = said("compact", run, "--threshold", "0.4")
    assert (code, err) == (0, "") and "note:" not in out
    assert "head alone: " in out and "multiply-adds per image" in out and "% as trained" in out
    smaller = "of the whole network's time for 8 images, so a compact head makes the whole" in out
    assert smaller != ("so the compact network is the dense one" in out)  # as it was measured here
    assert smaller != ("dense and compact alike" in out)
    done = json.loads(said("compact", run, "--threshold", "0.4", "--json")[1])
    dense, compact, linear = done["network"]["bytes"]
    assert dense >= compact > linear > 0
    assert done["threshold"] == 0.4 and done["multiply_adds"][1] <= done["multiply_adds"][0]


def test_images_that_are_not_those_of_the_run_are_noticed(said, run, lies_there, tmp_path):
    """Of a run from before splits were kept; with one, images are recognised one by one."""
    run = shutil.copytree(run, tmp_path / "run")
    (run / files.SPLIT).unlink()
    (run / files.DIGESTS).unlink()
    lies_there(make_images(100, size=28))
    code, out, _ = said("compact", run)
    assert code == 0 and "note: the images have changed since this run" in out
    lies_there(dataclasses.replace(make_images(size=28), classes=("a", "b", "c", "d")))
    code, _, err = said("compact", run)
    assert code == 1 and "are not those of the run in" in err


@pytest.mark.parametrize("wrong", ["1.5", "-0.1", "much", "nan"])
def test_a_threshold_that_is_no_share_is_refused(said, run, wrong):
    code, _, err = said("compact", run, "--threshold", wrong)
    assert code == 2 and f"--threshold must be a number from 0 to 1, got {wrong}" in err
