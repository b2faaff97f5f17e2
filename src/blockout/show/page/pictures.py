"""Small pictures inside the page: JPEG as text."""

import base64
import io
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

SMALLER = ((4, 48, 80), (4, 32, 75), (3, 32, 65), (2, 28, 55), (1, 28, 55), (1, 20, 40))
"""Images a class, pixels a side, quality: tried in turn until all fit."""

VEIL, DARKEST = 24, 0.7
"""Pixels a side of a veil, which the browser smooths, and how dark it is where nothing speaks."""


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


def veil(found: Float32[np.ndarray, "grid_h grid_w"]) -> str:
    """A picture to lay over another: dark, and clear where the map is high, as a data URI."""
    grey = Image.fromarray((255 * (1 - found)).round().astype(np.uint8))
    smooth = grey.resize((VEIL, VEIL), Image.Resampling.BICUBIC).point(lambda v: int(DARKEST * v))
    dark = Image.merge("LA", (Image.new("L", smooth.size), smooth))
    file = io.BytesIO()
    dark.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def class_strips(
    sheet: UInt8[np.ndarray, "classes side images_side 3"] | None, most_bytes: int
) -> list[str]:
    """The strip of test images of each class, from a run's thumbnails, as data URIs.

    Fewer and smaller images for many classes, so that all together stay below ``most_bytes``.
    Empty where there are no thumbnails, or where even the smallest would be too much.
    """
    if sheet is None:
        return []
    for count, side, quality in SMALLER:
        strips = [as_jpeg(strip, quality) for strip in _strips(sheet, count, side)]
        if sum(map(len, strips)) <= most_bytes:
            return strips
    return []


def _strips(sheet: np.ndarray, count: int, side: int) -> Iterator[Image.Image]:
    own = sheet.shape[1]
    side, count = min(side, own), min(count, sheet.shape[2] // own)
    for row in sheet:
        strip = Image.fromarray(row[:, : count * own])
        yield strip.resize((count * side, side), Image.Resampling.LANCZOS)
