"""A run says whether compiled kernels are in use where that has changed, or where they are not."""

import json

import pytest
import torch
from torch import nn

from blockout import BlockoutLinear, kernels
from blockout.kernels import native
from blockout.training import Interrupted, compiled, train

from .conftest import make_config, make_net
from .test_loop import interrupted_net


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (None, None, []),
        (None, True, []),
        (True, True, []),
        (False, False, []),
        (None, False, ["not in use: no compiler"]),
        (True, False, ["not in use: no compiler", "began with them", "last bits"]),
        (False, True, ["began without", "last bits"]),
        (True, None, []),
    ],
)
def test_only_what_is_missing_or_has_changed_is_said(before, now, words):
    said = compiled.note(before, now, "no compiler")
    assert (said is None) == (not words)
    assert all(word in str(said) for word in words)


def test_small_networks_and_plain_ones_ask_for_nothing(monkeypatch):
    monkeypatch.setattr(kernels, "compiled", None)  # would fail if it were asked
    for layer in (nn.Linear(1024, 1024), BlockoutLinear(8, 8, clusters=2)):
        assert compiled.in_use(nn.Sequential(layer)) == (None, "")
    with torch.device("meta"):
        assert compiled.in_use(BlockoutLinear(1024, 1024, clusters=2)) == (None, "")


def test_a_resumed_run_says_that_compiled_kernels_are_gone(tmp_path, images, monkeypatch, capsys):
    monkeypatch.setattr(native, "FEWEST_WEIGHTS", 0)
    with monkeypatch.context() as there:
        there.setattr(kernels, "compiled", lambda: (True, "the library"))
        with pytest.raises(Interrupted):
            train(make_config(tmp_path), model=interrupted_net(), data=images)
    assert "compiled kernels" not in capsys.readouterr().out
    assert json.loads((tmp_path / "environment.json").read_text())["compiled_kernels"] is True
    monkeypatch.setattr(kernels, "compiled", lambda: (False, "no compiler"))
    train(make_config(tmp_path), model=make_net(), data=images)
    said = capsys.readouterr().out
    assert said.count("compiled kernels are not in use: no compiler") == 1
    assert "began with them" in " ".join(said.split())
    assert json.loads((tmp_path / "environment.json").read_text())["compiled_kernels"] is False
