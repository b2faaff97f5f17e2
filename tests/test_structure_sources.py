"""Structures of run folders, taxonomies of CSV files, and what is refused there."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from blockout import Structure, structure_sources
from blockout.data import ImageData, MemorySplit
from blockout.nodesets import Layer
from blockout.structure_sources import read_taxonomy
from blockout.training import (
    ModelConfig,
    OptimisationConfig,
    RunConfig,
    TrainConfig,
    files,
    finish,
    load_trained,
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
    structure = Structure.load(make_run(tmp_path / "run"))
    assert structure.layers == (
        Layer("head.fc2", "P_0", "P_1"), Layer("head.classifier", "P_1", "P_2"),
    )  # fmt: skip
    assert dict(structure.memberships)["P_2"] == tuple(map(tuple, torch.tensor(P_ANIMALS).tolist()))
    assert structure.classes == ANIMALS
    assert structure.taxonomy == ("pet", "pet", "tree", "tree")
    assert Structure.load(make_run(tmp_path / "flat", groups=None)).taxonomy is None


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
    trained = load_trained(folder)
    found = Structure.load(folder)
    assert found == Structure.from_model(
        trained.model, classes=trained.classes, taxonomy=["pet", "pet", "tree", "tree"]
    )
    recorded = json.loads((folder / files.RESULT).read_text())["groups"]
    expected = dataclasses.asdict(found.agreement())
    assert {name: recorded[name] for name in expected} == pytest.approx(expected)


def test_the_names_of_files_are_those_of_training():
    names = (structure_sources.MODEL, structure_sources.MEMBERSHIPS, structure_sources.RESULT)
    assert names == (files.MODEL, files.MEMBERSHIPS, files.RESULT)
    assert structure_sources.RUN_FORMAT == finish.FORMAT


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda f: (f / files.RESULT).unlink(), "is not finished"),
        (lambda f: [(f / n).unlink() for n in (files.RESULT, files.CONFIG)], "not the folder of a"),
        (lambda f: (f / files.MODEL).unlink(), "Structure.from_model"),
        (lambda f: (f / files.MODEL).write_text("{"), "model.json is damaged"),
        (lambda f: (f / files.MODEL).write_text('{"format": 1}'), "model.json is damaged"),
        (lambda f: (f / files.MODEL).write_text('{"format": 9}'), "another version"),
        (lambda f: (f / files.MODEL).write_text("[]"), "another version"),
        (lambda f: (f / files.MEMBERSHIPS).unlink(), "missing or damaged"),
        (lambda f: (f / files.MEMBERSHIPS).write_bytes(b"123"), "missing or damaged"),
        (lambda f: save_file({"P_0": torch.ones(1, 1)}, f / files.MEMBERSHIPS), "holds P_0 where"),
    ],
)
def test_a_run_that_has_no_structure_says_why(make_run, damage, complaint, tmp_path):
    folder = make_run(tmp_path / "run")
    damage(folder)
    with pytest.raises(ValueError, match=complaint):
        Structure.load(folder)


def test_a_run_of_another_method_says_so(make_run, tmp_path):
    with pytest.raises(ValueError, match="--method baseline, which has no memberships"):
        Structure.load(make_run(tmp_path / "run", method="baseline"))


# --- taxonomies from CSV ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "class,group\ncat,pet\ndog,pet\noak,tree\nfir,tree\n",
        'fir,tree\r\noak,tree\r\n\r\n"dog", pet\r\ncat,pet\r\nyew,tree',
        "\ufeffcat,pet\ndog,pet\noak,tree\nfir,tree\nfir,tree\n",
    ],
)
def test_a_csv_gives_each_class_its_group(text, tmp_path):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    assert read_taxonomy(tmp_path / "t.csv", ANIMALS) == ("pet", "pet", "tree", "tree")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"cat,pet\noak,tree\n", "no group for 'dog', 'fir'; it must name all 4 classes"),
        (b"cat,pet\ncat\n", "line 2 of .* must be class,group, got 'cat'"),
        (b"cat,pet,small\n", "line 1 of .* must be class,group"),
        (b"cat,\n", "line 1 of .* must be class,group"),
        (b"cat,pet\n\ncat,tree\n", "line 3 of .* puts 'cat' in 'tree', an earlier one in 'pet'"),
        (b"\xff\xfe\x00", "is not a CSV file in UTF-8"),
        (b"", "no group for 'cat'"),
    ],
)
def test_a_bad_csv_names_the_line_or_the_missing_classes(content, complaint, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        read_taxonomy(tmp_path / "t.csv", ANIMALS)
