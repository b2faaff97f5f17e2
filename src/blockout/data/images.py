"""Decodes image files to 8-bit RGB, and crops and normalises them for the network."""

import io
import struct
import zlib
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from blockout.data.config import DataError

# Pillow raises OSError for what is missing or not an image, and any of the others on damaged bytes.
_DAMAGED = (ValueError, TypeError, SyntaxError, EOFError, IndexError, KeyError)
_UNREADABLE = (OSError, *_DAMAGED, struct.error, zlib.error, Image.DecompressionBombError)

CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
VIEW_SIDE = (0.6, 1.0)
"""How much of the shorter side a numbered view shows."""

Channels = tuple[float, float, float]


def decode(source: str | PathLike[str] | bytes | Image.Image, name: str = "") -> Image.Image:
    """The first frame as upright RGB: transparency on white, the upper 8 of 16 bits.

    Raises:
        DataError: the image is damaged or of an unknown kind; the message names it.
    """
    try:
        if isinstance(source, Image.Image):
            return _to_rgb(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            return _to_rgb(image)
    except _UNREADABLE as error:
        named = name or (repr(str(source)) if isinstance(source, str | PathLike) else "the image")
        raise DataError(f"cannot read {named}: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _to_8_bits(image).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """One channel of 16 or 32 bits: takes the upper 8 of 16 bits, scales floats up to 1, and keeps
    values up to 255."""
    values = np.asarray(image)
    if image.mode == "F":
        values = values * (255.0 if values.max() <= 1 else 1.0) + 0.5
    elif image.mode != "I" or values.max() > 255:
        values = values.astype(np.int64) >> 8
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def centre_square(
    image: Image.Image, size: int, crop: float = 1.0
) -> UInt8[np.ndarray, "size size 3"]:
    """The centred square whose side is `crop` of the shorter side, resized to `size`."""
    side = crop * min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return _resized(image, (left, top, left + side, top + side), size)


def random_crop(
    image: Image.Image, size: int, rng: np.random.Generator
) -> UInt8[np.ndarray, "size size 3"]:
    """A window of random area and aspect, resized to `size` and mirrored half of the time.

    The window is drawn once and cut to fit the image. Others draw up to ten times until it fits.
    """
    area = image.width * image.height * rng.uniform(*CROP_AREA)
    aspect = np.exp(rng.uniform(*np.log(CROP_ASPECT)))
    width = int(np.clip(round((area * aspect) ** 0.5), 1, image.width))
    height = int(np.clip(round((area / aspect) ** 0.5), 1, image.height))
    left = int(rng.integers(image.width - width + 1))
    top = int(rng.integers(image.height - height + 1))
    crop = _resized(image, (left, top, left + width, top + height), size)
    return crop[:, ::-1] if rng.random() < 0.5 else crop


def numbered_view(
    image: Image.Image, size: int, crop: float, view: int, content: bytes
) -> UInt8[np.ndarray, "size size 3"]:
    """One of the views under which a frozen trunk sees an image.

    View 0 is what evaluation sees and view 1 its mirror image. Each further view is a square of
    another size and place, mirrored half of the time, which `view` and `content` decide.
    """
    if view < 2:
        square = centre_square(image, size, crop)
        return square[:, ::-1] if view else square
    rng = np.random.default_rng([view, int.from_bytes(content[:8], "big")])
    side = min(image.size) * rng.uniform(*VIEW_SIDE)
    left, top = (rng.random() * (length - side) for length in image.size)
    square = _resized(image, (left, top, left + side, top + side), size)
    return square[:, ::-1] if rng.random() < 0.5 else square


def _resized(
    image: Image.Image, box: tuple[float, float, float, float], size: int
) -> UInt8[np.ndarray, "size size 3"]:
    """A box of the image at `size`; pixels that need no resizing stay exact."""
    return np.array(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


def normalise(
    images: UInt8[Tensor, "n height width 3"], mean: Channels, std: Channels
) -> Float32[Tensor, "n 3 height width"]:
    """(image / 255 - mean) / std, in channels_last memory.

    Rounds twice instead of in one fused step, so that an image gives the same bits in any batch.
    """
    n, height, width, _ = images.shape
    scale = 1 / (255 * torch.tensor(std, dtype=torch.float64))
    shift = -torch.tensor(mean, dtype=torch.float64) / torch.tensor(std, dtype=torch.float64)
    rows = images.reshape(n * height, width * 3).to(torch.float32)
    rows.mul_(scale.float().repeat(width)).add_(shift.float().repeat(width))
    return rows.view(n, height, width, 3).permute(0, 3, 1, 2)


def prepare(
    image: Image.Image | str | PathLike[str],
    image_size: int,
    mean: Channels,
    std: Channels,
    crop: float = 1.0,
) -> Float32[Tensor, "3 size size"]:
    """One image as in evaluation: decoded, centre square, normalised.

    Raises:
        DataError: the file is missing or damaged.
    """
    if not isinstance(image, Image.Image) and not Path(image).is_file():
        raise DataError(f"there is no image file {str(image)!r}")
    pixels = torch.from_numpy(centre_square(decode(image), image_size, crop))
    return normalise(pixels[None], mean, std)[0]
