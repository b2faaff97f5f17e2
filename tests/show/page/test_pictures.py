import base64
import io

import numpy as np
from PIL import Image

from blockout.show.page.pictures import class_strips, picture


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_each_class_has_its_own_strip():
    """Three classes, four images of 8 pixels each; every class has a colour."""
    sheet = np.zeros((3, 8, 32, 3), dtype=np.uint8)
    for row in range(3):
        sheet[row, ..., row] = 200
    strips = [opened(uri) for uri in class_strips(sheet, 10_000)]
    assert [strip.size for strip in strips] == [(32, 8)] * 3
    for number, strip in enumerate(strips):
        middle = np.asarray(strip)[4, 16].astype(int)
        assert middle.argmax() == number and middle[number] > 150


def test_many_classes_have_smaller_images_that_fit_together():
    noise = np.random.default_rng(0).integers(0, 256, (100, 48, 192, 3), dtype=np.uint8)
    whole, small = class_strips(noise, 10_000_000), class_strips(noise, 200_000)
    assert opened(whole[0]).size == (192, 48)
    assert len(small) == 100 and sum(map(len, small)) <= 200_000
    assert class_strips(noise, 1000) == []


def test_no_thumbnails_give_no_strips():
    assert class_strips(None, 10_000) == []


def test_a_picture_is_made_smaller_but_never_larger():
    assert opened(picture(np.zeros((200, 100, 3), np.uint8), 96)).size == (48, 96)
    assert opened(picture(np.zeros((32, 32, 3), np.uint8), 96)).size == (32, 32)
