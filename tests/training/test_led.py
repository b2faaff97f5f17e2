"""A linear classifier beside the head: what leads the trunk, and what each says alone."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from blockout.models import ModelConfig
from blockout.runs import Run
from blockout.training import evaluate, train

from .conftest import make_config, make_images


def final(folder):
    return load_file(folder / "final.safetensors")


def photographs(folder, method="blockout", **values):
    config = make_config(folder, paper=False, lr=0.3, **values)
    model = ModelConfig(method=method, trunk="inception-small", width=0.125, nodes=16, clusters=3)
    return dataclasses.replace(config, model=model)


def test_a_trunk_under_a_guided_head_is_bit_for_bit_that_of_the_plain_network(tmp_path):
    images = make_images(size=28)
    for method in ("baseline", "blockout"):
        train(photographs(tmp_path / method, method), data=images)
    plain, guided = final(tmp_path / "baseline"), final(tmp_path / "blockout")
    trunk = [name for name in plain if name.startswith("trunk.")]
    assert trunk and all(torch.equal(plain[name], guided[name]) for name in trunk)
    results = [Run.open(tmp_path / method).result for method in ("baseline", "blockout")]
    assert results[1].linear == results[0].test and results[0].linear is None
    x = next(images.test.batches(21, train=False))[0]
    with torch.no_grad():
        top = Run.open(tmp_path / "blockout").network().model(x).softmax(1).max(1).values
    found = load_file(tmp_path / "blockout" / "predictions.safetensors")["probabilities"][:, 0]
    torch.testing.assert_close(found, top)


def test_a_trunk_that_follows_the_head_becomes_another(tmp_path):
    images = make_images(size=28)
    for follows in ("linear", "head"):
        train(photographs(tmp_path / follows, trunk_follows=follows, steps=3), data=images)
    a, b = (final(tmp_path / follows) for follows in ("linear", "head"))
    assert a.keys() == b.keys()
    assert not any(torch.equal(a[name], b[name]) for name in a if name.endswith("conv.weight"))
    result = Run.open(tmp_path / "head").result
    assert result.linear is None and result.layers is not None


def test_the_linear_classifier_is_a_part_of_the_moving_average_too(tmp_path):
    images = make_images(size=28)
    train(photographs(tmp_path, ema=0.9), data=images)
    assert final(tmp_path).keys() == Run.open(tmp_path).network().model.state_dict().keys()
    assert "head.linear.weight" in final(tmp_path)
    assert Run.open(tmp_path).result.linear is not None


def test_a_led_run_that_was_stopped_ends_bit_identical(tmp_path):
    images = make_images(size=28)
    train(photographs(tmp_path / "whole"), data=images)
    stopped = photographs(tmp_path / "stopped", checkpoint_minutes=1e-9)

    def stop(folder):
        if len((folder / "metrics.jsonl").read_text().splitlines()) > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stopped, data=images, after_save=stop)
    train(stopped, data=images)
    a, b = final(tmp_path / "whole"), final(tmp_path / "stopped")
    assert all(torch.equal(value, b[name]) for name, value in a.items())


def test_a_run_of_before_continues_without_a_linear_classifier(tmp_path):
    path = tmp_path / "config.json"
    before = photographs(tmp_path).resolved().flat()
    del before["with_linear"]
    path.write_text(json.dumps(before))
    assert photographs(tmp_path).as_begun().model.with_linear is False
    assert not photographs(tmp_path).as_begun().resolved().leads
    assert photographs(tmp_path / "new").as_begun().resolved().leads


def test_without_a_linear_classifier_the_trunk_follows_the_head_whatever_a_config_says(tmp_path):
    config = photographs(tmp_path, trunk_follows="linear")
    without = dataclasses.replace(config.model, with_linear=False)
    assert not dataclasses.replace(config, model=without).resolved().leads
    plain = dataclasses.replace(config.model, method="baseline", with_linear=True)
    assert not dataclasses.replace(config, model=plain).resolved().model.with_linear


def test_the_layers_beside_it_are_scored_alone(tmp_path):
    images = make_images(size=28)
    run = Run.open(train(photographs(tmp_path), data=images))
    model = run.network().model
    model.head = model.head.without_linear()
    assert evaluate(model, images.test).numbers() == pytest.approx(
        {name: getattr(run.result.layers, name) for name in ("accuracy", "top5", "loss")}
    )
    assert run.result.layers.loss not in (run.result.test.loss, run.result.linear.loss)


@pytest.mark.parametrize("own", [False, True])
def test_a_run_without_one_stands_beside_the_baseline_of_its_seed(tmp_path, own):
    images, results = make_images(size=28), []
    trunk = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 28 * 28, 12)).eval()
    for method in ("baseline", "fc"):
        config = photographs(tmp_path / method, method)
        frozen = dataclasses.replace(config.model, freeze_trunk=True)
        data = dataclasses.replace(config.data, views=1, cache=tmp_path / "cache")
        config = dataclasses.replace(config, model=frozen, data=data)
        train(config, data=images, trunk=trunk if own else None)
        results.append(Run.open(tmp_path / method).result)
    assert results[1].linear == results[0].test
    assert results[1].layers is None and results[0].linear is None
