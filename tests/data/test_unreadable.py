"""Images that cannot be read: few are left out unasked, more are not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from blockout.data import DataConfig
from blockout.data.config import UnreadableImage
from blockout.data.folders import list_folder
from blockout.data.unreadable import require_few_unreadable, unreadable, without

Folder = Callable[..., Path]


def broken(folder: Path, count: int) -> Path:
    """The same folder with so many images of class a broken."""
    for path in sorted((folder / "a").iterdir())[:count]:
        path.write_bytes(b"broken")
    return folder


@pytest.mark.parametrize(("images", "few", "many"), [(12, 1, 2), (60, 3, 4)])
def test_one_image_or_one_in_twenty_may_be_unreadable(
    image_folder: Folder, tmp_path: Path, images: int, few: int, many: int
) -> None:
    folder = image_folder({"a": images // 2, "b": images // 2})
    config = DataConfig(str(folder), cache=tmp_path / "cache", workers=0)
    broken(folder, few)
    require_few_unreadable(config)
    broken(folder, many)
    with pytest.raises(UnreadableImage, match=rf"{many} of {images} images are unreadable: .*000"):
        require_few_unreadable(config)


def test_they_are_found_at_their_places_and_the_others_stay_in_order(image_folder: Folder) -> None:
    folder = image_folder({"a": 5, "b": 6})
    for name in ("a/003", "b/000", "b/005"):
        (folder / f"{name}.png").write_bytes(b"broken")
    table = list_folder(folder).open()
    errors = dict(unreadable(table.rows, 0, chunk=4))
    assert list(errors) == [3, 5, 10]
    left = without(table, errors)
    names = [left.rows.name(place) for place in range(len(left.rows))]
    assert names == [
        *(f"a/{i:03}.png" for i in (0, 1, 2, 4)),
        *(f"b/{i:03}.png" for i in (1, 2, 3, 4)),
    ]
    assert left.catalogue.labels.tolist() == [0] * 4 + [1] * 4
    assert left.catalogue.notes[-1].startswith("skipped 3 unreadable images: ")
