"""Loads the images of a DataConfig, ready to train on."""

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from blockout.data import cache, shapes
from blockout.data.cache import Decoded
from blockout.data.config import DataConfig, DataError
from blockout.data.division import Index, check, divide
from blockout.data.images import Channels, centre_square
from blockout.data.sources import GENERATED, Source, find
from blockout.data.splits import MemorySplit, Split
from blockout.data.streams import StreamSplit, unreadable
from blockout.data.tables import TEST, TRAIN, Catalogue, Rows, Table

MEMORY_LIMIT = 1 << 30
"""Most bytes of decoded images to keep in memory (1 GiB; CIFAR takes 0.17)."""

SMALL = (28, 64)
"""Small images keep their own size between these two."""

SAMPLE = 1024
"""How many training images give a streamed set its mean and standard deviation."""


@dataclass(frozen=True)
class ImageData:
    """A data set, split and ready to be read in batches."""

    name: str
    classes: tuple[str, ...]
    groups: tuple[int, ...] | None
    """Index into `group_names` for each class, if the data has groups of classes."""
    group_names: tuple[str, ...] | None
    train: Split
    holdout: Split
    """Part of the training set, for choices; it may be empty."""
    test: Split
    mean: Channels
    std: Channels
    image_size: int
    class_weights: Float32[Tensor, " classes"] | None
    """With `balance`: inverse to the size of each class; the mean over training images is 1."""
    notes: tuple[str, ...]
    """What to tell the user: class sizes, skipped files, how the data was split."""
    crop: float = 1.0
    """The side of the centred square that evaluation sees, as a share of the shorter side."""

    def fingerprint(self) -> str:
        """Changes when the classes, their order, or the splits of the images change."""
        size = str(self.image_size) + (f" of {self.crop}" if self.crop != 1 else "")
        digest = hashlib.sha256("\n".join((*self.classes, size)).encode())
        for split in (self.train, self.holdout, self.test):
            digest.update(b"|" + split.labels.to(torch.int64).numpy().tobytes())
        return digest.hexdigest()[:16]

    def normalised_by(self, mean: Channels, std: Channels) -> "ImageData":
        """The same data for a network that expects this mean and standard deviation."""
        parts = {
            name: getattr(self, name).normalised_by(mean, std)
            for name in ("train", "holdout", "test")
        }
        return replace(self, mean=mean, std=std, **parts)


class Expected(NamedTuple):
    """How a trunk wants to see images, apart from their size."""

    crop: float = 1.0
    """The centred square to cut out, as a share of the shorter side."""
    normalisation: tuple[Channels, Channels] | None = None
    """Mean and standard deviation to normalise by; those of the training images if None."""


AS_IT_IS = Expected()


def load(config: DataConfig, expected: Expected = AS_IT_IS, *, fetch: bool = True) -> ImageData:
    """Finds, checks, decodes (or prepares to stream) and splits the data.

    Args:
        config: which data, and how to read and split it.
        expected: crop and normalisation. Generated images are not cropped.
        fetch: may download them; otherwise they must be on this machine.

    Raises:
        DataError: the data is missing, damaged or unsuitable.
    """
    if config.data == GENERATED:
        return _in_memory(GENERATED, _generated(config), config, expected._replace(crop=1.0))
    source = find(config.data, config.cache_folder, fetch=fetch)
    cropped = () if expected.crop == 1 else (expected.crop,)
    key = cache.key_of(source.fingerprint, config.image_size, config.skip_corrupt, *cropped)
    entry = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', source.name)}-{key}"
    opened = None if config.stream else cache.read(config.cache_folder, entry)
    if opened is None:
        with cache.locked(config.cache_folder, entry):
            opened = _open(source, entry, config, expected.crop)
    if isinstance(opened, Decoded):
        return _in_memory(source.name, opened, config, expected)
    return _streamed(source, opened, config, expected)


def load_whole(config: DataConfig, expected: Expected) -> tuple[tuple[str, ...], Split]:
    """The classes of some labelled images and all of the images in one split, whatever splits they
    come in: to score a network on them. ``config.image_size`` says how it sees them."""
    source = find(config.data, config.cache_folder)
    table = source.open()
    if config.skip_corrupt:
        table = _without_unreadable(source, table, config.cache_folder, config.decoders)
    assert config.image_size is not None and expected.normalisation is not None
    labels = torch.from_numpy(table.catalogue.labels)
    return table.catalogue.classes, StreamSplit(
        table.rows,
        labels,
        config.image_size,
        *expected.normalisation,
        config.decoders,
        expected.crop,
    )


def _open(source: Source, entry: str, config: DataConfig, crop: float) -> Decoded | Table:
    """The images in memory, or the table to stream them from."""
    if not config.stream and (found := cache.read(config.cache_folder, entry)) is not None:
        return found
    table = source.open()
    check(table.catalogue, source.name)
    size = config.image_size or _natural_size(table.rows)
    too_large = len(table.rows) * size**2 * 3 > MEMORY_LIMIT
    if config.stream or (config.stream is None and too_large):
        return table
    decoded = _decode(table, size, crop, config.skip_corrupt)
    check(decoded.catalogue, source.name)
    cache.write(config.cache_folder, entry, decoded)
    if source.scratch:
        shutil.rmtree(source.scratch, ignore_errors=True)
    return decoded


def typical_side(config: DataConfig) -> int:
    """The median shorter side of some of the images, in pixels."""
    if config.data == GENERATED:
        return shapes.SIZE
    source = find(config.data, config.cache_folder)
    return cache.remembered(
        config.cache_folder,
        f"side-{cache.key_of(source.fingerprint)}",
        lambda: _median_side(source.open().rows),
    )


def _natural_size(rows: Rows) -> int:
    """The median shorter side, limited to 28 to 64."""
    return min(max(_median_side(rows), SMALL[0]), SMALL[1])


def _median_side(rows: Rows) -> int:
    sample = rows.take(np.linspace(0, len(rows) - 1, min(len(rows), 64)).astype(np.int64))
    sides = [
        min(image.size) for image in sample.images(SMALL[1]) if not isinstance(image, DataError)
    ]
    side = int(np.median(sides)) if sides else SMALL[0]
    return side


def _decode(table: Table, size: int, crop: float, skip_corrupt: bool) -> Decoded:
    """The centre square of each image. A damaged image is an error, or is skipped and noted."""
    images = np.empty((len(table.rows), size, size, 3), np.uint8)
    errors: dict[int, str] = {}
    for place, image in enumerate(table.rows.images(size)):
        if not isinstance(image, DataError):
            images[place] = centre_square(image, size, crop)
        elif skip_corrupt:
            errors[place] = str(image)
        else:
            raise image
    if errors:
        table = _without(table, errors)
        images = np.delete(images, list(errors), axis=0)
    return Decoded(table.catalogue, images, cache.moments_of(images))


def _without(table: Table, errors: dict[int, str]) -> Table:
    """The table without its unreadable images (place: what is wrong), and a note about them."""
    kept = np.setdiff1d(np.arange(len(table.rows)), list(errors))
    shown = "; ".join(list(errors.values())[:3]) + ("; ..." if len(errors) > 3 else "")
    known = table.catalogue
    catalogue = replace(
        known,
        labels=known.labels[kept],
        parts=known.parts[kept],
        notes=(*known.notes, f"skipped {len(errors)} unreadable images: {shown}"),
    )
    return Table(catalogue, table.rows.take(kept))


def _generated(config: DataConfig) -> Decoded:
    if config.stream or config.image_size not in (None, shapes.SIZE):
        raise DataError(
            f"--data {GENERATED} is generated in memory at {shapes.SIZE} pixels; "
            "leave out --stream and --image-size, or choose other data"
        )
    images, labels = zip(
        shapes.generate(shapes.TRAIN_PER_CLASS, config.data_seed, TRAIN),
        shapes.generate(shapes.TEST_PER_CLASS, config.data_seed, TEST),
        strict=True,
    )
    parts = np.repeat([TRAIN, TEST], [len(some) for some in labels])
    catalogue = Catalogue(
        shapes.CLASSES, shapes.GROUPS, shapes.GROUP_NAMES, np.concatenate(labels), parts
    )
    pixels = np.concatenate(images)
    return Decoded(catalogue, pixels, cache.moments_of(pixels))


def _in_memory(name: str, decoded: Decoded, config: DataConfig, expected: Expected) -> ImageData:
    known, size = decoded.catalogue, decoded.images.shape[1]
    images = torch.from_numpy(decoded.images)

    def statistics(train: Index) -> tuple[Channels, Channels]:
        return _mean_and_std(decoded.moments[train], size)

    def split(index: Index, mean: Channels, std: Channels) -> Split:
        labels = torch.from_numpy(known.labels[index])
        return MemorySplit(images, torch.from_numpy(index), labels, mean, std)

    return _assembled(name, known, config, (size, expected), statistics, split)


def _streamed(source: Source, table: Table, config: DataConfig, expected: Expected) -> ImageData:
    """Decodes only a sample of the images now, for mean and standard deviation.

    With `skip_corrupt`, the workers read every image once and the result is cached: a resumed run
    would see other batches if it learned later what to skip.
    """
    workers = config.decoders
    if config.skip_corrupt:
        table = _without_unreadable(source, table, config.cache_folder, workers)
    known, rows = table.catalogue, table.rows
    size = config.image_size or _natural_size(rows)

    def statistics(train: Index) -> tuple[Channels, Channels]:
        chosen = np.random.default_rng(config.data_seed).permutation(train)[:SAMPLE]
        key = cache.key_of(source.fingerprint, size, expected.crop, chosen.tolist())
        moments = cache.remembered(
            config.cache_folder,
            f"moments-{key}",
            lambda: _moments(rows.take(chosen), size, expected.crop),
        )
        return _mean_and_std(np.array(moments), size)

    def split(index: Index, mean: Channels, std: Channels) -> Split:
        labels = torch.from_numpy(known.labels[index])
        return StreamSplit(rows.take(index), labels, size, mean, std, workers, expected.crop)

    return _assembled(source.name, known, config, (size, expected), statistics, split)


def _without_unreadable(source: Source, table: Table, folder: Path, workers: int) -> Table:
    entry = f"unreadable-{cache.key_of(source.fingerprint)}"
    errors = cache.remembered(folder, entry, lambda: unreadable(table.rows, workers))
    table = _without(table, {int(place): error for place, error in errors}) if errors else table
    check(table.catalogue, source.name)
    return table


def _assembled(
    name: str,
    known: Catalogue,
    config: DataConfig,
    seen: tuple[int, Expected],
    statistics: Callable[[Index], tuple[Channels, Channels]],
    split: Callable[[Index, Channels, Channels], Split],
) -> ImageData:
    """Splits the images and normalises them by the `statistics` of the training images."""
    division = divide(known, config)
    size, expected = seen
    mean, std = expected.normalisation or statistics(division.train)
    return ImageData(
        name=name,
        classes=known.classes,
        groups=known.groups,
        group_names=known.group_names,
        train=split(division.train, mean, std),
        holdout=split(division.holdout, mean, std),
        test=split(division.test, mean, std),
        mean=mean,
        std=std,
        image_size=size,
        crop=expected.crop,
        class_weights=_weights(known, division.train) if config.balance else None,
        notes=known.notes + division.notes,
    )


def _moments(rows: Rows, size: int, crop: float) -> list[list[int]]:
    moments = []
    for image in rows.images(size):
        if isinstance(image, DataError):
            raise image
        moments.extend(cache.moments_of(centre_square(image, size, crop)[None]).tolist())
    return moments


def _mean_and_std(moments: Int64[np.ndarray, "n 6"], size: int) -> tuple[Channels, Channels]:
    """Per channel, in [0, 1]. The standard deviation is at least one grey level."""
    first, second = (moments.sum(0) / (len(moments) * size**2)).reshape(2, 3)
    std = np.sqrt(np.maximum(second - first**2, 1.0))
    mean_1, mean_2, mean_3 = (first / 255).tolist()
    std_1, std_2, std_3 = (std / 255).tolist()
    return (mean_1, mean_2, mean_3), (std_1, std_2, std_3)


def _weights(known: Catalogue, train: Index) -> Float32[Tensor, " classes"]:
    counts = np.bincount(known.labels[train], minlength=len(known.classes))
    return torch.from_numpy(len(train) / (len(counts) * counts)).float()
