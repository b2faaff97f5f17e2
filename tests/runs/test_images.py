"""Images of a run, through trunks that others have trained and through Inception-BN at 224 px."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from blockout.commands.prediction import predict
from blockout.data import DataConfig, load
from blockout.models import EfficientNetLite, ModelConfig
from blockout.runs.start import open_folder
from blockout.training import (
    ComputeConfig,
    OptimisationConfig,
    Run,
    RunConfig,
    TrainConfig,
    evaluate,
    load_images,
    train,
)

CPU = ComputeConfig("cpu", "1")
MEAN, STD = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two classes of five JPEGs of 250 x 230 px, dark and bright."""
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(tmp_path / "cache"))
    chance = np.random.default_rng(0)
    for name, level in (("dark", 20), ("brïght 'one'", 200)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(5):
            pixels = chance.integers(level, level + 50, (230, 250, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{i}.jpg")
    return tmp_path / "data"


@pytest.fixture
def trunk(tmp_path):
    """A tiny Hugging Face model for 40 px, saved on the spot."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic"
    )
    torch.manual_seed(1)
    transformers.ResNetModel(config).save_pretrained(tmp_path / "trunk")
    about = {"size": {"shortest_edge": 40}, "image_mean": MEAN, "image_std": STD}
    (tmp_path / "trunk" / "preprocessor_config.json").write_text(json.dumps(about))
    return tmp_path / "trunk"


def make_config(folder, run, model, **data) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(str(folder), holdout=0.0, **data),
        model=model,
        optimisation=OptimisationConfig(steps=2, batch_size=4),
        compute=CPU,
        run=RunConfig(run=run, tensorboard=False),
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_pretrained_trunk_decides_size_and_normalisation(folder, trunk, stream):
    data = DataConfig(str(folder), stream=stream, workers=0)
    expected = load_images(TrainConfig(data, ModelConfig(trunk=str(trunk))))
    assert (expected.image_size, expected.mean, expected.std) == (40, tuple(MEAN), tuple(STD))
    x = next(expected.test.batches(2, train=False))[0]
    pixels = expected.test.images_at([0, 1]).permute(0, 3, 1, 2).double() / 255
    by_hand = (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(x.double(), by_hand, rtol=0, atol=1e-5)
    given = DataConfig(str(folder), image_size=48, stream=stream, workers=0)
    assert load_images(TrainConfig(given, ModelConfig(trunk=str(trunk)))).image_size == 48
    own = load_images(TrainConfig(given))
    assert own.mean == load(given).mean


@pytest.mark.parametrize("stream", [False, True])
def test_a_pretrained_trunk_decides_the_crop_of_every_way_to_see_an_image(
    tmp_path, folder, trunk, stream
):
    about = {"size": {"shortest_edge": 50}, "crop_size": 40, "do_center_crop": True}
    about |= {"image_mean": MEAN, "image_std": STD}
    (trunk / "preprocessor_config.json").write_text(json.dumps(about))
    model = ModelConfig(trunk=str(trunk), nodes=16, clusters=2, freeze_trunk=True)
    config = make_config(folder, tmp_path / "run", model, stream=stream, workers=0)
    images = load_images(config)
    picture = Image.open(sorted((folder / "dark").iterdir())[0])
    square = picture.resize((40, 40), Image.Resampling.BILINEAR, box=(33, 23, 217, 207))
    seen = [torch.equal(pixels, torch.from_numpy(np.array(square))) for pixels in _all(images)]
    assert sum(seen) == 1
    run = Run.open(train(config))
    said = list(predict(run.network(), sorted(folder.rglob("*.jpg")), top=1))
    alike = evaluate(run.network().model, run.images().test).probabilities[:, 0].tolist()
    probabilities = np.array([p.probabilities[0] for p in said])
    assert all(np.isclose(probabilities, p, rtol=0, atol=1e-6).any() for p in alike)


def test_photographs_get_a_pretrained_trunk_and_small_images_none(folder):
    found = load_images(TrainConfig(DataConfig(str(folder), workers=0)))
    assert (found.image_size, found.crop) == (224, 0.875)
    assert found.mean == pytest.approx((127 / 255,) * 3)
    resolved = TrainConfig(DataConfig(str(folder))).for_images(found)
    assert resolved.model.trunk == "efficientnet-lite0" and resolved.model.freeze_trunk
    small = load_images(TrainConfig(DataConfig(str(folder), image_size=64, workers=0)))
    assert (small.image_size, small.crop) == (64, 1.0)
    assert TrainConfig(DataConfig(str(folder))).for_images(small).model.trunk == "inception-small"


def test_photographs_become_small_where_there_is_no_pretrained_trunk(folder, monkeypatch):
    config = TrainConfig(DataConfig(str(folder), workers=0))
    monkeypatch.setattr("blockout.models.config.PHOTOGRAPH_TRUNK", "efficientnet-lite9")
    found = load_images(config)
    assert found.image_size == 64
    assert config.for_images(found).model.trunk == "inception-small"
    missing = "efficientnet_lite9_pytorch_model"
    assert f"is above 64 px and {missing} is not installed" in found.why_trunk
    assert found.notes[-1].startswith("inception-small learns from nothing")
    assert found.notes[-1].endswith(f"pip install {missing}")


def test_the_trunk_is_said_with_why_it_was_chosen_if_it_was(folder, tmp_path, capsys):
    """Also in a second run, which finds what the trunk has said in the cache."""
    model = ModelConfig(nodes=16, clusters=2)
    for run in ("one", "two"):
        train(make_config(folder, tmp_path / run, model, workers=0))
        said = capsys.readouterr().out
        why = "(chosen because the shorter side is above 64 px; ImageNet weights, frozen), head"
        assert f"trunk efficientnet-lite0 {why}" in said
        assert "pip install" not in said
    train(make_config(folder, tmp_path / "small", model, image_size=32, workers=0))
    why = "chosen because the shorter side is at most 64 px; from nothing"
    assert f"trunk inception-small ({why}, " in capsys.readouterr().out
    named = replace(model, trunk="inception-small")
    train(make_config(folder, tmp_path / "named", named, image_size=32, workers=0))
    assert "trunk inception-small (from nothing, " in capsys.readouterr().out


@pytest.mark.parametrize("damage", [None, "config.json", "split.json"])
def test_a_run_that_starts_over_keeps_the_sides_of_the_images_it_had(folder, tmp_path, damage):
    """The first split is that of another seed, so that drawing again would not give it."""
    values = {"image_size": 32, "workers": 0, "test_share": 0.4, "holdout": 0.0}
    before = load(DataConfig(str(folder), data_seed=3, **values))
    config = TrainConfig(DataConfig(str(folder), **values), compute=CPU)
    config = replace(config, run=RunConfig(run=tmp_path / "run"))
    with open_folder(tmp_path / "run", config.for_images(before), before):
        pass
    Image.new("RGB", (230, 250)).save(folder / "dark" / "new.jpg")
    if damage is not None:
        (tmp_path / "run" / damage).write_text("{")
    again = load_images(replace(config, run=replace(config.run, restart=True)))
    kept = [_contents(now) >= _contents(was) for was, now in _parts(before, again)]
    assert kept == [damage is None] * 2
    assert len(again.train) + len(again.test) == 11
    other = replace(config, data=replace(config.data, data_seed=1))
    drawn = load_images(replace(other, run=replace(config.run, restart=True)))
    assert _contents(drawn.test) == _contents(load(other.data).test)


def _parts(before, after):
    return (before.train, after.train), (before.test, after.test)


def _contents(split):
    return {*split.contents}


def _all(images):
    for split in (images.train, images.test):
        yield from split.images_at(range(len(split)))


@pytest.mark.parametrize("freeze", [True, False])
def test_a_pretrained_trunk_is_frozen_or_tuned_and_reloads(tmp_path, folder, trunk, freeze):
    model = ModelConfig(trunk=str(trunk), nodes=16, clusters=2, freeze_trunk=freeze)
    run = train(make_config(folder, tmp_path / "run", model))
    before = load_file(trunk / "model.safetensors")
    (trunk / "model.safetensors").unlink()  # the run stands by itself
    trained = Run.open(run).network()
    after = trained.model.trunk.state_dict()
    kernels = [name for name in before if name.endswith("convolution.weight")]
    assert {torch.equal(after[f"model.{name}"], before[name]) for name in kernels} == {freeze}
    means = [name for name in before if name.endswith("running_mean")]
    assert {torch.equal(after[f"model.{name}"], before[name]) for name in means} == {freeze}
    assert (trained.image_size, trained.mean) == (40, tuple(MEAN))


def test_an_efficientnet_trains_by_name_and_reloads_without_its_package(
    tmp_path, folder, monkeypatch
):
    model = ModelConfig(trunk="efficientnet-lite0", nodes=16, clusters=2, freeze_trunk=True)
    config = make_config(folder, tmp_path / "run", model, image_size=64)
    run = train(config)
    expected = EfficientNetLite.load("efficientnet-lite0").state_dict()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    trained = Run.open(run).network()
    found = trained.model.trunk.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (trained.mean, trained.std, trained.crop) == ((127 / 255,) * 3, (128 / 255,) * 3, 0.875)
    again = evaluate(trained.model, load_images(config).test)
    assert again.accuracy == pytest.approx(Run.open(run).test_accuracy)


def test_the_imagenet_configuration_trains_evaluates_and_predicts(tmp_path, folder):
    model = ModelConfig(trunk="inception-bn", nodes=64)
    config = make_config(folder, tmp_path / "run", model, stream=True, workers=1)
    run = train(config)
    trained = Run.open(run).network()
    assert type(trained.model.trunk).__name__ == "InceptionBN"
    assert trained.image_size == 224 and trained.model.head.fc2.out_features == 64
    result = json.loads((run / "result.json").read_text())
    again = evaluate(trained.model, load_images(config).test)
    assert again.accuracy == pytest.approx(result["test"]["accuracy"])
    files = sorted(folder.rglob("*.jpg"))[:2]
    found = list(predict(trained, files, top=2))
    assert [set(p.classes) for p in found] == [{"dark", "brïght 'one'"}] * 2
    assert [sum(p.probabilities) for p in found] == pytest.approx([1.0, 1.0])
