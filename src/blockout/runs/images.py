"""The images of a run as its trunk expects them."""

from dataclasses import replace

from blockout.data import DataConfig, ImageData, load
from blockout.data.load import Expected, typical_side
from blockout.data.sources import GENERATED
from blockout.models import ModelConfig, trunk_preprocessing
from blockout.models.config import LARGE_TRUNK, SMALL_TRUNK, automatic_trunk, in_paper
from blockout.models.config import resolved as resolved_model
from blockout.runs.config import TrainConfig

LARGE_SIZE = 224
"""Of the images that inception-bn is made for."""


def load_images(config: TrainConfig) -> ImageData:
    """``config.data`` as its trunk wants it.

    ``--trunk auto`` is decided here, by the size of the images. A pretrained trunk decides the
    normalisation and the crop, and the size if none is given. Where the trunk is frozen, images are
    read one by one: each is needed only once. Generated images keep their own size.
    """
    data, model = config.data, _with_trunk(config.model, config.data)
    expected = trunk_preprocessing(model)
    generated = data.data == GENERATED
    if data.image_size is None and not generated:
        if expected is not None:
            data = replace(data, image_size=expected.image_size)
        elif model.trunk == LARGE_TRUNK:
            data = replace(data, image_size=LARGE_SIZE)
    if model.freeze_trunk and data.stream is None and not generated:
        data = replace(data, stream=True)
    if expected is None:
        return load(data)
    return load(data, Expected(expected.crop, (expected.mean, expected.std)))


def _with_trunk(model: ModelConfig, data: DataConfig) -> ModelConfig:
    """With ``auto`` decided. Where no pretrained trunk is to be had, photographs become small: the
    large trunk that learns from nothing takes days on a CPU, so it has to be asked for."""
    if model.trunk == "auto":
        side = data.image_size or typical_side(data)
        trunk = automatic_trunk(data.data, side)
        if trunk == LARGE_TRUNK and data.image_size is None and not in_paper(data.data):
            trunk = SMALL_TRUNK
        model = replace(model, trunk=trunk)
    return resolved_model(model, data.data, data.image_size)
