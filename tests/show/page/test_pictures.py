import base64
import io

import numpy as np
import pytest
from PIL import Image

from blockout.show.page.pictures import class_strips, picture


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.fixture
def sheet(tmp_path):
    """Three classes, four images of 8 pixels each; every class has a colour."""
    pixels = np.zeros((24, 32, 3), dtype=np.uint8)
    for row in range(3):
        pixels[8 * row : 8 * row + 8, :, row] = 200
    Image.fromarray(pixels).save(tmp_path / "sheet.png")
    return tmp_path / "sheet.png"


def test_each_class_has_its_own_row_of_the_sheet(sheet):
    strips = [opened(uri) for uri in class_strips(sheet, 3, 10_000)]
    assert [strip.size for strip in strips] == [(32, 8)] * 3
    for number, strip in enumerate(strips):
        middle = np.asarray(strip)[4, 16].astype(int)
        assert middle.argmax() == number and middle[number] > 150


def test_many_classes_have_smaller_images_that_fit_together(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (48 * 100, 192, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "sheet.png")
    whole = class_strips(tmp_path / "sheet.png", 100, 10_000_000)
    small = class_strips(tmp_path / "sheet.png", 100, 200_000)
    assert opened(whole[0]).size == (192, 48)
    assert len(small) == 100 and sum(map(len, small)) <= 200_000
    assert class_strips(tmp_path / "sheet.png", 100, 1000) == []


def test_a_missing_a_damaged_or_another_sheet_gives_no_images(tmp_path, sheet):
    (tmp_path / "damaged.png").write_bytes(b"no image")
    assert class_strips(tmp_path / "nothing.png", 3, 10_000) == []
    assert class_strips(tmp_path / "damaged.png", 3, 10_000) == []
    assert class_strips(sheet, 4, 10_000) == []


def test_a_picture_is_made_smaller_but_never_larger():
    assert opened(picture(np.zeros((200, 100, 3), np.uint8), 96)).size == (48, 96)
    assert opened(picture(np.zeros((32, 32, 3), np.uint8), 96)).size == (32, 32)
