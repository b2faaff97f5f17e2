"""A head on the features of a frozen trunk: computed once, and one ordinary network in the end."""

import copy
from dataclasses import replace

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from torch import nn

from blockout.data import MemorySplit
from blockout.models import Head, ImageClassifier
from blockout.models.features import fast_features
from blockout.runs import Run
from blockout.training import evaluate, recording, train
from blockout.training import features as features_module
from blockout.training.finetuning import seconds_per_image

from .conftest import make_config, make_images


class Trunk(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU())


class Counting:
    """A way through the trunk that counts the images, and stops before some of them."""

    def __init__(self, *given, way, images) -> None:
        Counting.asked.append(way)
        self.way = fast_features(*given, way=way, images=images)
        self.name, self.images_per_second = self.way.name, self.way.images_per_second

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if Counting.seen >= Counting.most:
            raise KeyboardInterrupt
        Counting.seen += len(images)
        return self.way(images)


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    Counting.seen, Counting.most, Counting.asked = 0, 10**9, []
    monkeypatch.setattr(features_module, "fast_features", Counting)


def make_model(method: str = "blockout", seed: int = 5) -> ImageClassifier:
    torch.manual_seed(seed)
    return ImageClassifier(
        Trunk(), Head(8, 4, method=method, nodes=16, clusters=2), freeze_trunk=True
    )


@pytest.fixture
def config(tmp_path):
    """Three views of each of 80 training images; the cache is in tmp_path."""
    plain = make_config(tmp_path / "run")
    data = replace(plain.data, views=3, cache=tmp_path / "cache", workers=0)
    return replace(plain, data=data)


def in_folder(config, name):
    return replace(config, run=replace(config.run, run=config.run.run.with_name(name)))


def test_the_trunk_sees_each_view_once_and_never_changes(config):
    model = make_model()
    before = {k: v.clone() for k, v in model.trunk.state_dict().items()}
    folder = train(config, model=model, data=make_images())
    assert Counting.seen == 3 * 80 + 19 + 21
    weights = load_file(folder / "final.safetensors")
    assert all(torch.equal(weights[f"trunk.{k}"], v) for k, v in before.items())
    assert {k.partition(".")[0] for k in weights} == {"trunk", "head"}
    best = load_file(folder / "best.safetensors")
    assert best.keys() == weights.keys()


def test_a_second_head_and_an_added_image_pass_only_what_is_new(config):
    train(config, model=make_model(), data=make_images())
    Counting.seen = 0
    train(in_folder(config, "second"), model=make_model("fc"), data=make_images())
    assert Counting.seen == 0
    images, third = make_images(), make_model("dropout")
    more = torch.cat([images.train._images, images.train._images[:1] + 1])
    rows = torch.cat([images.train._rows, torch.tensor([120])])
    labels = torch.cat([images.train.labels, images.train.labels[:1]])
    longer = MemorySplit(more, rows, labels, images.mean, images.std)
    train(in_folder(config, "third"), model=third, data=replace(images, train=longer))
    assert Counting.seen == 3


def test_equal_images_of_one_split_or_two_pass_once(tmp_path):
    images = make_images()
    pixels = images.train._images.clone()
    pixels[40:80] = pixels[:40]
    pixels[images.test._rows[:5]] = pixels[:5].clone()
    split = {
        name: MemorySplit(pixels, some._rows, some.labels, images.mean, images.std)
        for name in ("train", "holdout", "test")
        if (some := getattr(images, name))
    }
    found = features_module.with_features(
        replace(images, **split),
        make_model(),
        views=3,
        cache=tmp_path,
        workers=0,
        say=lambda text: None,
    )
    assert len(found.train) == 80 and Counting.seen == 3 * 40 + 19 + (21 - 5)
    assert torch.equal(found.train.features[40:], found.train.features[:40])
    assert torch.equal(found.test.features[:5, 0], found.train.features[:5, 0])
    assert not torch.equal(found.train.features[1], found.train.features[0])


def test_another_trunk_shares_nothing(config):
    train(config, model=make_model(), data=make_images())
    train(in_folder(config, "other"), model=make_model(seed=6), data=make_images())
    assert Counting.seen == 2 * 280


def test_the_result_is_the_accuracy_of_the_whole_network_on_the_images(config):
    images, model = make_images(), make_model()
    folder = train(config, model=model, data=images)
    run = Run.open(folder)
    network = run.network(trunk=Trunk()).model
    whole = evaluate(network, images.test)
    said = load_file(folder / "predictions.safetensors")
    assert torch.equal(whole.classes, said["classes"])
    torch.testing.assert_close(whole.probabilities, said["probabilities"], rtol=0, atol=1e-5)
    assert run.result.test.accuracy == whole.accuracy


def test_what_was_computed_before_an_interruption_is_kept(config, monkeypatch):
    monkeypatch.setattr(features_module, "BATCH", 10)
    Counting.most = 100
    with pytest.raises(KeyboardInterrupt):
        train(config, model=make_model(), data=make_images())
    Counting.seen, Counting.most = 0, 10**9
    train(config, model=make_model(), data=make_images())
    assert Counting.seen == 280 - 100
    first, again = Counting.asked
    assert first is None and again in (
        "onednn",
        "folded",
        "plain",
    )  # as the first


def test_without_views_images_go_through_the_trunk_in_every_epoch(config):
    model = make_model()
    config = replace(config, data=replace(config.data, views=0))
    passes = []
    model.trunk.register_forward_pre_hook(lambda module, inputs: passes.append(len(inputs[0])))
    train(config, model=model, data=make_images())
    assert Counting.seen == 0 and sum(passes) > 280


@pytest.mark.usefixtures("_patience")
def test_what_is_kept_is_read_while_another_process_computes(config):
    images, model = make_images(), make_model()
    given = {"views": 1, "cache": config.data.cache, "workers": 0, "say": lambda text: None}
    first = features_module.with_features(images, model, **given)
    (entry,) = (config.data.cache / "features").glob("*.lock")
    with FileLock(entry):
        again = features_module.with_features(images, model, **given)
    assert torch.equal(first.train.features, again.train.features)


def test_how_long_a_head_on_features_takes_is_said_before_its_first_step(
    config, capsys, monkeypatch
):
    def told(text):
        _, found, after = capsys.readouterr().out.partition(text)
        return bool(found) and "20 steps of 16 images" in after

    train(in_folder(config, "short"), model=make_model(), data=make_images())
    assert not told("on this machine")
    monkeypatch.setattr(recording, "seconds_per_image", lambda model, split, images: images / 16)
    train(in_folder(config, "long"), model=make_model(), data=make_images())
    assert told("about 5 min on this machine, as it is now")  # 20 steps of 16 seconds


def test_on_features_epochs_are_looked_at_more_seldom_with_the_same_weights(config, monkeypatch):
    """An epoch takes less time there than looking at the test and saving."""
    every = train(config, model=make_model(), data=make_images())
    monkeypatch.setattr(recording, "MOST_ROUNDS_ON_FEATURES", 2)
    seldom = train(in_folder(config, "seldom"), model=make_model(), data=make_images())
    logs = [(folder / "metrics.jsonl").read_text() for folder in (every, seldom)]
    assert [log.count("epoch_loss") for log in logs] == [4, 2]
    both = [load_file(folder / "final.safetensors") for folder in (every, seldom)]
    assert all(torch.equal(value, both[1][name]) for name, value in both[0].items())


def test_timing_a_step_on_features_changes_no_result(config, monkeypatch):
    timed, plain = (in_folder(config, name) for name in ("timed", "plain"))
    train(timed, model=make_model(), data=make_images())
    monkeypatch.setattr(recording, "seconds_per_image", lambda model, split, images: 0.0)
    train(plain, model=make_model(), data=make_images())
    one, two = (load_file(c.run.run / "final.safetensors") for c in (timed, plain))
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_timing_a_step_leaves_weights_statistics_and_random_numbers(images):
    torch.manual_seed(2)
    head = Head(16 * 16 * 3, 4, method="dropout", nodes=16)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16 * 16 * 3), head)
    before, chance = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert 0 < seconds_per_image(model, images.train, 16) < 0.1
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), chance)
