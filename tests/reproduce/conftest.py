"""Small photographs in two groups of two classes, and flags that make a run of them short."""

import numpy as np
import pytest
from PIL import Image

SHORT = ("image_size=32", "steps=60", "views=1", "workers=0")
LEVELS = {"dark/coal": 0, "dark/soot": 60, "light/salt": 130, "light/snow": 195}


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce") / "photos"
    for name, level in LEVELS.items():
        (folder / name).mkdir(parents=True)
        for i in range(20):
            rng = np.random.default_rng(1000 * level + i)
            pixels = rng.integers(level, level + 60, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def reproduce(photos, tmp_path, monkeypatch, said):
    """Runs `blockout reproduce TABLE` on the photographs, with records below ``tmp_path``."""
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(photos.parent / "cache"))

    def run(*words: object, changes: tuple[str, ...] = SHORT) -> tuple[int, str, str]:
        where = ("--out", tmp_path / "out", "--work", tmp_path / "work")
        return said("reproduce", "table1", "--data", photos, "--with", *changes, *where, *words)

    return run
