"""What the cache holds is told in words."""

import os
from pathlib import Path

import numpy as np

from blockout.commands.cache import in_words
from blockout.data import cache
from blockout.data.cache import Decoded
from blockout.data.entries import entries, remove
from blockout.data.features import FeatureStore, key_of
from blockout.data.tables import Catalogue

ABOUT = {"trunk": {"kind": "efficientnet-lite0"}, "image_size": 224}


def fill(folder: Path) -> None:
    images = np.zeros((6, 64, 64, 3), np.uint8)
    labels, contents = np.zeros(6, np.int64), np.zeros((6, 16), np.uint8)
    known = Catalogue(("a",), None, None, labels, labels, (), contents)
    cache.write(folder, f"my-pets-{'0' * 16}", Decoded(known, images, cache.moments_of(images)))
    cache.remembered(folder, "side-1", lambda: 3)
    cache.remembered(folder, "alike-1", lambda: [1])
    store = FeatureStore(folder, "f", ABOUT)
    keys = [key_of(bytes([image]) * 16, view) for image in range(5) for view in range(2)]
    store.add(keys[:4], np.zeros((4, 9000), np.float32))
    store.add(keys[4:], np.zeros((6, 9000), np.float32))
    for name in ("pets", "", "pets", "more"):
        store.serves(name)
    trunk = {"kind": "pretrained", "configuration": {"model_type": "vit"}, "up_to": "stage3"}
    FeatureStore(folder, "g", {"trunk": trunk, "image_size": 48})


def test_entries_are_told_by_data_set_trunk_and_number_of_images(tmp_path):
    fill(tmp_path)
    about = {entry.name: entry.about for entry in entries(tmp_path)}
    of_f = "features of 5 images of pets, more (10 views of 224 px) by efficientnet-lite0"
    assert next(iter(about.items())) == ("features/f", of_f)  # the largest first
    assert about["features/g"] == "features of 0 images (0 views of 48 px) by vit up to stage3"
    assert about[f"decoded/my-pets-{'0' * 16}"] == "6 images of my-pets, decoded to 64 px"
    assert about["results/side-1.json"] == "sizes of images"


def test_what_cannot_be_read_is_listed_too_and_can_be_removed(tmp_path):
    fill(tmp_path)
    (tmp_path / "features" / "f" / "about.json").write_text("{")
    (tmp_path / "decoded" / f"my-pets-{'0' * 16}" / "images.npy").write_bytes(b"")
    (tmp_path / "results" / "unknown-1.json").write_text("")
    os.mkfifo(tmp_path / "features" / "g" / "0.safetensors")  # nobody writes into it
    found = {entry.name: entry for entry in entries(tmp_path)}
    broken = ("features/f", "features/g", f"decoded/my-pets-{'0' * 16}", "results/unknown-1.json")
    assert all(found[name].about == "not readable" for name in broken)
    remove(tmp_path, found["features/f"])
    assert "features/f" not in {entry.name for entry in entries(tmp_path)}


def test_small_results_are_one_entry_of_the_list_and_ages_are_days(tmp_path):
    fill(tmp_path)
    for path in (tmp_path / "features" / "f").iterdir():
        os.utime(path, (path.stat().st_mtime - 3.5 * 86400,) * 2)
    assert entries(tmp_path)  # being listed is no use
    lines = in_words(entries(tmp_path), tmp_path, deleted=False)
    assert "3 days ago  features of 5 images" in lines[0] and lines[1].strip() == "features/f"
    small = next(i for i, line in enumerate(lines) if "2 small results" in line)
    assert lines[small].endswith("2 small results: sizes of images, which images are alike")
    assert lines[small + 1].strip() == "results" and "today" in lines[small]
    assert lines[-1].endswith(f"MB in {tmp_path}") and len(lines) == 2 * 4 + 1
