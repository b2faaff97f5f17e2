"""Progress in a terminal, and where nothing is one."""

import io
import json
import re
from types import SimpleNamespace

import pytest

from blockout.runs.folder import METRICS
from blockout.training import progress, recording, train
from blockout.training.engine import Engine
from blockout.training.progress import Narrator

from .conftest import make_config, make_images, make_net


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when told to."""
    clock = SimpleNamespace(now=100.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_without_a_terminal_a_long_epoch_says_now_and_then_how_far_it_is(clock, capsys):
    narrator = Narrator(total=21, done=0, batch_size=8, silent=False)
    clock.now += 60  # the first step is slow
    for step in range(1, 22):
        narrator.passed(step)
        clock.now += 4
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "step 2 of 21, 76 s left" and said[1] == "step 5 of 21, 64 s left"
    assert len(said) == 7  # every 12 s, and not after the last step


def test_short_epochs_speak_for_themselves(clock, capsys):
    narrator = Narrator(total=20, done=0, batch_size=8, silent=False)
    for step in range(1, 21):
        clock.now += 4
        narrator.passed(step)
        if step % 2 == 0:
            narrator.say("epoch")
    assert set(capsys.readouterr().out.splitlines()) == {"epoch"}


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bar_its_count_and_the_time_left_fit_the_terminal_after_an_evaluation(
    width, monkeypatch
):
    screen = Tty()
    monkeypatch.setattr(progress, "raw_output", lambda: screen)
    for name, value in {"COLUMNS": str(width), "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    narrator = Narrator(total=1200, done=0, batch_size=64, silent=False)
    narrator.speed = 5120.0
    with narrator.bar:
        for step in (780, 790, 800):
            narrator.step(step, 19, 1.049, 79.3, "  holdout 100.0 %  test 100.0 %")
        narrator.bar.refresh()
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).replace("\r", "\n")
    *_, last = re.findall(r"epoch 19 .*", shown)
    assert re.match(r"epoch 19 [━╸╺]{10} +800/1200 \d:\d\d:\d\d loss 1.049", last)
    assert len(last) <= width


@pytest.mark.parametrize("images", [80, 8])
def test_the_speed_is_that_of_training_where_epochs_are_short(images, tmp_path, clock, monkeypatch):
    """A step takes a second and an evaluation fifty. A set of 8 is smaller than its batch of 16."""

    def slow(work, seconds):
        def wrapped(*arguments, **named):
            clock.now += seconds
            return work(*arguments, **named)

        return wrapped

    monkeypatch.setattr(Engine, "step", slow(Engine.step, 1))
    monkeypatch.setattr(recording, "evaluate", slow(recording.evaluate, 50))
    config = make_config(tmp_path / "run", log_every=4)
    train(config, model=make_net(), data=make_images(train=images))
    lines = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    speeds = [line["images_per_second"] for line in lines if "images_per_second" in line]
    assert speeds == [min(images, 16)] * 5


def test_a_training_says_how_far_it_is_within_an_epoch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "TOLD_EVERY", 0.0)
    train(make_config(tmp_path / "run", log_every=100), model=make_net(), data=make_images())
    said = capsys.readouterr().out
    assert "step 3 of 20, " in said and "step 20 of 20" not in said


def test_what_comes_after_training_finds_a_terminal_without_a_bar(tmp_path, monkeypatch):
    """Another bar would be drawn as text, and the steps of an epoch end with it."""
    screen, seen, epochs = Tty(), [], []
    monkeypatch.setattr(progress, "raw_output", lambda: screen)
    finish, step = recording.Recording._finish, Narrator.step

    def finished(self):
        seen.append(self.narrator.bar.live.is_started)
        finish(self)

    def shown(self, done, epoch, *rest):
        epochs.append(epoch)
        step(self, done, epoch, *rest)

    monkeypatch.setattr(recording.Recording, "_finish", finished)
    monkeypatch.setattr(Narrator, "step", shown)
    config = make_config(tmp_path)
    train(config, model=make_net(), data=make_images())
    assert seen == [False] and (min(epochs), max(epochs)) == (1, 4)
