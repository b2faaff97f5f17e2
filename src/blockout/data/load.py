"""Loads the images of a DataConfig, ready to train on."""

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from blockout.data import cache, shapes
from blockout.data.cache import Decoded
from blockout.data.config import DataConfig, DataError, UnreadableImage
from blockout.data.division import Division, Index, check
from blockout.data.images import Channels, centre_square
from blockout.data.kept import Changes, Kept, KnownImage
from blockout.data.sides import (
    BY_CONTENT,
    MOST_COMPARED,
    NO_CHANGES,
    Dividing,
    each_alone,
    remembered_groups,
    sides_of,
)
from blockout.data.sources import GENERATED, Source, find
from blockout.data.splits import MemorySplit, Split, Squares, content_digest
from blockout.data.streams import StreamSplit
from blockout.data.tables import TEST, TRAIN, Catalogue, Rows, Table
from blockout.data.unreadable import errors_of, without, without_unreadable

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

    place: str = ""
    """Where the images were found: a path, or what else `--data` said."""
    changes: Changes = NO_CHANGES
    """Since the run whose division this is."""
    division_notes: tuple[str, ...] = ()
    """Those of the notes that whoever divides these images alike cannot find out again."""
    why_trunk: str = ""
    """Why `--trunk auto` has chosen the trunk that these images are for; empty if you chose it."""
    own_holdout: bool = False
    """The hold-out is the validation split of the data, not drawn."""
    own_test: bool = False
    """The test is a split of the data, not drawn."""

    def fingerprint(self) -> str:
        """Changes when the classes, their order, the images or their splits change."""
        size = str(self.image_size) + (f" of {self.crop}" if self.crop != 1 else "")
        digest = hashlib.sha256("\n".join((*self.classes, size)).encode())
        for split in (self.train, self.holdout, self.test):
            digest.update(b"|" + split.labels.to(torch.int64).numpy().tobytes())
            digest.update(b"|" + b"".join(split.contents))
        return digest.hexdigest()[:16]

    def kept(self, *, only: bool = True) -> Kept:
        """How these images are divided, to divide them alike another time.

        Args:
            only: leave out images that are new then; otherwise they are divided as well.
        """
        images = []
        for part, split in enumerate((self.train, self.holdout, self.test)):
            rows = zip(split.contents, split.labels.tolist(), strict=True)
            name = split.pictures.name
            images.extend(KnownImage(c, name(i), y, part) for i, (c, y) in enumerate(rows))
        return Kept(self.classes, tuple(images), only, notes=self.division_notes)

    def normalised_by(self, mean: Channels, std: Channels) -> "ImageData":
        """The same data for a network that expects this mean and standard deviation."""
        parts = {
            name: getattr(self, name).normalised_by(mean, std)
            for name in ("train", "holdout", "test")
        }
        return replace(self, mean=mean, std=std, **parts)


class _Named(NamedTuple):
    """What a data set is called, and where it was found."""

    name: str
    place: str


class Expected(NamedTuple):
    """How a trunk wants to see images, apart from their size."""

    crop: float = 1.0
    """The centred square to cut out, as a share of the shorter side."""
    normalisation: tuple[Channels, Channels] | None = None
    """Mean and standard deviation to normalise by; those of the training images if None."""


AS_IT_IS = Expected()


def load(
    config: DataConfig,
    expected: Expected = AS_IT_IS,
    dividing: Dividing = BY_CONTENT,
    *,
    fetch: bool = True,
) -> ImageData:
    """Finds, checks, decodes (or prepares to stream) and splits the data.

    Args:
        config: which data, and how to read and split it.
        expected: crop and normalisation. Generated images are not cropped.
        dividing: how to draw splits that the data does not have.
        fetch: may download them; otherwise they must be on this machine.

    Raises:
        DataError: the data is missing, damaged or unsuitable.
    """
    if config.data == GENERATED:
        expected, generated = expected._replace(crop=1.0), _generated(config)
        independent = dividing._replace(grouping=each_alone)
        return _in_memory(_Named(GENERATED, GENERATED), generated, config, expected, independent)
    source = find(config.data, config.cache_folder, fetch=fetch)
    cropped = () if expected.crop == 1 else (expected.crop,)
    key = cache.key_of(source.fingerprint, config.image_size, config.skip_corrupt, *cropped)
    entry = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', source.name)}-{key}"
    opened = None if config.stream else cache.read(config.cache_folder, entry)
    if opened is None:
        with cache.locked(config.cache_folder, entry):
            opened = _open(source, entry, config, expected.crop)
    if isinstance(opened, Decoded):
        named = _Named(source.name, source.place)
        dividing = remembered_groups(dividing, source, config)
        return _in_memory(named, opened, config, expected, dividing)
    return _streamed(source, opened, config, expected, dividing)


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
        table = without(table, errors)
        images = np.delete(images, list(errors), axis=0)
    names = tuple(table.rows.name(place) for place in range(len(table.rows)))
    catalogue = replace(table.catalogue, contents=_as_rows(_contents(table.rows)))
    return Decoded(catalogue, images, cache.moments_of(images), names)


def _contents(rows: Rows) -> list[str]:
    """Digests of the files, in hexadecimal."""
    return [content_digest(rows.stored(place)).hex() for place in range(len(rows))]


def contents_of(source: Source, rows: Rows, config: DataConfig) -> UInt8[np.ndarray, "n 16"]:
    """Digests of the files of a whole data set; remembered."""
    entry = f"contents-{cache.key_of(source.fingerprint, config.skip_corrupt)}"
    return _as_rows(cache.remembered(config.cache_folder, entry, lambda: _contents(rows)))


def _as_rows(contents: list[str]) -> UInt8[np.ndarray, "n 16"]:
    return np.frombuffer(bytes.fromhex("".join(contents)), np.uint8).reshape(len(contents), -1)


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
    pixels = np.concatenate(images)
    contents = _as_rows([content_digest(image.tobytes()).hex() for image in pixels])
    catalogue = Catalogue(
        shapes.CLASSES,
        shapes.GROUPS,
        shapes.GROUP_NAMES,
        np.concatenate(labels),
        parts,
        contents=contents,
    )
    return Decoded(catalogue, pixels, cache.moments_of(pixels))


def _in_memory(
    named: _Named, decoded: Decoded, config: DataConfig, expected: Expected, dividing: Dividing
) -> ImageData:
    size, images = decoded.images.shape[1], torch.from_numpy(decoded.images)

    def statistics(train: Index) -> tuple[Channels, Channels]:
        return _mean_and_std(decoded.moments[train], size)

    def split(index: Index, labels: Index, mean: Channels, std: Channels) -> Split:
        rows, classes = torch.from_numpy(index), torch.from_numpy(labels)
        return MemorySplit(images, rows, classes, mean, std, decoded.names)

    pictures = Squares(images, torch.arange(len(images)), decoded.names)
    divided = sides_of(decoded.catalogue, config, dividing, pictures)
    return _assembled(named, divided, config, (size, expected), statistics, split)


def _streamed(
    source: Source, table: Table, config: DataConfig, expected: Expected, dividing: Dividing
) -> ImageData:
    """Decodes only a sample of the images now, for mean and standard deviation.

    The workers read every image once and the result is cached: a resumed run would see other
    batches if it learned later what to skip. Of large sets only with `skip_corrupt`, because it
    takes long.
    """
    workers, folder = config.decoders, config.cache_folder
    divided_before = dividing.kept is not None and dividing.kept.only
    if config.skip_corrupt:
        table = without_unreadable(source, table, folder, workers)
    elif len(table.rows) <= MOST_COMPARED and not divided_before:
        for error in errors_of(source, table.rows, folder, workers).values():
            raise UnreadableImage(error)
    rows, size = table.rows, config.image_size or _natural_size(table.rows)
    catalogue = replace(table.catalogue, contents=contents_of(source, rows, config))
    dividing = remembered_groups(dividing, source, config)
    divided = sides_of(catalogue, config, dividing, rows)

    def statistics(train: Index) -> tuple[Channels, Channels]:
        chosen = np.random.default_rng(config.data_seed).permutation(train)[:SAMPLE]
        key = cache.key_of(source.fingerprint, size, expected.crop, chosen.tolist())
        moments = cache.remembered(
            config.cache_folder,
            f"moments-{key}",
            lambda: _moments(rows.take(chosen), size, expected.crop),
        )
        return _mean_and_std(np.array(moments), size)

    def split(index: Index, labels: Index, mean: Channels, std: Channels) -> Split:
        classes = torch.from_numpy(labels)
        return StreamSplit(rows.take(index), classes, size, mean, std, workers, expected.crop)

    named = _Named(source.name, source.place)
    return _assembled(named, divided, config, (size, expected), statistics, split)


def _assembled(
    named: _Named,
    divided: tuple[Catalogue, Division, Changes],
    config: DataConfig,
    seen: tuple[int, Expected],
    statistics: Callable[[Index], tuple[Channels, Channels]],
    split: Callable[[Index, Index, Channels, Channels], Split],
) -> ImageData:
    """Normalises the images of each part by the `statistics` of the training images."""
    (known, division, changes), (size, expected) = divided, seen
    mean, std = expected.normalisation or statistics(division.train)

    def part(index: Index) -> Split:
        made = split(index, known.labels[index], mean, std)
        made.known = None if known.contents is None else known.contents[index]
        made.augments = config.augment
        return made

    return ImageData(
        name=named.name,
        place=named.place,
        classes=known.classes,
        groups=known.groups,
        group_names=known.group_names,
        train=part(division.train),
        holdout=part(division.holdout),
        test=part(division.test),
        mean=mean,
        std=std,
        image_size=size,
        crop=expected.crop,
        class_weights=_weights(known, division.train) if config.balance else None,
        notes=(*known.notes, *division.notes, *changes.words()),
        division_notes=division.notes,
        changes=changes,
        own_holdout=division.own_holdout,
        own_test=division.own_test,
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
