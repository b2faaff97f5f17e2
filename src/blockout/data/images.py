"""Decodes image files to 8-bit RGB, and crops and normalises them for the network."""

import contextlib
import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from blockout.data.config import DataError, UnreadableImage

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF")
"""What Pillow may open, whatever a file is called. It knows 34 more kinds, and hands some of them
to other programs: PostScript to Ghostscript."""
LARGEST_FILE = 1 << 28
"""Bytes of an image file (0.25 GiB); some decoders copy it three times."""
LARGEST_IMAGE = 1 << 26
"""Pixels of an image (67 million). Decoding takes up to 20 bytes a pixel, so 1.3 GB."""
TILE = (322, 323)
"""TIFF tags: width and height of its tiles, which are decoded whole."""
JPEG_SCAN, MOST_SCANS = b"\xff\xda", 100
"""A progressive JPEG has about ten scans; thousands fit in a file of 1 MB and take minutes."""
BAND = 1 << 20
"""Pixels that are converted at a time, so that a large image is in memory twice at most."""

SPARE = 3
"""A JPEG keeps at least so many times the pixels per side that will be seen of it."""
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
VIEW_SIDE = (0.6, 1.0)
"""How much of the shorter side a numbered view shows."""

_STDERR = threading.Lock()
Channels = tuple[float, float, float]


def decode(
    source: str | PathLike[str] | bytes | memoryview | Image.Image,
    name: str = "",
    shown: int | None = None,
) -> Image.Image:
    """The first frame as upright RGB: transparency on white, the upper 8 of 16 bits.

    Args:
        source: a file, its content, or an opened image.
        name: what to call it in errors.
        shown: the size at which squares of it are seen. A JPEG that is much larger is decoded at a
            half, a quarter or an eighth of its size, which is several times faster.

    Raises:
        DataError: the image is damaged, too large or of an unknown kind, or not a regular file;
            the message names it.
    """
    with _named(source, name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damage: raised where it matters
        if isinstance(source, Image.Image):
            _require_moderate(*source.size)
            return _to_rgb(ImageOps.exif_transpose(source))
        with _opened(_content(source)) as image:
            if image.format == "TIFF":
                with _STDERR, _silenced():
                    image.load()
            if shown is not None:
                image.draft("RGB", (SPARE * shown, SPARE * shown))
            ImageOps.exif_transpose(image, in_place=True)
            return _to_rgb(image)


def content(source: str | PathLike[str] | bytes | memoryview, name: str = "") -> bytes:
    """The file of an image, undecoded; a DataError names one that cannot be read."""
    with _named(source, name):
        return _content(source)


@contextlib.contextmanager
def _named(source: object, name: str) -> Iterator[None]:
    """Turns what reading an image raises into one line that names it."""
    try:
        yield
    except Exception as error:  # Pillow raises nearly anything on damaged bytes
        named = name or (repr(str(source)) if isinstance(source, str | PathLike) else "the image")
        raise UnreadableImage(f"cannot read {named}: {_reason(error)}") from error


def _opened(content: bytes) -> Image.Image:
    """Its header alone; ``load`` decodes it. Refuses what would take too much memory or time."""
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    _require_moderate(*image.size)
    if image.format == "TIFF":
        _require_moderate(*(int(image.tag_v2.get(edge, 1)) for edge in TILE))  # type: ignore
    if image.format in ("JPEG", "MPO") and content.count(JPEG_SCAN) > MOST_SCANS:
        raise DataError(f"it has more than {MOST_SCANS} scans, each of which decodes it again")
    return image


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Inside, nothing reaches standard error: libtiff writes there past Python what Pillow raises.

    Of one thread at a time, hence the lock.
    """
    try:
        kept = os.dup(2)
    except OSError:  # closed: nobody hears it
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _content(source: str | PathLike[str] | bytes | memoryview) -> bytes:
    """Of a regular file only: opening a pipe would wait for somebody to write to it."""
    if isinstance(source, bytes | memoryview):
        size = len(source)
    else:
        status = os.stat(source)
        if not stat.S_ISREG(status.st_mode):
            raise DataError("it is not a regular file")
        size = status.st_size
    if size > LARGEST_FILE:
        raise DataError(f"it has {size:,} bytes; at most {LARGEST_FILE:,} are read")
    return bytes(source) if isinstance(source, bytes | memoryview) else Path(source).read_bytes()


def _reason(error: Exception) -> str:
    """In one line; Pillow's own words where they say something."""
    if isinstance(error, UnidentifiedImageError):
        return f"it is damaged, or none of {', '.join(FORMATS)}"
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _require_moderate(width: int, height: int) -> None:
    if not 0 < width * height <= LARGEST_IMAGE:
        raise DataError(
            f"it has {width} x {height} pixels; 1 to {LARGEST_IMAGE:,} are read: make it smaller"
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    deep = image.mode in ("I", "F") or image.mode.startswith("I;16")
    highest = float(np.nanmax(np.asarray(image))) if deep else None
    if image.width * image.height <= BAND:
        return _band_to_rgb(image, highest)
    rgb, rows = Image.new("RGB", image.size), max(BAND // image.width, 1)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        rgb.paste(_band_to_rgb(band, highest), (0, top))
    return rgb


def _band_to_rgb(image: Image.Image, highest: float | None) -> Image.Image:
    """A part of an image; ``highest`` is the largest value of the whole if it has over 8 bits."""
    if highest is not None:
        return _to_8_bits(image, highest).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(image: Image.Image, highest: float) -> Image.Image:
    """One channel of 16 or 32 bits: takes the upper 8 of 16 bits, scales floats up to 1, and keeps
    values up to 255."""
    values = np.asarray(image)
    if image.mode == "F":
        values = np.nan_to_num(values) * (255.0 if highest <= 1 else 1.0) + 0.5
    elif image.mode != "I" or highest > 255:
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
    pixels = torch.from_numpy(centre_square(decode(image, shown=image_size), image_size, crop))
    return normalise(pixels[None], mean, std)[0]
