"""Which side an image goes to: alike images stay together, as far as images are compared."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blockout.data import DataConfig, ImageData, load, sides
from blockout.data.duplicates import copies
from blockout.data.sides import Dividing


@pytest.fixture
def photographs(tmp_path: Path) -> Callable[..., Path]:
    """Two classes of twelve photographs; with copies, each was saved again as a smaller one."""

    def make(root: str, seed: int, with_copies: bool = True) -> Path:
        rng = np.random.default_rng(seed)
        for name in ("ant", "bee"):
            folder = tmp_path / root / name
            folder.mkdir(parents=True)
            for i in range(12):
                image = _photograph(rng)
                image.save(folder / f"{i:02}.jpg", quality=95)
                again = image.resize((40, 40)) if with_copies else _photograph(rng)
                again.save(folder / f"{i:02} again.jpg", quality=60)
        return tmp_path / root

    return make


def _photograph(rng: np.random.Generator) -> Image.Image:
    small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8))
    return small.resize((64, 64), Image.Resampling.BICUBIC)


def loaded(folder: Path, dividing: Dividing = sides.BY_CONTENT) -> ImageData:
    config = DataConfig(str(folder), cache=folder.parent / "cache", workers=0, holdout=0.2)
    return load(config, dividing=dividing)


def parted(data: ImageData) -> int:
    """How many photographs have their copy on another side."""
    part = {
        split.pictures.name(i): number
        for number, split in enumerate((data.train, data.holdout, data.test))
        for i in range(len(split))
    }
    assert len(part) == 48 and len(set(part.values())) == 3
    return sum(part[name] != part[name.replace(" again", "")] for name in part if "again" in name)


def test_photographs_that_were_saved_again_are_on_one_side(photographs):
    assert parted(loaded(photographs("set", 0))) == 0


def test_in_large_sets_only_equal_files_are_found(photographs, monkeypatch):
    """By chance, about half of 24 pairs are parted."""
    monkeypatch.setattr(sides, "MOST_COMPARED", 47)
    folder = photographs("set", 0)
    for path in sorted(folder.rglob("00.jpg")):
        path.with_stem("00 again").write_bytes(path.read_bytes())
    data = loaded(folder)
    assert parted(data) > 4
    equal = [{"ant/00.jpg", "ant/00 again.jpg"}, {"bee/00.jpg", "bee/00 again.jpg"}]
    for split in (data.train, data.holdout, data.test):
        names = {split.pictures.name(i) for i in range(len(split))}
        assert all(len(pair & names) in (0, 2) for pair in equal)


def test_groups_are_remembered_for_these_images_and_no_others(photographs, monkeypatch):
    """As many others without a copy lie in the same cache."""
    loaded(photographs("others", 1, with_copies=False))
    folder = photographs("set", 0)
    before = loaded(folder)
    assert parted(before) == 0
    monkeypatch.setattr("blockout.data.duplicates.thumbnails", None)  # nothing is compared again
    assert loaded(folder).fingerprint() == before.fingerprint()


def test_another_way_to_find_alike_images_is_asked_once_with_all_that_may_be_drawn(photographs):
    asked, expected = [], []

    def grouping(pictures, labels):
        asked.append((len(labels), [pictures.name(i) for i in (0, 1)]))
        return copies(pictures, labels)

    def expect(catalogue, train):
        expected.append((len(catalogue.labels), train))

    data = loaded(photographs("set", 0), Dividing(grouping, expect=expect))
    assert parted(data) == 0
    assert asked == [(48, ["ant/00 again.jpg", "ant/00.jpg"])]
    ((images, train),) = expected
    assert images == 48 and abs(train - len(data.train)) <= 12, "about so many"


def test_a_class_of_nearly_the_same_images_is_said(photographs):
    folder = photographs("set", 0)
    for path in (folder / "bee").glob("0*.jpg"):
        Image.open(folder / "bee" / "10.jpg").save(path, quality=int(path.stem[:2]) + 80)
    (note,) = [note for note in loaded(folder).notes if "nearly the same" in note]
    assert note.startswith("in 1 of 2 classes more than half") and "('bee')" in note
