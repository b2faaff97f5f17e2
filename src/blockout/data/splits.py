"""Training, hold-out and test images as batches: here from memory, in `streams` from files.

Order and augmentation are a pure function of (seed, epoch), drawn for the whole epoch and then cut
into batches. So a run may start at any batch, and processes may share each batch: all see, bit for
bit, what one uninterrupted process sees.
"""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self, final

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from PIL import Image
from torch import Tensor

from blockout.data.images import Channels, normalise

CONTENT_BYTES = 16
Batch = tuple[Float32[Tensor, "n ..."], Int64[Tensor, " n"]]


def content_digest(stored: bytes) -> bytes:
    """What is stored of an image in 16 bytes."""
    return hashlib.blake2b(stored, digest_size=CONTENT_BYTES).digest()


class Pictures(Protocol):
    """Images one by one, for whoever needs other views of them than a split's batches."""

    def image(self, place: int, shown: int | None = None) -> Image.Image:
        """The image as upright RGB, large enough for squares that are seen at the size `shown`."""
        ...

    def stored(self, place: int) -> bytes:
        """What is stored of it: equal for equal images."""
        ...

    def name(self, place: int) -> str:
        """What to call it: its file within the data set, or its row."""
        ...

    def take(self, places: Int64[np.ndarray, " m"]) -> "Pictures":
        """Some of them."""
        ...


class Split(ABC):
    """Labelled images of one size. `labels[i]` is the class of image `i`."""

    labels: Int64[Tensor, " n"]
    pictures: Pictures
    """The images themselves. `pictures.image(i)` is image `i`."""
    known: UInt8[np.ndarray, "n 16"] | None = None
    """A digest of each image's file, where it has been read."""
    crop: float = 1.0
    """The centred square that evaluation sees, as a share of a picture's shorter side."""
    augments: bool = True
    """Whether training sees images mirrored, shifted or cropped, or as they are."""
    _mean: Channels
    _std: Channels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def contents(self) -> list[bytes]:
        """What identifies each image, whatever it is called and however it is seen."""
        if self.known is not None:
            return [row.tobytes() for row in self.known]
        return [content_digest(self.pictures.stored(i)) for i in range(len(self))]

    def normalised_by(self, mean: Channels, std: Channels) -> Self:
        """The same images normalised by other values, such as those of a pretrained trunk."""
        twin = copy.copy(self)
        twin._mean, twin._std = mean, std
        return twin

    def batch_count(self, batch_size: int, *, train: bool, drop_last: bool | None = None) -> int:
        """Batches per epoch; see `batches`."""
        whole, rest = divmod(len(self), batch_size)
        keep_rest = not (train if drop_last is None else drop_last) or whole == 0
        return whole + (rest > 0 and keep_rest)

    def batches(
        self,
        batch_size: int,
        *,
        train: bool,
        seed: int = 0,
        epoch: int = 0,
        start: int = 0,
        rank: int = 0,
        world: int = 1,
        drop_last: bool | None = None,
    ) -> Iterator[Batch]:
        """Normalised float32 images in channels_last memory and their labels, batch by batch.

        Args:
            batch_size: images per batch, over all processes.
            train: shuffle, and augment if the split ``augments``; otherwise in order and as they
                are.
            seed, epoch: decide order and augmentation.
            start: the first batch to yield; earlier ones are not computed.
            rank, world: this process takes part `rank` of the `world` consecutive parts of each
                batch. All processes yield equally many; in a short last batch a part may be empty.
            drop_last: skip a last batch that is not full (default: in training). A split smaller
                than one batch is still one batch.
        """
        if batch_size < 1 or not 0 <= rank < world:
            raise ValueError(
                f"batch_size must be at least 1 and rank from 0 to world - 1, got batch_size "
                f"{batch_size}, rank {rank}, world {world}"
            )
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(self)) if train else np.arange(len(self))
        count = self.batch_count(batch_size, train=train, drop_last=drop_last)
        spans = [_part(b, batch_size, len(self), rank, world) for b in range(start, count)]
        return self._read(order, spans, rng if train and self.augments else None)

    @abstractmethod
    def _read(
        self, order: np.ndarray, spans: list[slice], rng: np.random.Generator | None
    ) -> Iterator[Batch]:
        """The images `order[span]` of each span, augmented if there is an `rng`."""

    @abstractmethod
    def images_at(self, indices: Sequence[int]) -> UInt8[Tensor, "n height width 3"]:
        """These images as in evaluation, before normalisation: for thumbnails and reports."""


def _part(batch: int, batch_size: int, total: int, rank: int, world: int) -> slice:
    """The places of one process in a batch. Parts differ by at most one; larger ones come first."""
    first, end = batch * batch_size, min((batch + 1) * batch_size, total)
    share, extra = divmod(end - first, world)
    begin = first + rank * share + min(rank, extra)
    return slice(begin, begin + share + (rank < extra))


class Squares(NamedTuple):
    """Pictures that have been decoded to squares already."""

    images: UInt8[Tensor, "total size size 3"]
    rows: Int64[Tensor, " n"]
    names: Sequence[str] = ()
    """Of all images; without them, an image is called after its row."""

    def image(self, place: int, shown: int | None = None) -> Image.Image:
        return Image.fromarray(self.images[self.rows[place]].numpy())

    def stored(self, place: int) -> bytes:
        return self.images[self.rows[place]].numpy().tobytes()

    def name(self, place: int) -> str:
        row = int(self.rows[place])
        return self.names[row] if self.names else str(row)

    def take(self, places: Int64[np.ndarray, " m"]) -> "Squares":
        return self._replace(rows=self.rows[torch.from_numpy(places)])


@final
class MemorySplit(Split):
    """Images in memory, augmented by mirroring and by shifts with reflected borders.

    Args:
        images: all images of the data set; all splits share this memory.
        rows: which of them belong to this split.
        labels: their classes.
        mean, std: of the training images, in [0, 1].
        names: of all images.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "total height width 3"],
        rows: Int64[Tensor, " n"],
        labels: Int64[Tensor, " n"],
        mean: Channels,
        std: Channels,
        names: Sequence[str] = (),
    ) -> None:
        self.labels, self.pictures = labels, Squares(images, rows, names)
        self._images, self._rows, self._mean, self._std = images, rows, mean, std

    def images_at(self, indices: Sequence[int]) -> UInt8[Tensor, "n height width 3"]:
        return self._images[self._rows[torch.as_tensor(indices, dtype=torch.int64)]]

    def _read(
        self, order: np.ndarray, spans: list[slice], rng: np.random.Generator | None
    ) -> Iterator[Batch]:
        chosen = torch.from_numpy(order)
        windows = _windows(len(order), self._images.shape[1] // 8, rng) if rng else None
        for span in spans:
            index = chosen[span]
            rows = self._rows[index]
            if windows is None:
                pixels = self._images.index_select(0, rows)
            else:
                pixels = shifted_and_mirrored(self._images, rows, windows[span])
            yield normalise(pixels, self._mean, self._std), self.labels[index]


def _windows(count: int, pad: int, rng: np.random.Generator) -> Int64[Tensor, "n 3"]:
    """Each image's shift down and across, from -pad to pad, and whether it is mirrored (0 or 1)."""
    shifts = rng.integers(-pad, pad + 1, (count, 2))
    return torch.from_numpy(np.column_stack([shifts, rng.integers(0, 2, count)]))


def shifted_and_mirrored(
    images: UInt8[Tensor, "total size size 3"],
    rows: Int64[Tensor, " n"],
    windows: Int64[Tensor, "n 3"],
) -> UInt8[Tensor, "n size size 3"]:
    """out[i, y, x] = images[rows[i], y + down, (x or its mirror) + across], borders reflected.

    One gather of pixels: a batch of 256 at 32 px takes about as long as copying it twice.
    """
    size = images.shape[1]
    down, across, mirrored = windows.unsqueeze(1).unbind(2)  # (n, 1) each
    line = torch.arange(size)
    y = _reflected(line + down, size)
    x = _reflected(torch.where(mirrored == 1, size - 1 - line, line) + across, size)
    pixel = ((rows[:, None] * size + y) * size)[:, :, None] + x[:, None, :]  # (n, size, size)
    return images.view(-1, 3).index_select(0, pixel.view(-1)).view(*pixel.shape, 3)


def _reflected(index: Int64[Tensor, "n size"], size: int) -> Int64[Tensor, "n size"]:
    index = index.abs()
    return torch.minimum(index, 2 * (size - 1) - index)
