"""Small pictures inside the page: JPEG as text."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from blockout.data import DataError
from blockout.data.images import decode
from blockout.training.finish import THUMBNAILS_A_CLASS

SMALLER = ((4, 48, 80), (4, 32, 75), (3, 32, 65), (2, 28, 55), (1, 28, 55), (1, 20, 40))
"""Images a class, pixels a side, quality: tried in turn until all fit."""


def as_jpeg(image: Image.Image, quality: int = 80) -> str:
    """A data URI.

    >>> as_jpeg(Image.new("RGB", (4, 4)))[:23]
    'data:image/jpeg;base64,'
    """
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def picture(pixels: UInt8[np.ndarray, "height width 3"], largest: int) -> str:
    """One image as a data URI, no larger than ``largest`` a side."""
    image = Image.fromarray(pixels)
    image.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    return as_jpeg(image)


def class_strips(sheet: Path, classes: int, most_bytes: int) -> list[str]:
    """A strip of test images for each class from a run's thumbnails, as data URIs.

    Fewer and smaller images for many classes, so that all together stay below ``most_bytes``.
    Empty where there are no thumbnails, or where even the smallest would be too much.
    """
    try:
        image = decode(sheet)
    except DataError:
        return []
    if image.height % classes or image.width * classes != image.height * THUMBNAILS_A_CLASS:
        return []
    for count, side, quality in SMALLER:
        strips: list[str] = []
        for strip in _strips(image, classes, count, side):
            strips.append(as_jpeg(strip, quality))
        if sum(map(len, strips)) <= most_bytes:
            return strips
    return []


def _strips(sheet: Image.Image, classes: int, count: int, side: int) -> Iterator[Image.Image]:
    own = sheet.height // classes
    side = min(side, own)
    for row in range(classes):
        strip = sheet.crop((0, row * own, count * own, (row + 1) * own))
        yield strip.resize((count * side, side), Image.Resampling.LANCZOS)
