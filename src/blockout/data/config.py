"""What to train on, as one frozen dataclass; each field's docstring is its --help."""

import os
from dataclasses import dataclass
from pathlib import Path

from blockout.files import cache_folder
from blockout.limits import LARGEST_SIZE

DATA_DIR_VARIABLE = "BLOCKOUT_DATA_DIR"
MOST_WORKERS = 256


class DataError(ValueError):
    """The data cannot be used; the message says what was expected, what was found, what to do."""


class UnreadableImage(DataError):
    """One image cannot be read; `skip_corrupt` leaves such images out."""


@dataclass(frozen=True)
class DataConfig:
    """Which images to use, and how to split and read them."""

    data: str = "shapes"
    """`shapes` (generated), `cifar10`, `cifar100`, a folder of images (`train/` and `val/` or
    `test/`, or one folder per class; group/class/image works too), a .parquet file, a folder of
    them, or a data set of the Hugging Face hub: `hf://owner/name` or
    `hf://owner/name:configuration`."""

    image_size: int | None = None
    """Height and width in pixels. Default: what the trunk expects (224 for efficientnet-lite0 and
    inception-bn); for inception-small the median shorter side, limited to 28 to 64."""

    holdout: float = 0.05
    """Share of each class's training images held out for choices (thresholds, best checkpoint).
    Data with a validation and a test split uses its validation split instead."""

    test_share: float = 0.2
    """Share of each class that becomes the test set if the data has only one split."""

    per_class: int | None = None
    """Use at most this many training images per class; the test set stays whole. Default: all."""

    balance: bool = False
    """Weight classes inversely to their number of training images."""

    skip_corrupt: bool = False
    """Skip and count unreadable images however many they are. Without it, `blockout train` leaves
    out few (one, or up to 5 %) and says which, and stops where there are more."""

    workers: int | None = None
    """Processes that decode streamed images. Default: one less than the processors, at most 8."""

    stream: bool | None = None
    """Decode images during training instead of once into memory. Default: only if the decoded
    images would take more than 1 GiB."""

    augment: bool = True
    """Mirror training images and shift or crop them, differently in every epoch. A frozen trunk
    sees `views` instead."""

    views: int = 4
    """Views of each training image that a frozen trunk sees, once: as in evaluation, mirrored, and
    other crops. The head then trains on what the trunk said. 0 sends images through the trunk in
    every epoch instead."""

    cache: Path | None = None
    """Folder for decoded images and features, which make the next start faster. Default:
    $BLOCKOUT_CACHE_DIR, else `blockout` in your cache folder."""

    data_seed: int = 0
    """Seed for generating and splitting the data; the training run has its own seed."""

    def __post_init__(self) -> None:
        _require(self.data != "", "--data", "a name, a path or hf://owner/name", "nothing")
        _require(0 <= self.holdout < 1, "--holdout", "at least 0 and below 1", self.holdout)
        _require(0 < self.test_share < 1, "--test-share", "above 0 and below 1", self.test_share)
        _require(self.data_seed >= 0, "--data-seed", "at least 0", self.data_seed)
        for flag, value, least in (("--per-class", self.per_class, 1), ("--views", self.views, 0)):
            _require(value is None or value >= least, flag, f"at least {least}", value)
        for flag, value, least, most in (
            ("--image-size", self.image_size, 8, LARGEST_SIZE),
            ("--workers", self.workers, 0, MOST_WORKERS),
        ):
            fits = value is None or least <= value <= most
            _require(fits, flag, f"{least} to {most}", value)

    @property
    def decoders(self) -> int:
        """How many processes decode images."""
        if self.workers is not None:
            return self.workers
        affinity = getattr(os, "sched_getaffinity", None)
        usable = len(affinity(0)) if affinity else os.cpu_count()
        return min(max((usable or 1) - 1, 1), 8)

    @property
    def cache_folder(self) -> Path:
        """Where decoded images are kept; it may not exist yet."""
        if self.cache is not None:
            return Path(self.cache).expanduser()
        return cache_folder()


def _require(holds: bool, flag: str, expected: str, got: object) -> None:
    if not holds:
        raise DataError(f"{flag} must be {expected}, got {got}")
