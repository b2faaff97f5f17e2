import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from blockout.data import DataError
from blockout.data.tables import Rows, join

datasets = pytest.importorskip("datasets")


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def rows(picture: Callable[..., Image.Image]) -> Rows:
    """Three training and two test images; the second of the test is damaged."""
    stored = [{"bytes": png(picture(i)), "path": None} for i in range(4)]
    stored.append({"bytes": png(picture(4))[:100], "path": "last.png"})
    features = datasets.Features({"image": datasets.Image()})
    return join(
        {
            "train": datasets.Dataset.from_dict({"image": stored[:3]}, features=features),
            "test": datasets.Dataset.from_dict({"image": stored[3:]}, features=features),
        },
        "image",
    )


def test_splits_follow_each_other(rows: Rows, picture: Callable[..., Image.Image]) -> None:
    assert len(rows) == 5
    for place in range(4):
        assert np.array_equal(rows.image(place), picture(place))


def test_a_selection_keeps_its_order(rows: Rows, picture: Callable[..., Image.Image]) -> None:
    some = rows.take(np.array([3, 0, 2])).take(np.array([2, 0]))
    assert np.array_equal(some.image(0), picture(2)) and np.array_equal(some.image(1), picture(3))


def test_a_damaged_row_is_named_by_its_number_in_its_split(rows: Rows) -> None:
    with pytest.raises(DataError, match=r"cannot read row 1 of test \('last.png'\): "):
        rows.image(4)


def test_reading_all_goes_on_after_a_damaged_image(
    rows: Rows, picture: Callable[..., Image.Image]
) -> None:
    first, error, *others = rows.take(np.array([2, 4, 1, 0])).images()
    assert isinstance(error, DataError) and "row 1 of test" in str(error)
    assert all(isinstance(image, Image.Image) for image in (first, *others))
    assert np.array_equal(first, picture(2)) and np.array_equal(others[1], picture(0))


def test_a_row_without_an_image_is_named() -> None:
    import pyarrow

    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    stored = pyarrow.array([None, {"bytes": None, "path": None}], kind)
    rows = join({"train": datasets.Dataset(pyarrow.table({"image": stored}))}, "image")
    assert [str(error) for error in rows.images()] == [
        "cannot read row 0 of train: it holds no image",
        "cannot read row 1 of train: it holds no image",
    ]


def test_a_row_of_too_many_bytes_is_not_decoded(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockout.data.images.LARGEST_FILE", 100)
    with pytest.raises(
        DataError, match=r"cannot read row 0 of train: it has [\d,]+ bytes; at most"
    ):
        rows.image(0)
