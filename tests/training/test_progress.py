"""Progress where nothing is a terminal."""

from types import SimpleNamespace

import pytest

from blockout.training import progress, train
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


def test_a_training_says_how_far_it_is_within_an_epoch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "TOLD_EVERY", 0.0)
    train(make_config(tmp_path / "run", log_every=100), model=make_net(), data=make_images())
    said = capsys.readouterr().out
    assert "step 3 of 20, " in said and "step 20 of 20" not in said
