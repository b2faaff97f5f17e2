"""What to train on, as one frozen dataclass; each field's docstring is its --help."""

import os
from dataclasses import dataclass
from pathlib import Path

DATA_DIR_VARIABLE = "BLOCKOUT_DATA_DIR"
CACHE_DIR_VARIABLE = "BLOCKOUT_CACHE_DIR"


class DataError(ValueError):
    """The data cannot be used as it is; the message says what was expected, what was found, what to
    do."""


@dataclass(frozen=True)
class DataConfig:
    """Which images, how they are divided, and how they are read."""

    data: str = "shapes"
    """`shapes` (generated), `cifar10`, `cifar100`, a folder of images (`train/` and `val/` or
    `test/`, or one folder a class; group/class/image is understood), a .parquet file, a folder of
    them, or a Hugging Face id such as `owner/name` or `owner/name:configuration`."""

    image_size: int | None = None
    """Height and width in pixels. Default: the median shorter side of the images, kept within 28 to
    64, where that is at most 96 (shapes and CIFAR: 32), else 224."""

    holdout: float = 0.05
    """Share of the training images held out for choices (thresholds, best checkpoint), the same
    share of every class. Data that brings both a validation and a test split uses its own
    validation split instead."""

    test_share: float = 0.2
    """Share of every class that becomes the test set where the data has only one split."""

    per_class: int | None = None
    """Keep at most so many training images of every class; the test set stays whole. Default:
    all."""

    balance: bool = False
    """Weigh classes inversely to their number of training images."""

    skip_corrupt: bool = False
    """Count and leave out unreadable images instead of stopping at the first."""

    workers: int | None = None
    """Processes that decode streamed images. Default: one fewer than the processors, at most 8."""

    stream: bool | None = None
    """Decode images while training instead of once into memory. Default: only when they would take
    more than 1 GiB decoded at the chosen size."""

    cache: Path | None = None
    """Folder of decoded images, for a quick second start. Default: $BLOCKOUT_CACHE_DIR, else
    `blockout` in the user's cache folder."""

    data_seed: int = 0
    """Decides generated images and how the data is divided, apart from the seed of training."""

    def __post_init__(self) -> None:
        _require(self.data != "", "--data", "a name, a path or a hub id", "nothing")
        _require(0 <= self.holdout < 1, "--holdout", "at least 0 and below 1", self.holdout)
        _require(0 < self.test_share < 1, "--test-share", "above 0 and below 1", self.test_share)
        _require(self.data_seed >= 0, "--data-seed", "at least 0", self.data_seed)
        for flag, value, least in (
            ("--image-size", self.image_size, 8),
            ("--per-class", self.per_class, 1),
            ("--workers", self.workers, 0),
        ):
            _require(value is None or value >= least, flag, f"at least {least}", value)

    @property
    def cache_folder(self) -> Path:
        """Where decoded images are kept; not necessarily there yet."""
        if self.cache is not None:
            return Path(self.cache).expanduser()
        if named := os.environ.get(CACHE_DIR_VARIABLE):
            return Path(named).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blockout"


def _require(holds: bool, flag: str, expected: str, got: object) -> None:
    if not holds:
        raise DataError(f"{flag} must be {expected}, got {got}")
