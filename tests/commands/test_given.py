"""Runs that somebody was given: what they can make the commands do, which is nothing else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from blockout.data import DataConfig
from blockout.models import ModelConfig
from blockout.runs import folder as files
from blockout.training import (
    ComputeConfig,
    OptimisationConfig,
    RunConfig,
    TrainConfig,
    load_images,
    train,
)


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Path:
    """A finished run, trained on a folder of images beside it."""
    folder = tmp_path_factory.mktemp("given")
    chance = np.random.default_rng(0)
    for number, name in enumerate(("ant", "bee", "cat")):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(10):
            pixels = chance.integers(0, 100, (28, 28, 3), np.uint8)
            pixels[..., number] += 120
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    config = TrainConfig(
        DataConfig(str(folder / "photos"), cache=folder / "cache", holdout=0.2),
        ModelConfig(width=0.1, nodes=16, clusters=2),
        OptimisationConfig(steps=6, batch_size=8),
        compute=ComputeConfig(accelerator="cpu", devices="1"),
        run=RunConfig(run=folder / "run", tensorboard=False),
    )
    images = load_images(config)
    return train(config.for_images(images), data=images)


@pytest.fixture
def run(given, tmp_path, monkeypatch) -> Path:
    """A copy to change, and a cache of its own."""
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(tmp_path / "own cache"))
    return Path(shutil.copytree(given, tmp_path / "run"))


@pytest.fixture
def image(given) -> Path:
    return given.parent / "photos" / "ant" / "0.png"


def change(path: Path, edit) -> None:
    """Rewrites a JSON file of a run, with a digest as if it had always been so."""
    value = json.loads(path.read_text())
    edit(value)
    files.write_json(path, value)


def change_weights(run: Path, name: str, value: float) -> None:
    for file in (files.FINAL, files.BEST):
        weights = load_file(run / file)
        weights[name] = torch.full_like(weights[name], value)
        files.write_tensors(run / file, weights)


def contents(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def commands_on(run: Path, image: Path) -> list[tuple]:
    return [
        ("predict", run, image),
        ("predict", run, image, "--json"),
        ("evaluate", run),
        ("evaluate", run, "--json"),
        ("compact", run),
        ("compact", run, "--max-loss", "50"),
        ("export", run, "--format", "safetensors"),
        ("export", run, "--format", "onnx"),
    ]


# --- numbers that are none ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_network_that_gives_no_finite_numbers_is_said_and_nothing_is_written(
    said, run, image, value
):
    """The last value is finite, and what it is multiplied with is not."""
    change_weights(run, "head.classifier.weight", value)
    before = contents(run)
    for command in commands_on(run, image):
        code, out, err = said(*command)
        assert (code, out) == (1, ""), command
        assert "finite" in err and len(err.splitlines()) == 1, (command, err)
    assert contents(run) == before


@pytest.mark.parametrize("std", [0, -1, 1e-300, 1e300])
def test_a_normalisation_that_cannot_be_is_said(said, run, image, std):
    change(run / files.MODEL, lambda about: about.update(std=[0.2, 0.2, std]))
    for command in commands_on(run, image):
        code, out, err = said(*command)
        assert (code, out) == (1, ""), command
        assert "model.json is damaged" in err and "std" in err and len(err.splitlines()) == 1


def test_a_description_that_would_fill_the_memory_is_said(said, run, image):
    change(run / files.MODEL, lambda about: about["model"]["head"].update(nodes=10**7))
    code, out, err = said("predict", run, image)
    assert (code, out) == (1, "") and "cannot be used: head." in err
