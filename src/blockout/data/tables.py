"""What we know about a data set before its images are decoded."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from jaxtyping import Int64
from PIL import Image

from blockout.data.config import DataError
from blockout.data.images import decode

if TYPE_CHECKING:
    from datasets import Dataset

TRAIN, HOLDOUT, TEST = 0, 1, 2
PARTS = ("train", "holdout", "test")


@dataclass(frozen=True)
class Catalogue:
    """The classes, and the class and split of each image."""

    classes: tuple[str, ...]
    groups: tuple[int, ...] | None
    """Index into `group_names` for each class, if the data has groups."""
    group_names: tuple[str, ...] | None
    labels: Int64[np.ndarray, " n"]
    parts: Int64[np.ndarray, " n"]
    """TRAIN, HOLDOUT or TEST, according to the splits of the data itself."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rows:
    """Undecoded images: a Hugging Face data set of paths or bytes."""

    dataset: "Dataset"
    column: str
    index: Int64[np.ndarray, " n"]
    starts: tuple[tuple[int, str], ...]
    """Where each split starts, and its name: to name images that have no path."""

    def __len__(self) -> int:
        return len(self.index)

    def take(self, places: Int64[np.ndarray, " m"]) -> Self:
        return replace(self, index=self.index[places])

    def image(self, place: int) -> Image.Image:
        """The image as upright RGB; a DataError names a damaged image."""
        row = int(self.index[place])
        return self._decoded(row, self.dataset[row][self.column])

    def stored(self, place: int) -> bytes:
        """The file of the image, undecoded."""
        stored = self.dataset[int(self.index[place])][self.column]
        if stored["bytes"] is not None:
            return stored["bytes"]
        try:
            return Path(stored["path"]).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {stored['path']!r}: {error.strerror}") from error

    def images(self, chunk: int = 256) -> Iterator[Image.Image | DataError]:
        """All images in order; for a damaged image, the error that names it.

        Reads `chunk` rows at a time, which is much faster than one at a time.
        """
        for first in range(0, len(self), chunk):
            rows = self.index[first : first + chunk]
            for row, stored in zip(rows, self.dataset[rows][self.column], strict=True):
                try:
                    yield self._decoded(int(row), stored)
                except DataError as error:
                    yield error

    def _decoded(self, row: int, stored: dict) -> Image.Image:
        source = stored["bytes"] if stored["bytes"] is not None else stored["path"]
        return decode(source, self._name(row, stored))

    def _name(self, row: int, stored: dict) -> str:
        if stored["bytes"] is None:
            return repr(stored["path"])
        start, split = max(entry for entry in self.starts if entry[0] <= row)
        path = f" ({stored['path']!r})" if stored["path"] else ""
        return f"row {row - start} of {split}{path}"


@dataclass(frozen=True)
class Table:
    """An opened data set: what we know about its images, and where they are."""

    catalogue: Catalogue
    rows: Rows


def join(splits: "Mapping[str, Dataset]", column: str) -> Rows:
    """The images of several splits, one after another; `column` holds their paths or bytes."""
    from datasets import Image as ImageFeature
    from datasets import concatenate_datasets

    joined = concatenate_datasets(
        [
            split.select_columns(column).cast_column(column, ImageFeature(decode=False))
            for split in splits.values()
        ]
    )
    ends = itertools.accumulate((len(split) for split in splits.values()), initial=0)
    starts = tuple(zip(ends, splits, strict=False))
    return Rows(joined, column, np.arange(len(joined)), starts)
