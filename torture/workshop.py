"""What the attack works on: a few images, and folders to work in that begin alike."""

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torture.server import Outcome, command, draw

CLASSES = ("warm/ant", "warm/bee", "cold/cat", "cold/dog")
TRAIN = shlex.split(
    "train --run run --data data --cache cache --epochs 2 --batch-size 12 --width 0.05 --nodes 8 "
    "--clusters 2 --log-every 1 --test-share 0.3 --holdout 0.2 --affinity false --budget 1"
)
"""Two epochs of two steps; every file of a run and of the cache is written. With affinity, the
network would be left whole: what it says of classes cannot be relied on after four steps."""
EACH_STEP = ["--checkpoint-minutes", "1e-9"]
PHOTOGRAPHS = shlex.split(
    "--data photos --trunk efficientnet-lite0 --image-size 64 --views 2 --workers 0 --batch-size 4"
)
"""The same on photographs: a frozen trunk whose features are kept in the cache."""
MEMORY_DISK, SPACE = Path("/dev/shm"), 4 << 30
"""Where files wait for no disk, and how many bytes must be free there."""
LARGE = 1 << 20
"""Bytes of a file that is linked, not copied: commands replace such files as a whole."""


class Workshop:
    """A temporary folder; ``references`` are results of undisturbed commands."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.references: dict[str, Any] = {}
        write_images(home / "data")
        write_photographs(home / "photos")

    def warm_up(self) -> None:
        """Draws a page once, for all that follow."""
        with self.room() as room:
            done(TRAIN, room)
            draw(room / "run")

    @contextlib.contextmanager
    def room(self, like: str = "") -> Iterator[Path]:
        """An empty folder with the images in it, or a copy of a kept one; gone afterwards."""
        with temporary_folder(self.home) as room:
            if like:
                shutil.copytree(
                    self.home / like, room, symlinks=True, dirs_exist_ok=True,
                    copy_function=_copy,
                )  # fmt: skip
            else:
                for name in ("data", "photos"):
                    (room / name).symlink_to(f"../{name}")
            yield room

    def keep(self, room: Path, name: str) -> None:
        """Keeps a copy of a room to begin others like it."""
        shutil.rmtree(room / "tmp", ignore_errors=True)
        shutil.copytree(room, self.home / name, symlinks=True)


def _copy(source: str, target: str) -> None:
    if os.path.getsize(source) > LARGE:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


@contextlib.contextmanager
def temporary_folder(where: Path | None = None) -> Iterator[Path]:
    """As ``tempfile.TemporaryDirectory``, but not deleted where a fork of ours ends."""
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=where)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_memory() -> Path | None:
    """The folder to work in; None, as usual, where there is no such one or TMPDIR says where."""
    if "TMPDIR" in os.environ or not os.access(MEMORY_DISK, os.W_OK):
        return None
    return MEMORY_DISK if shutil.disk_usage(MEMORY_DISK).free > SPACE else None


def done(arguments: list[str], room: Path, **options: Any) -> Outcome:
    """A command that must succeed, for else there is nothing to compare with."""
    outcome = command(arguments, room, **{"seconds": 120.0, **options})
    if outcome.code != 0:
        raise RuntimeError(f"blockout {' '.join(arguments)} failed: {outcome.err or outcome.out}")
    return outcome


def write_images(folder: Path) -> None:
    """Ten small pictures for each of four classes in two groups."""
    import numpy as np
    from PIL import Image

    chance = np.random.default_rng(0)
    for place, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.clip(chance.normal(60 * place + 30, 30, (28, 28, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")


def write_photographs(folder: Path) -> None:
    """Six JPEG files for each of three classes, of several sizes."""
    import numpy as np
    from PIL import Image

    chance = np.random.default_rng(1)
    for place, name in enumerate(("pear", "plum", "sloe")):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            coarse = chance.normal(70 * place + 40, 40, (4, 4, 3))
            width, height = (int(side) for side in chance.integers(128, 300, 2))
            image = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8))
            image.resize((width, height), Image.Resampling.BICUBIC).save(
                folder / name / f"{number}.jpg"
            )
