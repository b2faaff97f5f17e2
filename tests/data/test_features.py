"""Features on disk by content, and batches of them."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save

from blockout.data import MemorySplit
from blockout.data.features import FeatureSplit, FeatureStore, digests, key_of
from blockout.data.images import centre_square, numbered_view

rng = np.random.default_rng(0)
ABOUT = {"trunk": "tiny"}


def picture(width: int = 60, height: int = 40) -> Image.Image:
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def keys(count: int) -> list[bytes]:
    return [key_of(bytes([i]) * 16, i % 3) for i in range(count)]


def test_the_first_view_is_what_evaluation_sees_and_the_second_its_mirror_image():
    image = picture()
    centre = centre_square(image, 24, 0.875)
    assert np.array_equal(numbered_view(image, 24, 0.875, 0, b"x" * 16), centre)
    assert np.array_equal(numbered_view(image, 24, 0.875, 1, b"x" * 16), centre[:, ::-1])


def test_further_views_differ_from_each_other_and_depend_on_the_content_alone():
    image = picture()
    seen = [numbered_view(image, 24, 1.0, view, b"some content 123") for view in range(6)]
    assert len({view.tobytes() for view in seen}) == 6
    again = numbered_view(image, 24, 1.0, 4, b"some content 123")
    assert np.array_equal(again, seen[4])
    assert not np.array_equal(numbered_view(image, 24, 1.0, 4, b"other content 12"), again)


def test_features_come_back_as_they_were_added(tmp_path):
    features = rng.normal(size=(5, 7)).astype(np.float32)
    store = FeatureStore(tmp_path, "entry", ABOUT)
    store.add(keys(5)[:3], features[:3])
    store.add(keys(5)[3:], features[3:])
    again = FeatureStore(tmp_path, "entry", {"trunk": "another"})
    assert all(np.array_equal(again[key], row) for key, row in zip(keys(5), features, strict=True))
    assert keys(6)[5] not in again and again.about == ABOUT
    assert keys(5)[0] not in FeatureStore(tmp_path, "other trunk", ABOUT)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"way":' * 900 + "1" + "}" * 900, "[]", "{"])
def test_a_damaged_note_about_features_is_written_anew(tmp_path, text):
    store = FeatureStore(tmp_path, "entry", ABOUT)
    (store.folder / "about.json").write_text(text)
    assert store.way is None
    store.way = "torch"
    store.serves("pets")
    assert store.about == {"way": "torch", "data": ["pets"]}


def test_a_part_whose_shapes_do_not_fit_is_damaged_though_its_name_fits(tmp_path):
    store = FeatureStore(tmp_path, "entry", ABOUT)
    for tensors in ({"keys": np.zeros((2, 18), np.uint8)}, {"keys": np.zeros((3, 18), np.uint8),
                    "features": np.zeros((2, 7), np.float32)}):  # fmt: skip
        content = save(tensors)
        name = hashlib.blake2b(content, digest_size=16).hexdigest()
        (store.folder / f"{name}.safetensors").write_bytes(content)
    assert FeatureStore(tmp_path, "entry", ABOUT).damaged == 2


@pytest.mark.parametrize("harm", ["flip", "truncate"])
def test_a_damaged_part_is_noticed_and_only_its_features_are_lost(tmp_path, harm):
    features = rng.normal(size=(4, 7)).astype(np.float32)
    store = FeatureStore(tmp_path, "entry", ABOUT)
    store.add(keys(4)[:2], features[:2])
    victim = next(store.folder.glob("*.safetensors"))
    store.add(keys(4)[2:], features[2:])
    written = bytearray(victim.read_bytes())
    written[-3] ^= 4
    victim.write_bytes(bytes(written) if harm == "flip" else bytes(written[:-9]))
    again = FeatureStore(tmp_path, "entry", ABOUT)
    assert again.damaged == 1
    assert [key in again for key in keys(4)] == [False, False, True, True]


def memory_split(count: int = 12) -> MemorySplit:
    images = torch.from_numpy(rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    places = torch.arange(count) + 3
    return MemorySplit(images, places, torch.arange(count) % 3, (0.5,) * 3, (0.2,) * 3)


def test_digests_tell_images_apart_wherever_they_are():
    split = memory_split()
    found = digests(split.pictures, len(split))
    assert len(set(found)) == len(split)
    assert found[2:5] == digests(
        MemorySplit(
            split._images, split._rows[2:5], split.labels[2:5], (0.5,) * 3, (0.2,) * 3
        ).pictures,
        3,
    )


def test_training_sees_random_views_and_evaluation_the_first():
    features = torch.arange(12 * 4).view(12, 4, 1).float()
    split = FeatureSplit(features, memory_split())
    (x, y), *rest = split.batches(12, train=False)
    assert not rest and torch.equal(x, features[:, 0]) and torch.equal(y, split.labels)
    seen = [next(split.batches(12, train=True, seed=1, epoch=e)) for e in range(60)]
    for x, y in seen:
        image = (x[:, 0] / 4).long()
        assert sorted(image.tolist()) == list(range(12))
        assert torch.equal(y, split.labels[image])
    # A view that is never drawn in 60 epochs has a probability of (3/4)^60 = 3e-8 per image.
    assert len({value for x, _ in seen for value in x[:, 0].tolist()}) == 48
    again = next(split.batches(12, train=True, seed=1, epoch=7))
    assert torch.equal(again[0], seen[7][0])
