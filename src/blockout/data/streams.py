"""Worker processes decode the images of large data sets during training."""

import signal
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from blockout.data.config import DataError
from blockout.data.images import Channels, centre_square, normalise, random_crop
from blockout.data.splits import Batch, Split
from blockout.data.tables import Rows


@final
class StreamSplit(Split):
    """Images that workers decode during training; memory does not grow with their number.

    Training sees a random resized crop, mirrored half of the time; evaluation sees the centre
    square.

    Args:
        rows: where the images are.
        labels: their classes.
        image_size: height and width.
        mean, std: of the training images, in [0, 1].
        workers: processes that decode; with 0, this process decodes.
        crop: the centred square of evaluation, as a share of the shorter side.
    """

    def __init__(
        self,
        rows: Rows,
        labels: Int64[Tensor, " n"],
        image_size: int,
        mean: Channels,
        std: Channels,
        workers: int,
        crop: float = 1.0,
    ) -> None:
        self.labels = labels
        self.pictures = self._rows = rows
        self._size, self._mean, self._std = image_size, mean, std
        self._workers, self.crop = workers, crop

    def images_at(self, indices: Sequence[int]) -> UInt8[Tensor, "n height width 3"]:
        index = np.asarray(indices, dtype=np.int64)
        pixels = _Crops(self._rows, self._size, self.crop)[index, np.full(len(index), -1)]
        if isinstance(pixels, DataError):
            raise pixels
        return torch.from_numpy(pixels)

    def _read(
        self, order: np.ndarray, spans: list[slice], rng: np.random.Generator | None
    ) -> Iterator[Batch]:
        seeds = rng.integers(0, 2**63, len(order)) if rng else np.full(len(order), -1)
        pairs = [(order[span], seeds[span]) for span in spans]
        crops = in_workers(_Crops(self._rows, self._size, self.crop), pairs, self._workers)
        for found, (index, _) in zip(crops, pairs, strict=True):
            if isinstance(found, DataError):
                raise found
            pixels = normalise(torch.from_numpy(found), self._mean, self._std)
            yield pixels, self.labels[torch.from_numpy(index)]


def in_workers(dataset: Dataset, keys: Sequence[object], workers: int) -> DataLoader:
    """`dataset[key]` for each key, in order, computed by `workers` processes.

    The dataset gives no tensors: these would come through shared memory, of which containers have
    little, and through sockets in the folder for temporary files. Arrays come through a pipe.

    The loader has its own generator. By default it would take a number from torch's global
    generator at every start and so change the draws of the training run.
    """
    return DataLoader(
        dataset,
        sampler=keys,  # type: ignore[arg-type]
        batch_size=None,
        num_workers=workers,
        generator=torch.Generator(),
        collate_fn=_as_it_is,
        worker_init_fn=_leave_signals_to_the_parent,
    )


def _as_it_is(found: object) -> object:
    return found


def _leave_signals_to_the_parent(_worker: int) -> None:
    """A signal to the process group must not end workers before the parent has saved its state."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


class _Crops(Dataset):
    """Indexed by (places, seeds) of part of a batch; seed -1 means the centre square.

    Returns the error of a damaged image: if a worker raised it, its message would become the
    worker's traceback.
    """

    def __init__(self, rows: Rows, size: int, crop: float) -> None:
        self.rows, self.size, self.crop = rows, size, crop

    def __getitem__(
        self, pair: tuple[np.ndarray, np.ndarray]
    ) -> UInt8[np.ndarray, "n height width 3"] | DataError:
        pixels = np.empty((len(pair[0]), self.size, self.size, 3), np.uint8)
        try:
            for out, index, seed in zip(pixels, *pair, strict=True):
                out[:] = self._crop(int(index), int(seed))
        except DataError as error:
            return error
        return pixels

    def _crop(self, index: int, seed: int) -> UInt8[np.ndarray, "size size 3"]:
        if seed < 0:
            return centre_square(self.rows.image(index, self.size), self.size, self.crop)
        image = self.rows.image(index)
        return random_crop(image, self.size, np.random.default_rng(seed))
