"""Loggers beside the metrics never end a training run."""

import shutil
import threading

import pytest

from blockout.runs import RunConfig
from blockout.training import train
from blockout.training.loggers import Loggers

from .conftest import make_config, make_images, make_net


@pytest.fixture
def said():
    return []


@pytest.fixture
def loggers(tmp_path, said):
    return Loggers(RunConfig(), tmp_path, said.append)


def test_numbers_are_on_the_disk_when_it_is_closed(tmp_path, loggers, said):
    with loggers.open():
        loggers.log({"loss": 0.5}, 1)
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"loss" in events.read_bytes() and said == []


def test_a_disk_that_fails_meanwhile_is_said_once_and_without_a_traceback(
    tmp_path, loggers, said, capsys
):
    hook = threading.excepthook
    with loggers.open():
        loggers.log({"loss": 0.5}, 1)
        shutil.rmtree(tmp_path / "tensorboard")
        while not said:  # its own thread meets the disk, we the thread's error
            loggers.log({"loss": 0.5}, 2)
        loggers.log({"loss": 0.5}, 3)
    assert said == ["note: TensorBoard is left out from here on: No such file or directory"]
    assert capsys.readouterr().err == ""
    assert threading.excepthook is hook


def test_a_training_goes_on_without_events_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    config = make_config(tmp_path / "run", steps=2, tensorboard=True)
    folder = train(config, model=make_net(), data=make_images())
    assert (folder / "result.json").exists()
    out = capsys.readouterr().out
    assert out.count("note: TensorBoard is left out from here on") == 1
