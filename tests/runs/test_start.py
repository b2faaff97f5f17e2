"""A training run begins in a folder of its own, or continues the same run."""

import os
import subprocess
import sys

import pytest

from blockout.runs import RunError
from blockout.runs.documents import as_json, read_document
from blockout.runs.environment import environment
from blockout.runs.folder import DIGESTS, ENVIRONMENT, EVERYTHING, LOCK, SPLIT, write_json
from blockout.runs.lock import held
from blockout.runs.start import open_folder

from ..training.conftest import make_config, make_images


def begin(folder, *, images=None, **values):
    images = images or make_images()
    with open_folder(folder, make_config(folder, **values).for_images(images), images):
        pass


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f".checkpoint.pt.{gone.pid}").write_text("half")
    (tmp_path / ".mine").write_text("mine")
    begin(tmp_path)
    assert names(tmp_path) == {".mine", "config.json", SPLIT, DIGESTS, LOCK}


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
    assert read_document(tmp_path / "config.json", dict)["seed"] == 0


def test_other_weights_of_the_same_name_are_another_run(tmp_path):
    for place, weights in (("a", b"one"), ("b", b"two")):
        (tmp_path / place / "demo").mkdir(parents=True)
        (tmp_path / place / "demo" / "final.safetensors").write_bytes(weights)
    folder, first = tmp_path / "run", tmp_path / "a" / "demo"
    begin(folder, init_from=first)
    origins = make_config(folder, init_from=first).origins()
    write_json(folder / ENVIRONMENT, as_json(environment(origins)))
    begin(folder, init_from=first)
    with pytest.raises(RunError, match=r"holds another run \(init_from_weights was"):
        begin(folder, init_from=tmp_path / "b" / "demo")


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
    explicit = make_config(tmp_path, batch_size=128, lr=0.4)
    for same in (config, explicit):
        with open_folder(tmp_path, same.for_images(images), images):
            pass
    assert read_document(tmp_path / "config.json", dict)["lr"] is None


def test_restart_takes_everything_that_the_run_left(tmp_path):
    for name in ("model.onnx", "model-compact.pt2", "compact.json", "compaction.json", "mine.onnx"):
        (tmp_path / name).write_bytes(b"of the run before")
    write_json(tmp_path / "config.json", {"method": "blockout"})
    begin(tmp_path, restart=True)
    assert names(tmp_path) == {"config.json", "mine.onnx", SPLIT, DIGESTS, LOCK}


@pytest.mark.parametrize("restart", [False, True])
def test_a_folder_that_is_held_is_refused_and_nothing_is_touched(tmp_path, restart):
    begin(tmp_path)
    with held(tmp_path, "training"):
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}, training since"):
            begin(tmp_path, seed=3, restart=restart)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_restart_killed_at_any_file_can_be_repeated(tmp_path, monkeypatch):
    """It deletes what says that the run is finished first, and what says that it is a run last."""
    begin(tmp_path)
    for name in EVERYTHING[:-2]:
        (tmp_path / name).write_text("of the run before")
    unlink, deleted = type(tmp_path).unlink, []

    def killed(path, *rest, **more):
        if len(deleted) == count:
            raise KeyboardInterrupt
        deleted.append(path.name)
        unlink(path, *rest, **more)

    for count in range(len(EVERYTHING)):
        monkeypatch.setattr(type(tmp_path), "unlink", killed)
        deleted.clear()
        with pytest.raises(KeyboardInterrupt):
            begin(tmp_path, restart=True)
        monkeypatch.undo()
        assert (tmp_path / "result.json").exists() == (count == 0)
    begin(tmp_path, restart=True)
    assert names(tmp_path) == {"config.json", SPLIT, DIGESTS, LOCK}


def test_restart_helps_where_the_config_is_damaged_or_gone(tmp_path):
    for damage in (lambda path: path.write_text("{"), lambda path: path.unlink()):
        begin(tmp_path, seed=1)
        damage(tmp_path / "config.json")
        begin(tmp_path, seed=2, restart=True)
        assert read_document(tmp_path / "config.json", dict)["seed"] == 2
        begin(tmp_path, seed=1, restart=True)


def test_files_from_before_there_were_digests_are_told_once(tmp_path, capsys):
    begin(tmp_path)
    assert capsys.readouterr().err == ""
    (tmp_path / DIGESTS).unlink()
    begin(tmp_path)
    assert capsys.readouterr().err.startswith("note: damage to config.json, split.json in ")
