"""The structure of a run folder, and what is refused there."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from blockout import Structure
from blockout.data import ImageData, MemorySplit
from blockout.runs import Run, RunError
from blockout.runs import folder as files
from blockout.structure.nodes import Layer
from blockout.training import (
    ModelConfig,
    OptimisationConfig,
    RunConfig,
    TrainConfig,
    train,
)

ANIMALS = ("cat", "dog", "oak", "fir")
P_ANIMALS = ((0.9, 0.1), (0.8, 0.2), (0.1, 0.7), (0.2, 0.9))


@pytest.fixture
def make_run(folder_of_a_run):
    """A folder as a finished run on four classes leaves it."""

    def make(folder, *, method="blockout", groups=(0, 0, 1, 1)):
        p = torch.tensor(P_ANIMALS)
        sets = {"P_0": p[:3].clone(), "P_1": p[1:].clone(), "P_2": p}
        return folder_of_a_run(folder, ANIMALS, sets, method=method, groups=groups)

    return make


def test_a_run_gives_its_memberships_classes_and_groups(make_run, tmp_path):
    structure = Run.open(make_run(tmp_path / "run")).structure
    assert structure.layers == (
        Layer("head.fc2", "P_0", "P_1"), Layer("head.classifier", "P_1", "P_2"),
    )  # fmt: skip
    assert dict(structure.memberships)["P_2"] == tuple(map(tuple, torch.tensor(P_ANIMALS).tolist()))
    assert structure.classes == ANIMALS
    assert structure.taxonomy == ("pet", "pet", "tree", "tree")
    assert Run.open(make_run(tmp_path / "flat", groups=None)).structure.taxonomy is None


def test_a_trained_run_has_the_structure_of_its_model_and_records_the_agreement(tmp_path):
    half, labels = (0.5, 0.5, 0.5), torch.arange(32) % 4
    pixels = torch.randint(0, 255, (32, 16, 16, 3), dtype=torch.uint8)
    split = MemorySplit(pixels, torch.arange(32), labels, half, half)
    data = ImageData(
        "noise", ANIMALS, (0, 0, 1, 1), ("pet", "tree"), split, split, split, half, half, 16,
        None, (),
    )  # fmt: skip
    config = TrainConfig(
        model=ModelConfig(width=0.1, nodes=8, clusters=2),
        optimisation=OptimisationConfig(steps=2, batch_size=16),
        run=RunConfig(run=tmp_path / "run", tensorboard=False),
    )
    folder = train(config, data=data)
    trained = Run.open(folder).network()
    found = Run.open(folder).structure
    assert found == Structure.from_model(
        trained.model, classes=trained.classes, taxonomy=["pet", "pet", "tree", "tree"]
    )
    recorded = json.loads((folder / files.RESULT).read_text())["groups"]
    expected = dataclasses.asdict(found.agreement())
    assert {name: recorded[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda f: (f / files.RESULT).unlink(), "is not finished"),
        (lambda f: [(f / n).unlink() for n in (files.RESULT, files.CONFIG)], "not the folder of a"),
        (lambda f: (f / files.MODEL).unlink(), "Structure.from_model"),
        (lambda f: (f / files.MODEL).write_text("{"), "model.json is damaged"),
        (lambda f: (f / files.MODEL).write_text('{"format": 1}'), "model.json is damaged"),
        (lambda f: (f / files.MODEL).write_text('{"format": 9}'), "another version"),
        (lambda f: (f / files.MODEL).write_text("[]"), "model.json is damaged"),
        (lambda f: (f / files.MEMBERSHIPS).unlink(), "is missing"),
        (lambda f: (f / files.MEMBERSHIPS).write_bytes(b"123"), "safetensors is damaged"),
        (lambda f: save_file({"P_0": torch.ones(1, 1)}, f / files.MEMBERSHIPS), "holds P_0 where"),
    ],
)
def test_a_run_that_has_no_structure_says_why(make_run, damage, complaint, tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / files.DIGESTS).unlink()
    damage(folder)
    with pytest.raises(RunError, match=complaint):
        Run.open(folder).require_structure()


def test_a_run_of_another_method_says_so(make_run, tmp_path):
    with pytest.raises(RunError, match="--method baseline, which has no memberships"):
        Run.open(make_run(tmp_path / "run", method="baseline")).require_structure()
