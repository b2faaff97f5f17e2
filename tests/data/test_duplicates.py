"""Images that are nearly the same are found, and single ones are not."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from blockout.data import duplicates
from blockout.data.duplicates import (
    Alike,
    Copies,
    as_alike_as_crops,
    copies,
    duplicate_groups,
    equal_files,
    joined,
    near_copies,
    nearest,
)
from blockout.data.splits import Squares


def bursts(sizes: list[int], spread: float, seed: int = 0) -> np.ndarray:
    """Features of bursts of photographs: rows around a centre per burst."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(sizes), 64))
    rows = np.repeat(centres, sizes, axis=0)
    return (rows + spread * rng.normal(size=rows.shape)).astype(np.float32)


def partition(groups: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(groups == g).tolist()) for g in np.unique(groups)}


def test_groups_are_the_bursts_whatever_their_order_and_length():
    sizes = [1, 5, 2, 1, 7]
    features = bursts(sizes, 0.1) * np.linspace(0.1, 50, 16)[:, None].astype(np.float32)
    wanted = partition(np.repeat(range(5), sizes))
    assert partition(duplicate_groups(features, threshold=0.9).groups) == wanted
    order = np.random.default_rng(1).permutation(16)
    shuffled = duplicate_groups(features[order], threshold=0.9).groups
    assert partition(shuffled[np.argsort(order)]) == wanted


def test_a_chain_of_alike_images_is_one_group():
    angles = np.linspace(0, np.pi / 2, 10)
    features = np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    assert set(duplicate_groups(features, threshold=0.98).groups) == {0}
    assert len(set(duplicate_groups(features, threshold=0.99).groups)) == 10  # cos(pi / 18) = 0.985


def test_images_of_different_classes_are_never_together():
    features = bursts([6], 0.01)
    labels = np.array([0, 1, 0, 1, 0, 1])
    groups = duplicate_groups(features, labels, threshold=0.9).groups
    assert not set(groups[labels == 0]) & set(groups[labels == 1])


def test_a_class_that_is_one_burst_is_cut_and_named():
    rng = np.random.default_rng(0)
    features = np.concatenate([bursts([12], 0.3), bursts([3, 3, 3, 3], 0.01, seed=2)])
    labels = np.repeat([4, 7], 12)
    found = duplicate_groups(features, labels, threshold=0.5)
    assert found.uniform == (4,)
    assert np.bincount(found.groups[labels == 4]).max() <= 6
    assert partition(found.groups[labels == 7]) == partition(np.repeat(range(4), 3))
    same = np.repeat(rng.normal(size=(1, 8)), 5, axis=0).astype(np.float32)
    alone = duplicate_groups(same, np.zeros(5, np.int64), threshold=0.9)
    assert len(set(alone.groups)) == 5 and alone.uniform == (0,)


def test_joined_groups_are_the_finest_that_both_fit_into():
    one, other = np.array([0, 0, 1, 1, 2, 3]), np.array([5, 6, 6, 7, 8, 5])
    assert partition(joined(one, other)) == {frozenset({0, 1, 2, 3, 5}), frozenset({4})}


def test_three_in_four_images_are_as_alike_as_their_crops():
    angles = np.linspace(0.1, 0.9, 101)
    whole = np.tile(np.array([1, 0], np.float32), (101, 1))
    crops = np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    found = as_alike_as_crops(7 * whole, 0.2 * crops)
    assert found == pytest.approx(np.cos(0.1 + 0.8 * 0.75), abs=1e-6)


def saved(image: Image.Image, side: int, quality: int) -> Image.Image:
    stored = io.BytesIO()
    image.resize((side, side)).save(stored, "JPEG", quality=quality)
    return Image.open(stored).convert("RGB")


def test_copies_are_recognised_after_saving_again_and_other_images_are_not():
    rng = np.random.default_rng(3)
    smooth = [Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)) for _ in range(4)]
    images = [i.resize((96, 96), Image.Resampling.BICUBIC) for i in smooth]
    again = [saved(image, 70, 40).resize((96, 96)) for image in images]
    pixels = torch.from_numpy(np.stack([np.asarray(i) for i in [*images, *again]]))
    found = copies(Squares(pixels, torch.arange(8)), np.zeros(8, np.int64))
    assert isinstance(found, Alike)
    assert partition(found.groups) == {frozenset({i, i + 4}) for i in range(4)}


def test_equal_files_are_found_once_each_with_the_first_of_the_others():
    found = equal_files([b"x", b"b", b"b"], [b"a", b"b", b"b"])
    assert (found.places.tolist(), found.of.tolist()) == ([1, 2], [1, 1])
    assert len(equal_files([b"x"], [b"a"]).places) == 0


@pytest.mark.parametrize("block", [1, 40, 1 << 24])
def test_the_nearest_has_the_largest_cosine_whatever_is_computed_at_once(block, monkeypatch):
    monkeypatch.setattr(duplicates, "BLOCK", block)
    rng = np.random.default_rng(0)
    one, other = (rng.normal(size=(n, 5)).astype(np.float32) for n in (9, 20))
    found = nearest(one, other)
    for row, of, similarity in zip(one, found.of, found.similarity, strict=True):
        cosines = [row @ o / np.linalg.norm(row) / np.linalg.norm(o) for o in other]
        assert of == np.argmax(cosines) and similarity == pytest.approx(max(cosines), abs=1e-5)


def pictures(*images: np.ndarray) -> Squares:
    return Squares(torch.from_numpy(np.stack(images)), torch.arange(len(images)))


def test_near_copies_need_alike_features_and_alike_pixels():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 255, (2, 32, 32, 3), dtype=np.uint8)
    brighter, mirrored = (one // 2 + 120).astype(np.uint8), one[:, ::-1].copy()
    tests = pictures(brighter, mirrored, other, brighter)
    similarity = np.array([0.9, 0.9, 0.99, 0.5], np.float32)
    proposed = Copies(np.arange(4), np.zeros(4, np.int64), similarity)
    found = near_copies(proposed, tests, pictures(one), 0.8)
    assert found.places.tolist() == [0, 1] and found.of.tolist() == [0, 0]


def test_only_the_nearest_are_decoded_to_be_confirmed(monkeypatch):
    monkeypatch.setattr(duplicates, "MOST_CONFIRMED", 2)
    one = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    similarity = np.array([0.9, 0.95, 0.99], np.float32)
    proposed = Copies(np.arange(3), np.zeros(3, np.int64), similarity)
    found = near_copies(proposed, pictures(one, one, one), pictures(one), 0.8)
    assert found.places.tolist() == [1, 2]
