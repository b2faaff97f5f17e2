"""`blockout export`, and `blockout predict` of what it writes, as a user meets them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from blockout.models import ModelConfig, build_model
from blockout.runs import Run, TrainConfig
from blockout.runs import folder as files
from blockout.runs.documents import FORMAT, Description, Result, Scores, as_json
from blockout.training.compaction import compact_classifier

CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run, without the training."""
    torch.manual_seed(0)
    config = ModelConfig(width=0.05, nodes=8, clusters=2)
    model = build_model(config, classes=3, data_name="own", image_size=32)
    with torch.no_grad():
        for _ in range(20):  # batch normalisation lets the images through
            model(torch.randn(16, 3, 32, 32))
    folder = tmp_path_factory.mktemp("run")
    about = Description(
        format=FORMAT,
        model=model.describe(),
        classes=CLASSES,
        groups=None,
        data="own",
        image_size=32,
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.2),
    )
    result = Result(test=Scores(accuracy=50.0, top5=100.0, loss=1.0), steps=1, seconds=1.0)
    files.write_json(folder / files.MODEL, as_json(about))
    files.write_json(folder / files.CONFIG, TrainConfig(model=config).flat())
    files.write_json(folder / files.RESULT, as_json(result))
    for name in (files.FINAL, files.BEST):
        files.write_tensors(folder / name, model.state_dict())
    return folder


@pytest.fixture
def image(tmp_path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return tmp_path / "a.png"


@pytest.mark.parametrize("form", ["onnx", "safetensors"])
def test_the_command_exports_and_predict_says_of_the_file_what_it_says_of_the_run(
    said, run, image, form
):
    code, out, err = said("export", run, "--format", form)
    assert (code, err) == (0, "") and f"next: blockout predict {run / f'model.{form}'}" in out
    assert "compared in batches of 1, 3, 8" in out
    expected = said("predict", run, image)
    assert expected[0] == 0 and said("predict", run / f"model.{form}", image) == expected
    exact, got = (json.loads(said("predict", p, image, "--json")[1]) for p in
                  (run, run / f"model.{form}"))  # fmt: skip
    assert got["classes"] == exact["classes"]
    assert got["probabilities"] == pytest.approx(exact["probabilities"], abs=1e-6)  # float32


def test_the_compact_network_is_the_one_that_was_made_or_one_made_now(said, run, image, tmp_path):
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    words = ("export", copied, "--format", "safetensors", "--compact")
    code, out, _ = said(*words)
    assert code == 0 and out.startswith("compacting at a threshold of 0.5")
    path = copied / "model-compact.safetensors"
    assert said("predict", path, image)[0] == 0
    small = compact_classifier(Run.open(copied).network().model, 0.0, 256)
    files.write_tensors(copied / files.COMPACT_WEIGHTS, small.state_dict())
    about = json.loads((copied / files.MODEL).read_text()) | {"model": small.describe()}
    files.write_json(copied / files.COMPACT_MODEL, about)
    code, out, _ = said(*words)
    assert code == 0 and "compacting" not in out
    assert said("predict", path, image) == said("predict", copied, image)  # nothing is below 0
    assert said(*words, "--weights", "best")[0] == 2
    (copied / files.COMPACT_MODEL).write_text("{}")
    code, _, err = said(*words)
    assert code == 1 and len(err.splitlines()) == 1 and "compact.json" in err


def test_out_is_replaced_only_by_a_good_export(said, run, tmp_path, monkeypatch):
    path = tmp_path / "b.safetensors"
    assert said("export", run, "--format", "safetensors", "--out", path)[0] == 0
    before = path.read_bytes()
    monkeypatch.setattr("blockout.export.writing.TOLERANCE", -1.0)
    code, out, err = said("export", run, "--format", "safetensors", "--out", path)
    assert (code, out, len(err.splitlines())) == (1, "", 1) and "differs from the run" in err
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_wrong_usage_of_the_command_is_one_line(said, run, tmp_path, image):
    assert said("export", run)[0] == 2 and said("export", "--help")[0] == 0
    code, _, err = said("export", run, "--format", "onnx", "--out", tmp_path / "a.pt2")
    assert code == 2 and "--out must end in .onnx, got" in err
    for words, complaint in (
        (("export", tmp_path / "gone", "--format", "pt2"), "there is no run folder"),
        (("export", tmp_path, "--format", "pt2"), "is not the folder of a run"),
        (("predict", tmp_path / "gone.onnx", image), "there is no file"),
        (("predict", image, image), "is not an exported file: those end in .onnx, .pt2 or .saf"),
        (("predict", run / files.FINAL, image), "is not an export of blockout"),
    ):
        code, out, err = said(*words)
        assert (code, out, len(err.splitlines())) == (1, "", 1) and complaint in err


def test_an_unfinished_run_is_said(said, run, tmp_path):
    (tmp_path / files.CONFIG).write_bytes((run / files.CONFIG).read_bytes())
    code, _, err = said("export", tmp_path, "--format", "onnx")
    assert code == 1 and "is not finished" in err
