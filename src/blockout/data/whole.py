"""All labelled images of a data set in one split: to score a network on them."""

from typing import NamedTuple

import numpy as np
import torch

from blockout.data.config import DataConfig, DataError
from blockout.data.load import Expected, contents_of
from blockout.data.sources import find
from blockout.data.splits import Split
from blockout.data.streams import StreamSplit
from blockout.data.unreadable import without_unreadable


class Whole(NamedTuple):
    """The images of the classes that a network knows."""

    split: Split
    left_out: dict[str, int]
    """How many images there are of each class that it does not know."""


def load_whole(config: DataConfig, expected: Expected, classes: tuple[str, ...]) -> Whole:
    """All images of a data set, whatever splits they come in, labelled by ``classes``.

    Args:
        config: which data; its ``image_size`` says how the network sees them.
        expected: crop and normalisation, which the network has.
        classes: those that it knows. Images of other classes are left out.

    Raises:
        DataError: none of the classes is known.
    """
    source = find(config.data, config.cache_folder)
    table = source.open()
    if config.skip_corrupt:
        table = without_unreadable(source, table, config.cache_folder, config.decoders)
    assert config.image_size is not None and expected.normalisation is not None
    place, theirs = {label: i for i, label in enumerate(classes)}, table.catalogue.classes
    labels = np.array([place.get(label, -1) for label in theirs])[table.catalogue.labels]
    counts = np.bincount(table.catalogue.labels[labels < 0], minlength=len(theirs)).tolist()
    left_out = {label: n for label, n in zip(theirs, counts, strict=True) if label not in place}
    known = np.flatnonzero(labels >= 0)
    if not len(known):
        raise DataError(
            f"{config.data} has no image of a class that the run knows: its classes are named "
            f"{theirs[0]!r}, ..., those of the run {classes[0]!r}, ...; give them the same names"
        )
    split = StreamSplit(
        table.rows.take(known),
        torch.from_numpy(labels[known]),
        config.image_size,
        *expected.normalisation,
        config.decoders,
        expected.crop,
    )
    split.known = contents_of(source, table.rows, config)[known]
    return Whole(split, left_out)
