import io
import os
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from blockout.data import DataError, prepare
from blockout.data import images as images_module
from blockout.data.images import LARGEST_FILE, centre_square, decode, normalise, random_crop

RED, WHITE, BLACK = (255, 0, 0), (255, 255, 255), (0, 0, 0)


def stored(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def colour(source: bytes | Image.Image) -> tuple[int, ...]:
    """The colour of the upper left pixel."""
    image = decode(source)
    assert image.mode == "RGB"
    return tuple(np.asarray(image)[0, 0].tolist())


def test_greyscale_and_one_bit_images_repeat_their_channel() -> None:
    assert colour(stored(Image.new("L", (4, 4), 77), "PNG")) == (77, 77, 77)
    assert colour(stored(Image.new("1", (4, 4), 1), "PNG")) == WHITE


@pytest.mark.parametrize(("alpha", "expected"), [(255, RED), (0, WHITE), (51, (255, 204, 204))])
def test_transparency_shows_white_behind_it(alpha: int, expected: tuple[int, ...]) -> None:
    assert colour(stored(Image.new("RGBA", (4, 4), (*RED, alpha)), "PNG")) == expected


def test_grey_with_alpha_shows_white_behind_it() -> None:
    assert colour(stored(Image.new("LA", (4, 4), (100, 0)), "PNG")) == WHITE
    assert colour(stored(Image.new("LA", (4, 4), (100, 255)), "PNG")) == (100, 100, 100)


def test_a_palette_gives_its_colours_and_its_transparent_entry_white() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([*BLACK, *RED])
    assert colour(stored(image, "PNG")) == RED
    assert colour(stored(image, "PNG", transparency=1)) == WHITE
    assert colour(stored(image, "PNG", transparency=0)) == RED


def test_cmyk_becomes_rgb() -> None:
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert np.abs(np.subtract(colour(stored(red, "TIFF")), RED)).max() == 0
    # JPEG is lossy: a few levels
    assert np.abs(np.subtract(colour(stored(red, "JPEG", quality=95)), RED)).max() <= 4


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_keep_their_upper_8(kind: str) -> None:
    values = np.full((4, 4), 200 * 256 + 17, np.uint16)
    assert colour(stored(Image.fromarray(values), kind)) == (200, 200, 200)


def test_32_bit_integers_and_floats_are_brought_to_8_bits() -> None:
    assert colour(Image.fromarray(np.full((4, 4), 200 * 256, np.int32))) == (200, 200, 200)
    assert colour(Image.fromarray(np.full((4, 4), 200, np.int32))) == (200, 200, 200)
    assert colour(Image.fromarray(np.full((4, 4), 0.5, np.float32))) == (128, 128, 128)
    assert colour(Image.fromarray(np.full((4, 4), 99.0, np.float32))) == (99, 99, 99)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_gives_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), c) for c in (RED, BLACK)]
    options = {"lossless": True} if kind == "WEBP" else {}
    animation = stored(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(animation)) as image:
        assert getattr(image, "n_frames", 1) == 2
    assert colour(animation) == RED


def test_a_rotated_photograph_is_turned_upright() -> None:
    image = Image.new("RGB", (8, 4), BLACK)
    image.paste(RED, (0, 0, 4, 4))  # left half red
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate by 90 degrees clockwise to view"
    upright = decode(stored(image, "PNG", exif=exif))
    assert upright.size == (4, 8)
    assert np.asarray(upright)[:4].tolist() == np.full((4, 4, 3), RED).tolist()
    assert np.asarray(upright)[4:].max() == 0


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_truncated_file_is_named(
    tmp_path: Path, kind: str, picture: Callable[..., Image.Image]
) -> None:
    whole = stored(picture(), kind)
    file = tmp_path / f"broken.{kind.lower()}"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=f"cannot read .*broken.{kind.lower()}'"):
        decode(file)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_a_file_that_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.png").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read .*odd\.png'"):
        decode(tmp_path / "odd.png")
    with pytest.raises(DataError, match="cannot read row 3 of train"):
        decode(content, "row 3 of train")


# --- files that somebody was given ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["EPS", "JPEG2000", "TGA", "ICO", "PCX", "SGI", "MSP"])
def test_kinds_that_are_not_listed_are_not_opened(tmp_path: Path, kind: str) -> None:
    """Pillow knows them by their content, and hands PostScript to Ghostscript."""
    image = Image.new("1" if kind == "MSP" else "RGB", (32, 32))
    (tmp_path / "innocent.png").write_bytes(stored(image, kind))
    with pytest.raises(DataError, match=r"innocent\.png': it is damaged, or none of JPEG, PNG"):
        decode(tmp_path / "innocent.png")


def png_that_claims(width: int, height: int) -> bytes:
    """Only a header and the start of the pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(8192, 8193), (9999, 9999), (60000, 60000)])
def test_an_image_that_would_fill_the_memory_is_refused_before_it_is_decoded(
    width: int, height: int
) -> None:
    """Pillow would decode the first, warn about the second, and refuse the third."""
    with pytest.raises(DataError, match=r"cannot read bomb\.png: .*pixels"):
        decode(png_that_claims(width, height), "bomb.png")


def test_a_damaged_tiff_is_told_by_us_alone(capfd) -> None:
    """libtiff writes to standard error itself."""
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    content = bytearray(stored(Image.fromarray(pixels), "TIFF", compression="tiff_adobe_deflate"))
    content[200:204] = bytes(4)
    with pytest.raises(DataError, match="cannot read"):
        decode(bytes(content))
    assert capfd.readouterr().err == ""
    print("heard", file=sys.stderr)
    assert capfd.readouterr().err == "heard\n"


def test_the_tiles_of_a_tiff_count_as_its_pixels() -> None:
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 20000, 323: 20000, 324: 8}
    tags[325] = 100
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    file = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(200)
    with pytest.raises(DataError, match="20000 x 20000 pixels"):
        decode(file)


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded() -> None:
    """Each of them goes through the whole image: 64 megapixels and 1000 scans take a minute."""
    once = stored(Image.new("L", (64, 64), 99), "JPEG", progressive=True)
    last = once[once.rindex(b"\xff\xc4") : -2]  # a table and a scan
    assert colour(once[:-2] + 50 * last + once[-2:]) == (99, 99, 99)
    with pytest.raises(DataError, match="more than 100 scans"):
        decode(once[:-2] + 1000 * last + once[-2:])


def test_a_file_of_too_many_bytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.png").open("wb") as file:
        file.write(stored(Image.new("RGB", (4, 4)), "PNG"))
        file.truncate(LARGEST_FILE + 1)  # a hole: it takes no room on the disk
    with pytest.raises(DataError, match=r"huge\.png': it has 268,435,457 bytes"):
        decode(tmp_path / "huge.png")


@pytest.mark.usefixtures("_patience")
def test_a_pipe_a_device_and_a_folder_are_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "link.png", "folder.png"):
        with pytest.raises(DataError, match=f"{name}': it is not a regular file"):
            decode(tmp_path / name)


@pytest.mark.parametrize("kind", ["AVIF", "WEBP", "TIFF", "GIF", "JPEG", "PNG", "BMP", "PPM"])
def test_damage_of_any_kind_is_an_error_that_names_the_image(
    kind: str, picture: Callable[..., Image.Image]
) -> None:
    """60 files of each kind with some bytes overwritten: an image or a DataError, no other."""
    whole, chance = stored(picture(), kind), np.random.default_rng(7)
    outcomes = Counter()
    for _ in range(60):
        damaged = bytearray(whole)
        for place in chance.integers(0, min(len(whole), 400), 8):
            damaged[place] = chance.integers(256)
        outcomes[_outcome(bytes(damaged))] += 1
    assert outcomes.keys() <= {"RGB", "cannot read it: "}
    assert outcomes["cannot read it: "] > 0 or kind in ("BMP", "PPM")  # hardly more than pixels


def _outcome(content: bytes) -> str:
    try:
        return decode(content, "it").mode
    except DataError as error:
        return str(error)[:16]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "PA", "L", "LA", "1", "CMYK", "I", "F"])
def test_a_large_image_converted_in_bands_is_the_same_image(
    mode: str, picture: Callable[..., Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = picture(0, 40, 30).convert("RGBA" if mode == "PA" else mode)
    image = image.convert("PA") if mode == "PA" else image
    if mode == "P":
        image.info["transparency"] = 3
    if mode == "I":
        image = image.point(lambda value: value * 200)
    whole = np.asarray(decode(image))
    for pixels in (40 * 7, 1):
        monkeypatch.setattr(images_module, "BAND", pixels)
        assert np.array_equal(decode(image), whole)


def test_an_image_that_was_handed_over_is_not_changed() -> None:
    image = Image.new("RGB", (8, 4), RED)
    image.getexif()[0x0112] = 6
    assert decode(image).size == (4, 8)
    assert image.size == (8, 4) and image.getexif()[0x0112] == 6


def test_an_image_of_the_right_size_keeps_its_pixels(picture: Callable[..., Image.Image]) -> None:
    assert np.array_equal(centre_square(picture(), 32), np.asarray(picture()))


def test_the_centre_square_is_the_middle_of_the_longer_side(
    picture: Callable[..., Image.Image],
) -> None:
    wide, tall = picture(0, 48, 32), picture(0, 32, 48)
    assert np.array_equal(centre_square(wide, 32), np.asarray(wide)[:, 8:40])
    assert np.array_equal(centre_square(tall, 32), np.asarray(tall)[8:40])


def test_a_crop_keeps_the_middle_of_the_centre_square() -> None:
    wide = Image.fromarray(
        np.arange(32 * 48 * 3, dtype=np.uint16).astype(np.uint8).reshape(32, 48, 3)
    )
    assert np.array_equal(centre_square(wide, 16, crop=0.5), np.asarray(wide)[8:24, 16:32])


def test_the_centre_square_is_resized_as_a_whole() -> None:
    halves = np.zeros((64, 64, 3), np.uint8)
    halves[:, 32:] = 255
    small = centre_square(Image.fromarray(halves), 16)
    assert small[:, :7].max() == 0 and small[:, 9:].min() == 255


def test_random_crops_show_parts_of_the_image_in_the_stated_range_of_area() -> None:
    """A ramp in x and y tells where each crop was taken."""
    y, x = np.mgrid[:256, :256].astype(np.uint8)
    image = Image.fromarray(np.stack([x, y, 0 * x], -1))
    crops = np.stack([random_crop(image, 64, np.random.default_rng(s)) for s in range(300)])
    spans = crops.astype(int).max((1, 2)) - crops.astype(int).min((1, 2))  # (crops, 3)
    areas = spans[:, 0] * spans[:, 1] / 256**2
    assert 0.04 < areas.min() < 0.2 and areas.max() > 0.85
    mirrored = (crops[:, 0, 0, 0] > crops[:, 0, -1, 0]).sum()
    assert 108 <= mirrored <= 192  # 300 fair coins: outside with probability 1e-6
    assert len({crop.tobytes() for crop in crops}) == 300


@pytest.mark.parametrize(("width", "height"), [(1, 1), (500, 2), (2, 500), (33, 31)])
def test_random_crops_exist_for_every_shape(width: int, height: int) -> None:
    image = Image.new("RGB", (width, height), RED)
    for seed in range(20):
        crop = random_crop(image, 16, np.random.default_rng(seed))
        assert crop.shape == (16, 16, 3) and np.array_equal(crop[3, 4], RED)


MEAN, STD = (0.2, 0.5, 0.7), (0.1, 0.3, 0.25)


def test_normalise_subtracts_the_mean_and_divides_by_the_deviation() -> None:
    images = torch.randint(0, 256, (5, 6, 7, 3), dtype=torch.uint8)
    expected = (images.double() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    normalised = normalise(images, MEAN, STD)
    # two float32 roundings of numbers up to 10
    torch.testing.assert_close(
        normalised, expected.permute(0, 3, 1, 2).float(), rtol=1e-6, atol=2e-6
    )
    assert normalised.is_contiguous(memory_format=torch.channels_last)


def test_an_image_gives_the_same_bits_alone_and_in_a_batch() -> None:
    images = torch.randint(0, 256, (33, 9, 9, 3), dtype=torch.uint8)
    batch = normalise(images, MEAN, STD)
    for i in range(33):
        assert torch.equal(normalise(images[i : i + 1], MEAN, STD)[0], batch[i])


def test_prepare_reads_a_path_and_an_opened_image_alike(
    tmp_path: Path, picture: Callable[..., Image.Image]
) -> None:
    picture(0, 60, 40).save(tmp_path / "photo.png")
    from_path = prepare(tmp_path / "photo.png", 32, MEAN, STD)
    with Image.open(tmp_path / "photo.png") as image:
        assert torch.equal(prepare(image, 32, MEAN, STD), from_path)
    square = torch.from_numpy(centre_square(picture(0, 60, 40), 32))
    assert torch.equal(from_path, normalise(square[None], MEAN, STD)[0])


def test_prepare_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no image file .*gone\.png"):
        prepare(tmp_path / "gone.png", 32, MEAN, STD)


def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same() -> None:
    rows, columns = np.mgrid[0:1200, 0:1600]
    smooth = np.stack([rows / 1200, columns / 1600, (rows + columns) / 2800], 2)
    file = io.BytesIO()
    Image.fromarray((255 * smooth).astype(np.uint8)).save(file, "JPEG", quality=95)
    whole, smaller = decode(file.getvalue()), decode(file.getvalue(), shown=64)
    assert whole.size == (1600, 1200) and smaller.size == (400, 300)
    seen = [centre_square(image, 64, 0.875).astype(int) for image in (whole, smaller)]
    # The average of 4 x 4 pixels of a gradient, before or after rounding to 8 bits.
    assert abs(seen[0] - seen[1]).max() <= 3
    assert decode(file.getvalue(), shown=500).size == (1600, 1200)
