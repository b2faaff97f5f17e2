import os
from collections.abc import Callable
from pathlib import Path

import pytest

from blockout.data import DataError
from blockout.data.folders import list_folder
from blockout.data.tables import HOLDOUT, TEST, TRAIN

Folder = Callable[..., Path]


def test_one_folder_a_class_gives_sorted_classes_and_their_images(image_folder: Folder) -> None:
    table = list_folder(image_folder({"dog": 2, "cat": 3})).open()
    assert table.catalogue.classes == ("cat", "dog")
    assert table.catalogue.labels.tolist() == [0, 0, 0, 1, 1]
    assert set(table.catalogue.parts.tolist()) == {TRAIN}
    assert table.catalogue.groups is None and table.catalogue.group_names is None
    paths = [row["file"]["path"] for row in table.rows.dataset]
    assert [Path(p).parts[-2:] for p in paths[2:4]] == [("cat", "002.png"), ("dog", "000.png")]


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_a_single_other_split_is_the_test_set(image_folder: Folder, name: str) -> None:
    folder = image_folder({"train/a": 2, "train/b": 2, f"{name}/a": 1, f"{name}/b": 1})
    catalogue = list_folder(folder).open().catalogue
    assert catalogue.parts.tolist() == [TRAIN] * 4 + [TEST] * 2
    assert catalogue.labels.tolist() == [0, 0, 1, 1, 0, 1]


def test_a_validation_split_beside_a_test_split_is_the_holdout(image_folder: Folder) -> None:
    folder = image_folder({f"{s}/{c}": 1 for s in ("train", "val", "test") for c in "ab"})
    parts = list_folder(folder).open().catalogue.parts.tolist()
    assert sorted(parts) == [TRAIN] * 2 + [HOLDOUT] * 2 + [TEST] * 2


def test_group_class_image_gives_groups(image_folder: Folder) -> None:
    folder = image_folder({"pets/dog": 1, "wild/wolf": 1, "pets/cat": 2})
    catalogue = list_folder(folder).open().catalogue
    assert catalogue.classes == ("cat", "dog", "wolf")
    assert catalogue.group_names == ("pets", "wild") and catalogue.groups == (0, 0, 1)
    assert catalogue.labels.tolist() == [0, 0, 1, 2]


def test_one_common_parent_is_no_group(image_folder: Folder) -> None:
    catalogue = list_folder(image_folder({"photos/dog": 1, "photos/cat": 1})).open().catalogue
    assert catalogue.classes == ("cat", "dog") and catalogue.groups is None


def test_folders_of_the_same_name_within_classes_are_only_storage(image_folder: Folder) -> None:
    folder = list_folder(image_folder({"dog/images": 2, "cat/images": 1, "cat/more": 1}))
    assert folder.open().catalogue.classes == ("cat", "dog")
    assert folder.open().catalogue.labels.tolist() == [0, 0, 1, 1]
    said = "the folders directly in the data folder are the classes; deeper ones are not"
    assert any(note.startswith(said) for note in folder.notes)


def test_a_class_of_railway_trains_is_a_class(image_folder: Folder) -> None:
    catalogue = list_folder(image_folder({"train": 2, "tram": 1})).open().catalogue
    assert catalogue.classes == ("train", "tram")


def test_hidden_files_are_ignored_and_other_files_counted(image_folder: Folder) -> None:
    folder = image_folder({"a": 1, "b": 1, ".thumbs": 1, "__MACOSX": 1})
    (folder / "a" / "._000.png").write_bytes(b"resource fork")
    (folder / "a" / "labels.txt").write_text("x")
    (folder / "b" / "photo.HEIC").write_bytes(b"x")
    listed = list_folder(folder)
    assert listed.open().catalogue.classes == ("a", "b") and len(listed.open().rows) == 2
    assert listed.notes == (
        "ignored 2 files that cannot be read as images (1 .txt, 1 .heic)",
        "to use photographs that end in '.heic', save them as JPEG",
    )


def test_upper_case_suffixes_are_images(image_folder: Folder) -> None:
    folder = image_folder({"a": 1, "b": 1})
    (folder / "a" / "000.png").rename(folder / "a" / "000.PNG")
    assert len(list_folder(folder).open().rows) == 2


def test_folders_beside_the_splits_are_reported(image_folder: Folder) -> None:
    folder = image_folder({"train/a": 1, "train/b": 1, "test/a": 1, "test/b": 1, "extra/c": 1})
    listed = list_folder(folder)
    assert listed.open().catalogue.classes == ("a", "b")
    assert listed.notes == ("ignored folders beside train/: 'extra'",)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"a": 0, "b": 0}, r"holds no images; expected one folder per class"),
        ({".": 3}, r"are directly in it; expected one folder per class"),
        ({"train": 2, "test": 2}, r"train has no class folders; expected train/<class>/<image>"),
        (
            {"train/g/a": 1, "train/h/b": 1, "test/a": 1, "test/b": 1},
            r"test holds no image of the classes in .*train; it has none, expected",
        ),
        (
            {"train/a": 1, "train/b": 1, "test/c": 1},
            r"test holds no image of the classes in .*train; it has 'c', expected some of 'a', 'b'",
        ),
        ({"train/a": 1, "val/a": 1, "valid/a": 1}, r"both val/ and valid/; keep one"),
    ],
)
def test_a_folder_that_cannot_be_used_says_what_is_wrong(
    image_folder: Folder, counts: dict[str, int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list_folder(image_folder(counts))


def test_splits_may_lack_classes_and_unknown_ones_are_left_out(image_folder: Folder) -> None:
    counts = {"train/a": 3, "train/b": 2, "train/empty": 0, "val/a": 1, "val/c": 2, "test/b": 1}
    listed = list_folder(image_folder(counts))
    known = listed.open().catalogue
    assert known.classes == ("a", "b")
    assert known.labels.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert known.parts.tolist() == [0, 0, 0, 0, 0, 1, 2]
    said = "\n".join(listed.notes)
    assert "2 images in" in said and "val are left out: their classes have no training" in said
    assert "val has no image of 'b'" in said and "test has no image of 'a'" in said
    assert "folders without images are left out: 'empty'" in said
    assert str(listed.root) not in said


def test_a_link_into_nothing_is_named_when_it_is_read(image_folder: Folder) -> None:
    folder = image_folder({"a": 1, "b": 1})
    (folder / "b" / "link.png").symlink_to(folder / "gone.png")
    listed = list_folder(folder)
    assert len(listed.fingerprint) == 64
    with pytest.raises(DataError, match=r"cannot read .*link\.png"):
        listed.open().rows.image(2)


def test_the_fingerprint_changes_when_a_file_is_rewritten_added_or_removed(
    image_folder: Folder,
) -> None:
    folder = image_folder({"a": 2, "b": 2})
    prints = [list_folder(folder).fingerprint]
    assert list_folder(folder).fingerprint == prints[0]
    (folder / "a" / "000.png").write_bytes(b"other")
    prints.append(list_folder(folder).fingerprint)
    (folder / "a" / "new.png").write_bytes(b"other")
    prints.append(list_folder(folder).fingerprint)
    (folder / "b" / "000.png").unlink()
    prints.append(list_folder(folder).fingerprint)
    assert len(set(prints)) == 4


def test_a_link_back_into_the_folder_is_named_instead_of_followed(image_folder: Folder) -> None:
    folder = image_folder({"a": 1, "b": 1})
    (folder / "b" / "again").symlink_to(folder)
    with pytest.raises(DataError, match=r"set/b/again is the same folder as .*set; remove the"):
        list_folder(folder)


def test_links_that_multiply_folders_are_named(image_folder: Folder) -> None:
    """Two links in each of 30 folders to the next one would be 2**30 folders."""
    folder = image_folder({f"{i}": 1 for i in range(31)})
    for i in range(30):
        for link in ("x", "y"):
            (folder / f"{i}" / link).symlink_to(folder / f"{i + 1}")
    with pytest.raises(DataError, match="is the same folder as"):
        list_folder(folder)


def test_splits_may_be_links_to_one_folder(image_folder: Folder) -> None:
    folder = image_folder({"train/a": 1, "train/b": 1})
    (folder / "test").symlink_to(folder / "train")
    assert list_folder(folder).open().catalogue.parts.tolist() == [TRAIN] * 2 + [TEST] * 2


def test_a_name_that_is_no_text_is_named(image_folder: Folder) -> None:
    folder = image_folder({"a": 1, "b": 1})
    os.rename(folder / "b" / "000.png", os.fsencode(folder / "b") + b"/caf\xe9.png")
    with pytest.raises(DataError, match=r"b/caf\\udce9.png' is not UTF-8; rename it"):
        list_folder(folder)


def test_suffixes_of_kinds_that_are_not_read_are_counted_as_other_files(
    image_folder: Folder,
) -> None:
    folder = image_folder({"a": 1, "b": 1})
    (folder / "a" / "page.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0")
    assert list_folder(folder).notes == ("ignored 1 file that cannot be read as images (1 .eps)",)


def test_a_folder_that_cannot_be_listed_is_an_error(
    image_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scandir = image_folder({"a": 1, "b": 1}), os.scandir

    def refuse(place: str) -> object:
        if str(place).endswith("b"):
            raise PermissionError(13, "Permission denied", place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        list_folder(folder)


def test_folders_of_several_depths_are_said_by_name(image_folder: Folder) -> None:
    folder = list_folder(image_folder({"dog": 2, "bird": 2, "pets/cat": 2}))
    assert folder.open().catalogue.classes == ("bird", "dog", "pets")
    assert any("'pets' has folders inside. If those are classes" in note for note in folder.notes)


@pytest.mark.parametrize("wrapping", ["data", "a/b"])
def test_a_folder_that_wraps_the_data_is_looked_into(image_folder: Folder, wrapping: str) -> None:
    names = {f"{wrapping}/{s}/{c}": 1 for s in ("train", "test") for c in ("cat", "dog")}
    catalogue = list_folder(image_folder(names)).open().catalogue
    assert catalogue.classes == ("cat", "dog")
    assert catalogue.parts.tolist() == [TRAIN] * 2 + [TEST] * 2


def test_a_single_class_or_split_is_no_wrapping(image_folder: Folder) -> None:
    assert list_folder(image_folder({"cat": 2})).open().catalogue.classes == ("cat",)
    only_train = list_folder(image_folder({"train/a": 1, "train/b": 1}))
    assert only_train.open().catalogue.classes == ("a", "b")


def test_a_link_to_the_folder_above_is_named_and_not_followed_forever(image_folder: Folder) -> None:
    folder = image_folder({"cat": 0})
    os.symlink(folder, folder / "cat" / "again")
    with pytest.raises(DataError, match="is the same folder as"):
        list_folder(folder)


def test_an_empty_split_is_ignored_with_a_note(image_folder: Folder) -> None:
    folder = image_folder({"train/a": 1, "train/b": 1})
    (folder / "val" / "a").mkdir(parents=True)
    listed = list_folder(folder)
    assert set(listed.open().catalogue.parts.tolist()) == {TRAIN}
    assert "ignored, because there are no images in it: 'val'" in listed.notes


def test_images_outside_of_class_folders_are_said(image_folder: Folder) -> None:
    folder = image_folder({"a": 2, "b": 1})
    (folder / "a" / "001.png").rename(folder / "loose.png")
    found = list_folder(folder)
    assert "images that are in no class folder are left out: 'loose.png'" in found.notes
