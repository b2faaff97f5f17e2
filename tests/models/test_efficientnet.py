"""blockout.models.efficientnet: the network of the reference package, with its checked weights."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch.utils.flop_counter import FlopCounterMode

from blockout.data.images import normalise
from blockout.models import (
    EfficientNetLite,
    FirstStages,
    ImageClassifier,
    ModelConfig,
    build_model,
    from_description,
    last_stages,
    stages,
    trunk_preprocessing,
)
from blockout.models.classifier import pool_features
from blockout.models.config import EFFICIENTNETS
from blockout.models.efficientnet import VARIANTS, package_of, pad_same, read_weights, weights_file

LITE0, LITE1, LITE2 = EFFICIENTNETS


def reference(name, image_size):
    """The other implementation with the same weights."""
    model = EfficientNet.from_name(name, image_size=image_size)
    model.load_state_dict(read_weights(name))
    return model.eval()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a copy of lite0's package in place of the installed one; returns its weights' file."""
    path = tmp_path / "models" / weights_file(LITE0).name
    path.parent.mkdir()
    path.write_bytes(weights_file(LITE0).read_bytes())
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", {package_of(LITE0): spec}.get)
    return path


@pytest.mark.parametrize(
    ("name", "image_size"), [(LITE0, 224), (LITE0, 75), (LITE1, 240), (LITE2, 260), (LITE2, 128)]
)
def test_features_are_those_of_the_reference(name, image_size):
    x = torch.randn(2, 3, image_size, image_size, dtype=torch.float64)
    ours, theirs = EfficientNetLite.load(name).eval(), reference(name, image_size)
    with torch.no_grad():
        found, expected = ours.double()(x), theirs.double().extract_features(x)
        assert found.shape == expected.shape and expected.std() > 0.1
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        found = pool_features(ours.float()(x.float()))
        # Sums in another order change 1e-6 of values up to 6.
        torch.testing.assert_close(found.double(), expected.mean((2, 3)), rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("name", "trunk", "whole"),
    [(LITE0, 3_371_008, 4_652_008), (LITE1, 4_135_680, 5_416_680), (LITE2, 4_811_072, 6_092_072)],
)
def test_weights_are_as_many_as_published_with_the_classifier_of_imagenet(name, trunk, whole):
    model = EfficientNetLite(name)
    assert sum(p.numel() for p in model.parameters()) == trunk
    assert trunk + 1280 * 1000 + 1000 == whole  # 4.7, 5.4 and 6.1 M in print


def test_lite0_takes_384_million_multiply_adds_at_224_px():
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        EfficientNetLite(LITE0).eval()(torch.zeros(1, 3, 224, 224))
    assert counter.get_total_flops() == 2 * 383_907_552
    # The print's 407 M also count what is not a multiply-add of a convolution.
    assert pytest.approx(407e6, rel=0.06) == 383_907_552 + 1280 * 1000


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("kernel", [3, 5])
def test_padding_centres_an_odd_image_and_shifts_an_even_one(size, kernel):
    x = torch.arange(1.0, size + 1).expand(1, 1, size, size)
    row = pad_same(x, kernel, stride=2)[0, 0, kernel, :]
    before = (kernel - 1) // 2 if size % 2 else (kernel - 2) // 2
    assert row.tolist() == [0.0] * before + x[0, 0, 0].tolist() + [0.0] * (kernel // 2)


def test_images_are_cropped_as_published_and_pixels_are_x_minus_127_over_128_to_the_last_bit():
    found = {name: trunk_preprocessing(ModelConfig(trunk=name)) for name in EFFICIENTNETS}
    assert [p.image_size for p in found.values()] == [224, 240, 260]
    assert [p.crop for p in found.values()] == [224 / 256, 240 / 272, 260 / 292]
    levels = torch.arange(256, dtype=torch.uint8)
    pixels = levels.view(1, 16, 16, 1).expand(1, 16, 16, 3)
    for p in found.values():
        x = normalise(pixels, p.mean, p.std)
        assert torch.equal(x[0, 1].flatten(), (levels.float() - 127) / 128)


def test_stages_are_stem_seven_stages_and_head_and_own_every_weight_once():
    trunk = EfficientNetLite(LITE0)
    parts = stages(trunk)
    assert list(parts) == ["stem", *(f"blocks.stage{i}" for i in range(1, 8)), "head"]
    owned = [id(p) for part in parts.values() for p in part.parameters()]
    assert owned == [id(p) for p in trunk.parameters()]


def test_a_frozen_trunk_of_a_classifier_gives_its_features_and_comes_back_without_the_package(
    monkeypatch,
):
    config = ModelConfig(trunk=LITE0, nodes=8, clusters=2, freeze_trunk=True)
    model = build_model(config, classes=3, data_name="own", image_size=64).train()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = reference(LITE0, 64).extract_features(x).mean((2, 3))
        torch.testing.assert_close(model.features(x), expected, rtol=0, atol=3e-5)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        twin: ImageClassifier = from_description(model.describe())
        twin.load_state_dict(model.state_dict())
        assert torch.equal(twin.eval()(x), model.eval()(x))


@pytest.mark.parametrize("name", EFFICIENTNETS)
def test_without_its_package_the_error_says_what_to_install(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=f"{name} needs .*: pip install {package_of(name)}$"):
        build_model(ModelConfig(trunk=name), classes=2, data_name="own", image_size=64)


def test_a_damaged_file_is_refused(package):
    EfficientNetLite.load(LITE0)
    content = bytearray(package.read_bytes())
    content[9_000_000] ^= 1
    package.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{package.name} is damaged .*--force-reinstall"):
        EfficientNetLite.load(LITE0)


def test_a_missing_file_is_named(package):
    package.unlink()
    with pytest.raises(ValueError, match=rf"cannot read .*{package.name} \(No such file"):
        EfficientNetLite.load(LITE0)


def test_every_name_has_its_variant():
    assert tuple(VARIANTS) == EFFICIENTNETS


def test_what_is_kept_of_the_first_stages_and_the_rest_make_the_whole():
    trunk, x = EfficientNetLite("efficientnet-lite0").eval(), torch.rand(2, 3, 64, 64)
    for count in (1, 3):
        first = FirstStages(trunk, count, image_size=64)
        end = last_stages(trunk, count, first.shape)
        torch.testing.assert_close(end(first(x)), trunk(x))
        names = set(end.state_dict())
        assert names < set(trunk.state_dict())
        assert set(list(stages(trunk))[-count:]) == {
            stage for stage in stages(trunk) if any(n.startswith(f"{stage}.") for n in names)
        }
