"""Runs that somebody was given: what they can make the commands do, which is nothing else."""

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from blockout.data import DataConfig
from blockout.models import ModelConfig
from blockout.runs import Run, RunError
from blockout.runs import folder as files
from blockout.training import (
    ComputeConfig,
    Guidance,
    OptimisationConfig,
    RunConfig,
    TrainConfig,
    load_images,
    train,
)
from torture.facts import obeyed


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
        Guidance(budget=1, affinity=False),  # a network that is narrowed has all files of a run
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


def move(run: Path, data: str) -> None:
    """Lets the run say that its images are somewhere else."""
    for name in (files.CONFIG, files.SPLIT):
        change(run / name, lambda value: value.update(data=data))


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
    """The last value is finite, and its product with what comes in is not."""
    change_weights(run, "head.classifier.weight", value)
    change_weights(run, "head.norm2.bias", 100.0)
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


# --- nothing is fetched, and nothing written elsewhere --------------------------------------------


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list:
    """Whom anything in this process wants to talk to; nobody answers."""
    found: list = []

    def note(*arguments: object, **_: object) -> None:
        found.append(arguments[-1] if len(arguments) > 1 else arguments)
        raise OSError("no network in tests")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, note)
    monkeypatch.setattr(socket.socket, "connect", note)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hugging face"))
    return found


def test_the_cache_is_not_where_a_run_says(said, run, tmp_path):
    change(run / files.CONFIG, lambda config: config.update(cache=str(tmp_path / "elsewhere")))
    for command in (("evaluate", run), ("compact", run), ("report", run)):
        assert said(*command)[0] == 0
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "own cache" / "decoded").is_dir()
    assert said("evaluate", run, "--cache", tmp_path / "elsewhere")[0] == 0
    assert (tmp_path / "elsewhere" / "decoded").is_dir()


@pytest.mark.parametrize(
    "data", ["hf://someone/private-photos", "hf://someone/pets:large", "cifar10"]
)
def test_a_hub_id_in_a_run_is_not_asked_for(said, run, asked, data, monkeypatch):
    monkeypatch.delenv("BLOCKOUT_DATA_DIR", raising=False)
    move(run, data)
    for command in ("evaluate", "compact"):
        code, out, err = said(command, run)
        assert (code, out) == (1, "")
        assert "asked nobody else; " in err and f"say --data {data}" in err
    code, _, err = said("report", run)
    assert (code, err) == (0, "")
    assert f"say --data {data}" in (run / files.REPORT).read_text(encoding="utf-8")
    assert asked == []
    assert said("evaluate", run, "--data", data)[0] == 1
    assert asked != []


def test_a_name_of_a_folder_in_a_run_is_never_asked_for(said, run, asked):
    for name in ("wedding", "holiday/lake"):
        move(run, name)
        for command in (("evaluate", run), ("evaluate", run, "--data", "my/lake")):
            code, _, err = said(*command)
            assert code == 1 and "there is no " in err
        assert said("report", run)[0] == 0
    assert asked == []


@pytest.mark.parametrize("trunk", ["someone/model", "wedding"])
def test_a_trunk_in_a_config_is_not_asked_for(said, run, asked, trunk, image):
    """What the network is stands in model.json, with its image size and normalisation."""
    change(run / files.CONFIG, lambda config: config.update(trunk=trunk))
    for command in commands_on(run, image)[:5]:
        code, _, err = said(*command)
        assert (code, err) == (0, ""), command
    assert said("report", run)[0] == 0
    assert asked == []


@pytest.mark.parametrize(
    "more",
    [{"_attn_implementation": "someone/kernel"}, {"auto_map": {"AutoModel": "someone/evil--m.M"}},
     {"model_type": "timm_wrapper", "architecture": "hf_hub:someone/evil"},
     {"model_type": "detr"}, {"quantization_config": {"quant_method": "gptq"}}],
)  # fmt: skip
def test_a_hugging_face_configuration_in_a_run_reaches_for_nothing(said, run, image, asked, more):
    configuration = {"model_type": "vit", **more}
    trunk = {"kind": "pretrained", "configuration": configuration, "readout": "map", "features": 8}
    change(run / files.MODEL, lambda about: about["model"].update(trunk=trunk))
    for command in commands_on(run, image):
        code, out, err = said(*command)
        assert (code, out) == (1, "") and "cannot be used: its " in err, (command, err)
    assert asked == []


def test_images_that_have_moved_are_found_where_you_say(said, run, given, tmp_path):
    moved = shutil.copytree(given.parent / "photos", tmp_path / "moved", copy_function=shutil.copy2)
    expected = said("evaluate", run, "--json")
    move(run, "gone")
    assert said("compact", run)[0] == 1
    code, out, err = said("compact", run, "--data", moved)
    assert (code, err) == (0, "") and "note:" not in out
    assert said("report", run, "--data", moved)[0] == 0
    assert "hold-out images" in (run / files.REPORT).read_text(encoding="utf-8")
    assert Run.open(run, data=str(moved)).images().fingerprint() == (
        Run.open(given).images().fingerprint()
    )
    assert expected[0] == 0


def test_workers_are_not_as_many_as_a_run_says(run):
    change(run / files.CONFIG, lambda config: config.update(workers=200, stream=True))
    images = Run.open(run).images()
    assert images.test._workers < 20


# --- names ----------------------------------------------------------------------------------------

OBEYED = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etac\n  99.9%  cat"


def test_names_are_shown_and_not_obeyed(said, run, image, tmp_path):
    """Of classes, of files, and in errors."""
    change(run / files.MODEL, lambda about: about.update(classes=[OBEYED, "bee", "cat"]))
    picture = tmp_path / "a\x1b[2Jb.png"
    shutil.copy(image, picture)
    shown = [said("predict", run, picture), said("predict", run, picture, "--json")]
    shown += [said("structure", run), said("structure", run, "--format", "json")]
    shown += [said("predict", run, tmp_path / "gone\x1b[2J.png"), said("evaluate", run)]
    for _, out, err in shown:
        assert not set(OBEYED) & set("\x1b\x07\x9b\u202e") & set(out + err)
    assert "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202etac\\n  99.9%  cat" in shown[0][1]
    assert OBEYED in json.loads(shown[1][1])["classes"]
    assert json.loads(shown[1][1])["image"] == str(picture)
    assert "gone\\x1b[2J.png" in shown[4][2] and shown[4][0] == 1


MARKUP = "'></script><meta http-equiv=refresh content=0><b torture onerror=x>\x1b[2J\u202e"


def mark(place, fits) -> None:
    """Sets every value below to ``MARKUP``, numbers too, where the document then still fits."""
    for key in list(place) if isinstance(place, dict) else range(len(place)):
        value = place[key]
        if isinstance(value, dict | list):
            mark(value, fits)
        else:
            place[key] = MARKUP
            place[key] = MARKUP if fits() else value


@pytest.mark.parametrize(
    "name", [files.MODEL, files.RESULT, files.CONFIG, files.ENVIRONMENT, files.COMPACTION]
)
def test_texts_of_a_run_are_shown_and_not_obeyed(said, run, image, name):
    """Neither by a terminal nor by a browser, in whatever field of whatever file they stand."""
    assert said("report", run)[0] == 0
    document = json.loads((run / name).read_text())

    def fits() -> bool:
        files.write_json(run / name, document)
        try:
            opened = Run.open(run)
            return bool(opened.network() and opened.compaction)
        except RunError:
            return False

    mark(document, fits)
    assert fits() and str(document).count("</script>") > 0
    for command in (*commands_on(run, image)[:4], ("report", run), ("structure", run)):
        _, out, err = said(*command)
        assert not set("\x1b\u202e") & set(out + err), command
    assert obeyed(run / files.REPORT) is None
