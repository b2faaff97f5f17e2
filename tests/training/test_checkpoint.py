"""A checkpoint continues the very run that wrote it."""

import pytest
import torch
from torch import nn

from blockout.runs import RunError, digests
from blockout.runs import folder as files
from blockout.training import Engine, Recipe
from blockout.training.checkpoint import Tally, restore, state_of

IDENTITY = {"method": "fc", "nodes": 16, "seed": 3}


def make_engine(nodes: int = 5) -> Engine:
    torch.manual_seed(0)
    return Engine(nn.Linear(4, nodes), Recipe(6, 0.1))


@pytest.fixture
def path(tmp_path):
    """A checkpoint after two of six steps."""
    engine, path = make_engine(), tmp_path / files.CHECKPOINT
    for _ in range(2):
        engine.step(torch.ones(3, 4), torch.tensor([0, 1, 2]))
    tally = Tally(seconds=7.5, best_accuracy=40.0, logged={"metrics.jsonl": 2})
    files.write_checkpoint(path, state_of(engine, tally, IDENTITY))
    return path


def test_the_same_config_continues_with_all_that_was_counted(path):
    engine = make_engine()
    tally = restore(path, engine, dict(IDENTITY))
    assert engine.done == 2
    assert tally == Tally(seconds=7.5, best_accuracy=40.0, logged={"metrics.jsonl": 2})


def test_another_config_is_refused_by_the_names_of_what_changed(path):
    engine = make_engine()
    before = engine.module.weight.clone()
    with pytest.raises(RunError, match=r"another config \(nodes, seed changed\).*--run.*--restart"):
        restore(path, engine, IDENTITY | {"nodes": 32, "seed": 4})
    assert engine.done == 0 and torch.equal(engine.module.weight, before)


def test_weights_that_do_not_fit_are_named_with_the_file(path):
    with pytest.raises(RunError, match=r"checkpoint\.pt is damaged .*--restart"):
        restore(path, make_engine(nodes=6), dict(IDENTITY))


def test_a_pickle_of_a_strange_protocol_is_damaged_and_warns_of_nothing(path):
    path.write_bytes(b"\x80\x80\x80\x80\x10")
    digests.record(path, digests.digest_of(path))
    with pytest.raises(RunError, match=r"checkpoint\.pt is damaged"):
        restore(path, make_engine(), dict(IDENTITY))
