"""Small data sets on disk, as users have them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def picture() -> Callable[..., Image.Image]:
    """An RGB image of random pixels, the same for the same seed."""

    def make(seed: int = 0, width: int = 32, height: int = 32) -> Image.Image:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        return Image.fromarray(pixels)

    return make


@pytest.fixture
def image_folder(tmp_path: Path, picture: Callable[..., Image.Image]) -> Callable[..., Path]:
    """image_folder({"cat": 3, "dog": 2}): a folder with so many PNG images a (nested) class."""

    def make(counts: dict[str, int], root: str = "set", width: int = 32, height: int = 32) -> Path:
        for number, (name, count) in enumerate(counts.items()):
            folder = tmp_path / root / name
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                picture(1000 * number + i, width, height).save(folder / f"{i:03}.png")
        return tmp_path / root

    return make
