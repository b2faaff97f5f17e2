"""One Run opens a folder for everything: finished, training, old, damaged."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from blockout.runs import Run, RunError, lock
from blockout.runs import folder as files
from blockout.training import ModelConfig, train
from blockout.training.checkpoint import read as read_checkpoint

from ..training.conftest import make_config, make_images


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two epochs of a small Blockout network."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    config = dataclasses.replace(
        make_config(folder, steps=10), model=ModelConfig(width=0.1, nodes=8, clusters=2)
    )
    return train(config, data=make_images(size=28))


@pytest.fixture
def folder(finished, tmp_path):
    """A copy to change: without digests, as runs of before."""
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / files.DIGESTS).unlink()
    return folder


def test_a_finished_run_tells_everything(finished):
    run = Run.open(finished)
    assert run.finished and run.method == "blockout" and run.learned
    assert run.config.model.nodes == 8 and run.config.epochs == 2 and run.result.steps == 10
    assert run.config.data.image_size == 28 and run.config.model.trunk == "inception-small"
    assert run.data_name == "noise" and run.classes == ("red", "green", "blue", "bright")
    assert len(run.epochs) == 2 and len(run.steps) == 10
    assert run.test_accuracy == run.result.test.accuracy == run.epochs[-1].test_accuracy
    assert list(run.memberships) == list(run.distributions) == ["P_0", "P_1", "P_2"]
    assert run.structure.classes == run.classes
    assert run.confusion.sum() == len(run.predictions.labels) == 21
    accuracy = 100 * np.mean(run.predictions.classes[:, 0] == run.predictions.labels)
    assert run.result.test.accuracy == pytest.approx(accuracy)
    assert run.network().classes == run.classes


def test_its_config_file_leaves_nothing_open(finished):
    written = json.loads((finished / files.CONFIG).read_text())
    for name in ("nodes", "clusters", "dropout", "image_size", "batch_size", "lr", "paper"):
        assert written[name] is not None, name
    assert Run.open(finished).config.flat() == written


def test_a_run_that_still_trains_tells_what_there_is(folder):
    for name in (files.RESULT, files.MODEL, files.PREDICTIONS, files.MEMBERSHIPS):
        (folder / name).unlink()
    run = Run.open(folder)
    assert not run.finished and run.classes == () and run.structure is None
    assert run.test_accuracy == run.epochs[-1].test_accuracy
    assert run.data_name == "shapes"  # as the config calls it
    for ask in (run.network, run.require_structure):
        with pytest.raises(RunError, match="is not finished; the same `blockout train` continues"):
            ask()


def test_a_run_of_before_with_values_left_open_is_completed(folder):
    path = folder / files.CONFIG
    old = json.loads(path.read_text())
    for name in ("image_size", "batch_size", "lr", "paper", "draw_on", "log_every", "dropout"):
        old[name] = None
    old["trunk"] = "auto"
    path.write_text(json.dumps(old))
    run = Run.open(folder)
    assert run.config.data.image_size == 28 and run.config.model.trunk == "inception-small"
    assert (run.config.optimisation.batch_size, run.config.optimisation.lr) == (128, 0.4)
    assert run.config.guidance.draw_on == 1
    old["settle_at"] = 0.35  # a flag of before
    path.write_text(json.dumps(old))
    assert Run.open(folder).config == run.config
    about = folder / files.MODEL
    about.write_text(about.read_text().replace("inception-small", "compact"))
    assert Run.open(folder).network().classes == run.classes


@pytest.mark.parametrize("name", sorted(files.READ_BACK & {*files.TRAINED, files.CONFIG}))
def test_one_flipped_bit_in_any_file_is_noticed(finished, tmp_path, name):
    folder = shutil.copytree(finished, tmp_path / "run")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(RunError, match=f"{name} is damaged"):
        read_everything(folder)


def read_everything(folder):
    """As all commands together do."""
    run = Run.open(folder)
    run.network("final")
    run.network("best")
    assert run.thumbnails is not None and run.checks is not None
    read_checkpoint(folder / files.CHECKPOINT)


@pytest.mark.parametrize("name", ["model.json", "metrics.jsonl", "predictions.safetensors"])
def test_a_file_that_a_finished_run_has_lost_is_named(finished, tmp_path, name):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(RunError, match=f"{name} is missing. Restore it"):
        Run.open(folder)


@pytest.mark.parametrize("name", ["environment.json", "split.json"])
def test_a_file_that_an_unfinished_run_has_lost_is_named(finished, tmp_path, name):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / files.RESULT).unlink()
    (folder / files.PREDICTIONS).unlink()  # comes later
    assert not Run.open(folder).finished
    (folder / name).unlink()
    with pytest.raises(RunError, match=f"{name} is missing. Restore it"):
        Run.open(folder)
    (folder / files.CHECKPOINT).unlink()  # killed before it was written
    assert not Run.open(folder).finished


def test_a_run_of_before_keeps_the_trunk_that_it_was_made_with(folder):
    config = json.loads((folder / files.CONFIG).read_text())
    config |= {"trunk": "auto", "image_size": None}
    (folder / files.CONFIG).write_text(json.dumps(config))
    about = json.loads((folder / files.MODEL).read_text())
    about |= {"image_size": 224, "model": about["model"] | {"trunk": {"kind": "inception-bn"}}}
    (folder / files.MODEL).write_text(json.dumps(about))
    assert Run.open(folder).config.model.trunk == "inception-bn"


def test_files_without_digests_are_told(finished, folder):
    assert Run.open(finished).unnoticed == ""
    assert "best.safetensors, checkpoint.pt, checks.json and 11 more" in Run.open(folder).unnoticed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (files.CONFIG, '{"data": 1}'),
        (files.MODEL, '{"format": 1}'),
        (files.MODEL, "[]"),
        (files.RESULT, '{"test": {"accuracy": "good"}}'),
        (files.RESULT, '{"test": {"accuracy": 1e400, "top5": 1, "loss": 1}}'),
        (files.RESULT, "[" * 100_000),
        (files.ENVIRONMENT, '{"versions": 3}'),
        (files.METRICS, '{"step": -1}\n'),
        (files.METRICS, 'nonsense\n{"step": 1, "warning": "a"}\n'),
        (files.DISTRIBUTIONS, '{"step": 1, "P_0": {"histogram": [1], "quartiles": [0, 0, 1]}}\n'),
        (files.MEMBERSHIPS, "123"),
        (files.PREDICTIONS, "123"),
    ],
)
def test_a_damaged_file_is_named(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(RunError, match=rf"{name} is damaged"):
        Run.open(folder)


def test_a_mistake_of_our_own_is_no_damaged_file(folder, monkeypatch):
    """Before, any AttributeError while a command worked was blamed on a file."""
    monkeypatch.setattr("blockout.runs.run.clusters_differ", None)
    with pytest.raises(TypeError):
        _ = Run.open(folder).one_branch


def test_a_description_of_another_version_is_not_called_damaged(folder):
    (folder / files.MODEL).write_text('{"format": 9}')
    with pytest.raises(RunError, match="written by another version of blockout"):
        Run.open(folder)


def test_a_last_line_that_a_crash_cut_off_is_left_out(folder):
    with (folder / files.METRICS).open("a") as file:
        file.write('{"step": 11, "los')
    assert Run.open(folder).steps[-1].step == 10


def test_folders_that_hold_no_run_are_said(tmp_path):
    with pytest.raises(RunError, match="there is no run folder"):
        Run.open(tmp_path / "gone")
    with pytest.raises(RunError, match=r"is not the folder of a run: there is no config.json"):
        Run.open(tmp_path)


def test_images_of_another_set_are_refused_and_changed_ones_are_told(finished, monkeypatch):
    run = Run.open(finished)
    for count, changed in ((80, False), (100, True)):
        monkeypatch.setattr(
            "blockout.runs.run.load", lambda *_, n=count, **__: make_images(n, size=28)
        )
        assert run.has_changed(run.images()) is changed
    other = dataclasses.replace(make_images(), classes=("a", "b", "c", "d"))
    monkeypatch.setattr("blockout.runs.run.load", lambda *_, **__: other)
    with pytest.raises(RunError, match="are not those of the run in"):
        run.images()


def test_runs_that_start_from_other_weights_of_one_name_are_told_apart(folder):
    before = Run.open(folder).recipe
    said = json.loads((folder / files.ENVIRONMENT).read_text())
    said["origins"] = {"trunk_weights": "0123"}
    (folder / files.ENVIRONMENT).write_text(json.dumps(said))
    assert Run.open(folder).recipe == before | said["origins"]


def test_runs_that_differ_in_their_seed_share_a_recipe(finished, folder):
    path = folder / files.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": 5, "devices": "2"}))
    one, other = Run.open(finished), Run.open(folder)
    assert one.recipe == other.recipe and other.seed == 5
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lr": 0.3}))
    assert Run.open(folder).recipe != one.recipe


def test_a_fixed_p_is_no_learned_structure(folder):
    path = folder / files.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"learned": False}))
    run = Run.open(folder)
    assert run.memberships == {} and run.structure is None and not run.learned
    assert run.require_structure().classes == run.classes


def test_thumbnails_are_strips_of_square_images(folder):
    strips = Run.open(folder).thumbnails
    assert strips.shape == (4, 28, 4 * 28, 3)
    assert strips[0, ..., 0].mean() > strips[0, ..., 1].mean()  # red
    assert strips[2, ..., 2].mean() > strips[2, ..., 1].mean()  # blue
    for damage in (b"no image", (folder / files.THUMBNAILS).read_bytes()[:900]):
        (folder / files.THUMBNAILS).write_bytes(damage)
        with pytest.raises(RunError, match=r"thumbnails.png is damaged"):
            _ = Run.open(folder).thumbnails
    Image.new("RGB", (4 * 28, 5 * 28)).save(folder / files.THUMBNAILS)
    with pytest.raises(RunError, match="no row of images for each of 4 classes"):
        _ = Run.open(folder).thumbnails
    (folder / files.THUMBNAILS).unlink()
    assert Run.open(folder).thumbnails is None


@pytest.mark.usefixtures("_patience")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", [*files.EVERYTHING, files.LOCK])
def test_a_pipe_in_the_place_of_a_file_is_named_and_not_waited_for(folder, name):
    """Reading one would block until somebody writes to it."""
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    os.mkfifo(path)
    for attempt in (lambda: Run.open(folder), lambda: lock.held(folder, "work").__enter__()):
        with pytest.raises(RunError, match=rf"{name} must be a file, but is a pipe"):
            attempt()


def test_a_device_in_the_place_of_a_file_is_named(folder):
    (folder / files.METRICS).unlink()
    (folder / files.METRICS).symlink_to("/dev/zero")
    with pytest.raises(RunError, match=r"metrics.jsonl must be a file, but is a pipe, .* device"):
        Run.open(folder)
