"""blockout.models.features: the fastest way gives the features of the plain trunk."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from blockout.data.images import normalise
from blockout.models import (
    EfficientNetLite,
    SmallInception,
    fast_features,
    features,
    weights_digest,
)
from blockout.models.classifier import pool_features
from blockout.models.efficientnet import MEAN, STD

SIZE = 64


@pytest.fixture(scope="module")
def trunk():
    return EfficientNetLite.load("efficientnet-lite0").eval()


def some_images(count=6, size=SIZE):
    return torch.randint(256, (count, size, size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)


@torch.no_grad()
def by_hand(trunk, images):
    return pool_features(trunk(normalise(images.permute(0, 2, 3, 1), MEAN, STD)))


def ways(trunk, threads=1, bfloat16=False):
    plain = features._plain(trunk, MEAN, STD, threads)
    return {way.name: way for way in (*features._ways(plain, SIZE, bfloat16), plain)}


def test_the_chosen_way_gives_the_features_of_the_trunk(trunk):
    images = some_images()
    fast = fast_features(trunk, SIZE, MEAN, STD, threads=1)
    expected = by_hand(trunk, images)
    found = fast(images)
    assert found.dtype == torch.float32 and expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    assert fast.name in ("onednn", "folded", "plain") and fast.images_per_second > 0


def test_every_way_gives_the_features_of_the_trunk(trunk):
    images = some_images()
    expected = by_hand(trunk, images)
    found = {name: way(images) for name, way in ways(trunk).items()}
    assert {"folded", "plain"} <= set(found)
    for value in found.values():
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-5 * expected.abs().max().item())


def test_features_depend_neither_on_the_batch_nor_on_the_threads(trunk):
    images = some_images(9)
    one, three = (ways(trunk, threads) for threads in (1, 3))
    for name, way in one.items():
        whole = way(images)
        assert torch.equal(three[name](images), whole)
        assert torch.equal(torch.cat([way(images[:1]), way(images[1:6]), way(images[6:])]), whole)
        assert torch.equal(way(images.contiguous()), whole)


class Spy(nn.Module):
    """The mean of the image; remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(tuple(x.shape))
        return x


def test_a_network_sees_whole_chunks_only():
    fast = features._plain(Spy(), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 1)
    images = some_images(features.CHUNK + 1)
    torch.testing.assert_close(fast(images), images.float().mean((2, 3)) / 255)
    assert fast.network.seen == [(features.CHUNK, 3, SIZE, SIZE)] * 2


def test_later_changes_of_the_trunk_change_nothing_and_the_trunk_keeps_its_mode():
    trunk = SmallInception(0.25).train()
    fast, images = fast_features(trunk, 32, MEAN, STD, threads=1), some_images(size=32)
    before = fast(images)
    assert trunk.training and all(p.requires_grad for p in trunk.parameters())
    nn.init.zeros_(trunk.stem.conv.conv.weight)
    assert torch.equal(fast(images), before)


def test_a_trunk_with_nothing_to_fold_goes_the_plain_way():
    trunk = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    fast, images = fast_features(trunk, SIZE, MEAN, STD, threads=1), some_images()
    assert fast.name == "plain"
    torch.testing.assert_close(fast(images), by_hand(trunk, images))


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("could not create a primitive")


class Wrong(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x) * 1.01


@pytest.mark.parametrize("broken", [lambda network: Broken(), Wrong])
def test_a_way_that_fails_or_is_wrong_is_not_taken(trunk, monkeypatch, broken):
    def folded(network, image_size, onednn=False):
        return broken(network)

    monkeypatch.setattr(features, "folded", folded)
    monkeypatch.setattr(features, "_measured", lambda ways, images: faster(ways))
    assert fast_features(trunk, SIZE, MEAN, STD, threads=1).name == "plain"


def faster(ways):
    """As if each were much faster than the next."""
    speeds = (10.0**power for power in range(len(ways), 0, -1))
    return [replace(w, images_per_second=speed) for w, speed in zip(ways, speeds, strict=True)]


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [
        ({"onednn": 100, "folded": 149, "plain": 50}, "onednn"),
        ({"onednn": 100, "folded": 151, "plain": 50}, "folded"),
        ({"onednn": 10, "folded": 20, "plain": 50}, "plain"),
        ({"onednn bfloat16": 129, "onednn": 100, "folded": 50, "plain": 50}, "onednn"),
        ({"onednn bfloat16": 131, "onednn": 100, "folded": 50, "plain": 50}, "onednn bfloat16"),
    ],
)
def test_an_earlier_way_is_taken_unless_a_later_one_is_clearly_faster(trunk, speeds, chosen):
    found = ways(trunk, bfloat16=True)
    measured = [replace(found[name], images_per_second=s) for name, s in speeds.items()]
    assert features._fastest(measured).name == chosen


@pytest.mark.parametrize("way", ["folded", "plain"])
def test_a_way_that_was_gone_before_is_taken_again_though_another_is_faster(
    trunk, monkeypatch, way
):
    monkeypatch.setattr(features, "_measured", lambda ways, images: faster(ways))
    assert fast_features(trunk, SIZE, MEAN, STD, threads=1, way=way).name == way
    unknown = fast_features(trunk, SIZE, MEAN, STD, threads=1, way="by hand")
    assert unknown.name == fast_features(trunk, SIZE, MEAN, STD, threads=1).name


def test_bfloat16_is_taken_only_if_asked_for_and_close(trunk, monkeypatch):
    monkeypatch.setattr(features, "_measured", lambda ways, images: faster(ways))
    assert fast_features(trunk, SIZE, MEAN, STD, threads=1).name != "onednn bfloat16"
    monkeypatch.setattr(features, "COSINE", 1.1)
    asked = fast_features(trunk, SIZE, MEAN, STD, threads=1, bfloat16=True)
    assert asked.name != "onednn bfloat16"


def test_the_digest_follows_weights_statistics_and_names():
    def build():
        torch.manual_seed(0)
        return SmallInception(0.25)

    expected = weights_digest(build())
    assert weights_digest(build().to(memory_format=torch.channels_last)) == expected
    changed = build()
    changed.stem.conv.norm.running_mean[0] += 1e-6
    assert len({weights_digest(changed), weights_digest(nn.Sequential(build())), expected}) == 3


@pytest.mark.parametrize(
    "images",
    [torch.zeros(2, 3, 8, 8), torch.zeros(3, 8, 8).byte(), torch.zeros(2, 8, 8, 3).byte()],
)
def test_what_is_not_a_batch_of_8_bit_images_is_refused(images):
    fast = features._plain(nn.Identity(), MEAN, STD, 1)
    with pytest.raises(ValueError, match=r"expected images \(N, 3, H, W\) of torch.uint8, got"):
        fast(images)


def test_no_threads_are_refused(trunk):
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        fast_features(trunk, SIZE, MEAN, STD, threads=0)


def test_few_images_take_the_first_way_however_busy_the_machine_is(trunk, monkeypatch):
    slowest_first = {"onednn": 10.0, "folded": 20.0, "plain": 50.0}
    monkeypatch.setattr(
        features,
        "_measured",
        lambda ways, images: [replace(w, images_per_second=slowest_first[w.name]) for w in ways],
    )
    assert fast_features(trunk, SIZE, MEAN, STD, images=49).name == "onednn"
    assert fast_features(trunk, SIZE, MEAN, STD, images=51).name == "plain"
    assert fast_features(trunk, SIZE, MEAN, STD).name == "plain"
