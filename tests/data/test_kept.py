"""A run's images are recognised in a folder that has changed since."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from blockout.data import DataConfig, ImageData, load
from blockout.data.kept import Kept, KnownImage
from blockout.data.sides import Dividing
from blockout.data.tables import HOLDOUT, TEST, TRAIN

Folder = Callable[..., Path]


def sides(data: ImageData) -> dict[str, set[str]]:
    """The names of the images of each part."""
    return {
        part: {split.pictures.name(i) for i in range(len(split))}
        for part in ("train", "holdout", "test")
        if (split := getattr(data, part)) is not None
    }


def loaded(folder: Path, kept=None, **values) -> ImageData:
    config = DataConfig(
        str(folder), cache=folder.parent / "cache", workers=0, holdout=0.2, **values
    )
    return load(config, dividing=Dividing(kept=kept))


def add(folder: Path, picture, count: int) -> None:
    for i in range(count):
        picture(5000 + i).save(folder / f"new{i}.png")


def test_new_images_are_left_out_of_a_run_and_said(image_folder: Folder, picture):
    folder = image_folder({"ant": 12, "bee": 12})
    before = loaded(folder)
    add(folder / "ant", picture, 9)
    shutil.copytree(folder / "bee", folder / "cow")
    for stream in (None, True):
        after = loaded(folder, before.kept(), stream=stream)
        assert after.classes == ("ant", "bee") and sides(after) == sides(before)
        assert after.fingerprint() == before.fingerprint()
        assert len(after.changes.new) == 21 and after.changes.harmless
        assert "21 images are new since the run, and left out (ant/new0.png, ...)" in after.notes


def test_what_was_said_of_a_division_is_said_again_of_the_same_one_only(
    image_folder: Folder, picture
):
    folder = image_folder({"ant": 12, "bee": 40})
    before = loaded(folder)
    assert len(before.notes) == 2  # no test split, and classes of different sizes
    assert loaded(folder, before.kept()).notes == before.notes
    add(folder / "ant", picture, 28)
    again = loaded(folder, before.kept())
    assert again.notes[:2] == before.notes and "28 images are new" in again.notes[2]
    assert again.kept().notes == before.notes
    drawn = loaded(folder, before.kept(only=False))
    assert not {*drawn.notes} & {*before.notes}


def test_images_that_are_gone_changed_or_moved_are_said(image_folder: Folder, picture):
    folder = image_folder({"ant": 12, "bee": 12})
    before = loaded(folder)
    (folder / "ant" / "003.png").unlink()
    picture(999).save(folder / "ant" / "004.png")
    (folder / "bee" / "005.png").rename(folder / "ant" / "moved.png")
    (folder / "bee" / "006.png").rename(folder / "bee" / "renamed.png")
    after = loaded(folder, before.kept())
    assert after.changes.gone == ("ant/003.png",) and after.changes.changed == ("ant/004.png",)
    assert after.changes.moved == ("ant/moved.png",) and not after.changes.new
    assert not after.changes.harmless
    was, now = sides(before), sides(after)
    for old, new in (("bee/005.png", "ant/moved.png"), ("bee/006.png", "bee/renamed.png")):
        assert [old in was[p] for p in was] == [new in now[p] for p in now]
    assert sum(map(len, now.values())) == 22


def test_equal_images_of_both_splits_keep_the_split_of_their_file(image_folder: Folder):
    folder = image_folder({"train/ant": 8, "train/bee": 8, "test/ant": 3, "test/bee": 3})
    shutil.copy(folder / "train" / "ant" / "000.png", folder / "test" / "ant" / "leak.png")
    before = loaded(folder)
    after = loaded(folder, before.kept())
    assert sides(after) == sides(before) and "test/ant/leak.png" in sides(after)["test"]
    (folder / "test" / "ant" / "leak.png").rename(folder / "test" / "ant" / "again.png")
    kept = before.kept()
    for known in (kept, replace(kept, images=kept.images[::-1])):  # in whatever order they come
        assert "test/ant/again.png" not in sides(loaded(folder, known))["test"]


def test_a_run_that_starts_from_another_divides_its_images_alike(image_folder: Folder, picture):
    folder = image_folder({"ant": 30, "bee": 30})
    before = loaded(folder)
    add(folder / "ant", picture, 60)
    after = loaded(folder, before.kept(only=False), data_seed=8)
    for part, names in sides(before).items():
        assert names <= sides(after)[part]
    assert len(after.train) + len(after.holdout) + len(after.test) == 120
    assert all(len(names) > len(sides(before)[part]) for part, names in sides(after).items())


def test_training_images_of_before_in_a_published_test_set_are_said(image_folder: Folder):
    folder = image_folder({"train/ant": 8, "train/bee": 8, "test/ant": 3, "test/bee": 3})
    before = loaded(folder)
    trained = next(name for name in sides(before)["train"] if "ant" in name)
    shutil.move(folder / trained, folder / "test" / "ant" / "seen.png")
    after = loaded(folder, before.kept(only=False))
    said = "1 test images were training images of the run that this one starts from"
    assert said in after.notes
    assert said not in loaded(folder, replace(before.kept(only=False), learned=False)).notes


def test_images_are_a_runs_own_if_they_hold_half_of_its_training_and_of_its_test_images():
    def images(part: int, count: int) -> list[KnownImage]:
        return [KnownImage(bytes([part, i]), f"{part}{i}", 0, part) for i in range(count)]

    train, held, test = images(TRAIN, 8), images(HOLDOUT, 2), images(TEST, 4)
    kept = Kept(("a",), (*train, *held, *test))
    of = lambda *some: [known.content for known in some]  # noqa: E731
    assert kept.is_held_by(of(*train[:4], *test[:2])) and kept.trained_on(of(*train, *test)) == 8
    assert not kept.is_held_by(of(*train[:3], *test))
    assert not kept.is_held_by(of(*train, *held, test[0]))
    assert not Kept(("a",), tuple(train)).is_held_by(of(*train))
    assert kept.trained_on(of(train[0], held[0], test[0], train[0])) == 2
