"""A training run begins in a folder of its own, or continues the same run."""

import os

import pytest

from blockout.runs import RunError
from blockout.runs.folder import read_json, write_json
from blockout.runs.start import open_folder

from ..training.conftest import make_config, make_images


def begin(folder, *, images=None, **values):
    images = images or make_images()
    open_folder(folder, make_config(folder, **values).for_images(images), images)


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path):
    (tmp_path / ".checkpoint.pt.4711").write_text("half")
    (tmp_path / ".mine").write_text("mine")
    begin(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".mine", "config.json"}


def test_a_folder_that_cannot_be_made_is_said_with_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot make the run folder .*file/run.*--run"):
        begin(tmp_path / "file" / "run")
    with pytest.raises(RunError, match=r"cannot .*file.*--run"):
        begin(tmp_path / "file")


def test_restart_deletes_nothing_of_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "config.json").write_text('{"mine": 1}')
    with pytest.raises(RunError, match=r"--restart: .* is not the folder of a run"):
        begin(tmp_path, restart=True)
    assert (tmp_path / "config.json").read_text() == '{"mine": 1}'
    (tmp_path / "config.json").write_text('{"method": "fc", "seed": 3}')
    begin(tmp_path, restart=True)
    assert read_json(tmp_path / "config.json")["seed"] == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_said(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot write"):
        begin(tmp_path)
    tmp_path.chmod(0o700)


def test_the_same_run_continues_and_another_is_refused_by_name(tmp_path):
    begin(tmp_path, seed=1)
    begin(tmp_path, seed=1, log_every=7)  # no part of what it learns
    with pytest.raises(RunError, match=r"holds another run \(seed was 1 and is 2\)"):
        begin(tmp_path, seed=2)
    with pytest.raises(RunError, match=r"lr was 0.05 and is 0.1"):
        begin(tmp_path, seed=1, lr=0.1)


def test_a_config_of_before_with_values_left_open_is_the_same_run(tmp_path):
    images = make_images()
    config = make_config(tmp_path, batch_size=None, lr=None)
    write_json(tmp_path / "config.json", config.flat())
    open_folder(tmp_path, config.for_images(images), images)
    explicit = make_config(tmp_path, batch_size=128, lr=0.4).for_images(images)
    open_folder(tmp_path, explicit, images)
    assert read_json(tmp_path / "config.json")["lr"] is None


def test_restart_takes_everything_that_the_run_left(tmp_path):
    for name in ("model.onnx", "model-compact.pt2", "compact.json", "compaction.json", "mine.onnx"):
        (tmp_path / name).write_bytes(b"of the run before")
    write_json(tmp_path / "config.json", {"method": "blockout"})
    begin(tmp_path, restart=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "mine.onnx"}
