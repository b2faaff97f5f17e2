import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from blockout.data import DataError, prepare
from blockout.data.images import centre_square, decode, normalise, random_crop

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
