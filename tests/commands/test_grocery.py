"""Real photographs, from training to an exported network: what a user with a folder would do.

Needs $BLOCKOUT_DATA_DIR with grocery/ in it (github.com/marcusklasson/GroceryStoreDataset, one
folder per class in train/ and test/).
"""

import json
import os
from pathlib import Path

import pytest

from blockout.runs import Run

CLASSES = ("Avocado", "Banana", "Carrots", "Lemon")
EACH = 12
"""Images of a class and a side: enough to tell fruit apart, in half a minute on one core."""


@pytest.fixture
def photographs(tmp_path, monkeypatch) -> Path:
    """Links to a few photographs of each class, in the splits that the data has."""
    grocery = Path(os.environ.get("BLOCKOUT_DATA_DIR") or ".") / "grocery"
    if "BLOCKOUT_DATA_DIR" not in os.environ or not grocery.is_dir():
        pytest.skip("needs $BLOCKOUT_DATA_DIR with grocery/ in it")
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("blockout.training.whole.BATCHES", (1, 2))  # to be measured sooner
    for side in ("train", "test"):
        for name in CLASSES:
            folder = tmp_path / "photographs" / side / name
            folder.mkdir(parents=True)
            for path in sorted((grocery / side / name).glob("*.jpg"))[:EACH]:
                (folder / path.name).symlink_to(path.resolve())
    return tmp_path / "photographs"


def test_photographs_become_a_network_that_knows_them_and_all_it_comes_with(
    photographs, tmp_path, said
):
    run = tmp_path / "run"
    words = ("--steps", "100", "--accelerator", "cpu", "--workers", "0")
    assert said("train", "--data", photographs, "--run", run, *words)[0] == 0
    test = Run.open(run).result.test
    assert test.accuracy > 60, "guessing gets 25 % right"

    code, out, _ = said("evaluate", run, "--json")
    found = json.loads(out)
    assert (code, found["images"], found["accuracy"]) == (0, len(CLASSES) * EACH, test.accuracy)

    code, out, _ = said("compact", run, "--json")
    before, after = json.loads(out)["test"]
    assert (code, before) == (0, test.accuracy) and after > 60
    assert (run / "compact.safetensors").stat().st_size > 0

    onnx = tmp_path / "network.onnx"
    assert said("export", run, "--format", "onnx", "--out", onnx)[0] == 0
    one = min((photographs / "test" / "Banana").iterdir())
    code, out, _ = said("predict", onnx, one)
    assert code == 0 and all(name in out for name in CLASSES)

    page = tmp_path / "page.html"
    assert said("report", run, "--out", page)[0] == 0
    assert all(name in page.read_text() for name in CLASSES)
