"""What we know about a data set before its images are decoded."""

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from blockout.data.config import DataError, UnreadableImage
from blockout.data.images import content, decode

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
    contents: UInt8[np.ndarray, "n 16"] | None = None
    """A digest of each image's file; None until somebody has read them."""

    def at(self, places: Int64[np.ndarray, " m"], *notes: str) -> Self:
        """Of some of the images, with more notes."""
        contents = None if self.contents is None else self.contents[places]
        labels, parts = self.labels[places], self.parts[places]
        notes = (*self.notes, *notes)
        return replace(self, labels=labels, parts=parts, contents=contents, notes=notes)


@dataclass(frozen=True)
class Rows:
    """Undecoded images: a Hugging Face data set of paths or bytes."""

    dataset: "Dataset"
    column: str
    index: Int64[np.ndarray, " n"]
    starts: tuple[tuple[int, str], ...]
    """Where each split starts, and its name: to name images that have no path."""
    root: str = ""
    """The folder that names of files are relative to."""

    def __len__(self) -> int:
        return len(self.index)

    def take(self, places: Int64[np.ndarray, " m"]) -> Self:
        return replace(self, index=self.index[places])

    def image(self, place: int, shown: int | None = None) -> Image.Image:
        """The image as upright RGB; a DataError names a damaged or missing image."""
        return decode(*self._source(place), shown)

    def stored(self, place: int) -> bytes:
        """The file of the image, undecoded."""
        return content(*self._source(place))

    def name(self, place: int) -> str:
        """What to call the image: its file within the data set, or its row."""
        row = int(self.index[place])
        path = self.dataset.data.column(self.column)[row]
        path = path["path"].as_py() if self.root and path.is_valid else None
        if path:
            return os.path.relpath(path, self.root).replace(os.sep, "/")
        start, split = max(entry for entry in self.starts if entry[0] <= row)
        return f"{split}/{row - start}"

    def _source(self, place: int) -> tuple[memoryview | str, str]:
        """The bytes of an image or the path of its file, and what to call it."""
        row = int(self.index[place])
        stored = self.dataset.data.column(self.column)[row]  # nothing is copied yet
        held, path = (stored[field] if stored.is_valid else stored for field in ("bytes", "path"))
        if held.is_valid:
            return memoryview(held.as_buffer()), self._name(row, path.as_py())
        if path.is_valid:
            return path.as_py(), repr(self.name(place) if self.root else path.as_py())
        raise UnreadableImage(f"cannot read {self._name(row)}: it holds no image")

    def images(self, shown: int | None = None) -> Iterator[Image.Image | DataError]:
        """All images in order; for a damaged image, the error that names it."""
        for place in range(len(self)):
            try:
                yield self.image(place, shown)
            except DataError as error:
                yield error

    def _name(self, row: int, path: str | None = None) -> str:
        start, split = max(entry for entry in self.starts if entry[0] <= row)
        return f"row {row - start} of {split}" + (f" ({path!r})" if path else "")


@dataclass(frozen=True)
class Table:
    """An opened data set: what we know about its images, and where they are."""

    catalogue: Catalogue
    rows: Rows


def join(splits: "Mapping[str, Dataset]", column: str, root: str = "") -> Rows:
    """The images of several splits, one after another; `column` holds their paths or bytes. The
    names of files are relative to `root`."""
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
    return Rows(joined, column, np.arange(len(joined)), starts, root)
