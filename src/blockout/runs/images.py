"""The images of a run as its trunk expects them."""

import dataclasses

from blockout.data import ImageData, load
from blockout.data.sources import GENERATED
from blockout.models import trunk_preprocessing
from blockout.runs.config import TrainConfig


def load_images(config: TrainConfig) -> ImageData:
    """``config.data``; a pretrained trunk decides the normalisation, and the size if none is given.

    Generated images keep their own size, whatever the trunk.
    """
    expected = trunk_preprocessing(config.model)
    if expected is None:
        return load(config.data)
    given = config.data
    if given.image_size is None and given.data != GENERATED:
        given = dataclasses.replace(given, image_size=expected.image_size)
    return load(given, expected.crop).normalised_by(expected.mean, expected.std)
