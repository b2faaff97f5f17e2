"""The images of a run that is about to train, with near-duplicates on one side of each split."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float32, Int64

from blockout.data import DataConfig, ImageData, StreamSplit
from blockout.data.duplicates import Alike, FindAlike, as_alike_as_crops, copies, duplicate_groups
from blockout.data.features import FeatureSplit, digests
from blockout.data.sides import MOST_COMPARED, Dividing
from blockout.data.splits import Pictures
from blockout.data.tables import Catalogue, Rows
from blockout.models import (
    Head,
    ImageClassifier,
    ModelConfig,
    Preprocessing,
    build_trunk,
    count_features,
    trunk_preprocessing,
)
from blockout.models.config import LARGEST_SMALL_IMAGE, PHOTOGRAPH_TRUNK
from blockout.runs.config import TrainConfig
from blockout.runs.images import load_images
from blockout.training.features import Plan, Say, introduction, with_features

SAMPLE = 256
"""So many images say how alike two crops of one image are."""
CROP_VIEW = 2
"""The first view that is neither the whole image nor its mirror image."""
ROUNDED, LARGEST = 0.02, 0.98
"""The threshold is rounded to a multiple of this, so that one more photograph seldom changes it."""


def training_images(config: TrainConfig, say: Say) -> ImageData:
    """The images of a run; where its trunk is frozen, the trunk says which are alike."""
    return load_images(config, lambda model, data: trunk_dividing(config, model, data, say))


def trunk_dividing(
    config: TrainConfig, model: ModelConfig, data: DataConfig, say: Say
) -> Dividing | None:
    """``trunk_grouping``, which says first what the trunk is going to see in all; ``model`` and
    ``data`` are those of ``config`` with the trunk and the size decided."""
    plan = Plan()

    def expect(catalogue: Catalogue, train: int) -> None:
        nonlocal plan
        classes, count, why = len(catalogue.classes), len(catalogue.labels), ""
        if config.model.trunk == "auto" and model.trunk == PHOTOGRAPH_TRUNK:
            why = f"chosen because the shorter side is above {LARGEST_SMALL_IMAGE} px; "
        text = introduction(model, data, classes, count, why)
        plan = Plan(text, count + (data.views - 1) * train)

    grouping = trunk_grouping(model, data, say, lambda: plan)
    return None if grouping is None else Dividing(grouping, expect=expect)


def trunk_grouping(
    model: ModelConfig, data: DataConfig, say: Say, plan: Callable[[], Plan] = Plan
) -> FindAlike | None:
    """Finds near-duplicates by what a pretrained trunk says of them; None where nothing is kept of
    it. Its features stay in the cache, where training finds them.

    Photographs are near-duplicates if they are as alike as two crops of one photograph. On Grocery,
    whose training photographs come in bursts, a linear classifier then gets 78 % of a hold-out
    right, 93 % of one that is drawn image by image, and 71 % of the test images.
    """
    expected, size = trunk_preprocessing(model), data.image_size
    if expected is None or size is None or not data.views:
        return None

    def grouping(pictures: Pictures, labels: Int64[np.ndarray, " n"]) -> Alike:
        if len(labels) > MOST_COMPARED or not isinstance(pictures, Rows):
            return copies(pictures, labels)
        seen = expected._replace(image_size=size)
        whole, views = _features(pictures, labels, model, seen, data, say, plan())
        alike = as_alike_as_crops(views[:, 0], views[:, CROP_VIEW])
        threshold = min(round(alike / ROUNDED) * ROUNDED, LARGEST)
        return duplicate_groups(whole, labels, threshold=threshold)

    return grouping


def _features(
    rows: Rows,
    labels: Int64[np.ndarray, " n"],
    model: ModelConfig,
    seen: Preprocessing,
    data: DataConfig,
    say: Say,
    plan: Plan,
) -> tuple[Float32[np.ndarray, "n features"], Float32[np.ndarray, "m views features"]]:
    """Of all pictures as evaluation sees them, and of several views of some."""
    trunk = build_trunk(model, seen.image_size)
    head = Head(count_features(trunk, seen.image_size), 2, method="baseline")
    sample = np.argsort([content.hex() for content in digests(rows, len(rows))])[:SAMPLE]

    def split(places: Int64[np.ndarray, " m"]) -> StreamSplit:
        values = seen.image_size, seen.mean, seen.std, data.decoders, seen.crop
        return StreamSplit(rows.take(places), torch.from_numpy(labels[places]), *values)

    images = ImageData(
        name="",
        classes=(),
        groups=None,
        group_names=None,
        train=split(np.sort(sample)),
        holdout=split(np.arange(len(rows))),
        test=split(np.arange(0)),
        mean=seen.mean,
        std=seen.std,
        image_size=seen.image_size,
        class_weights=None,
        notes=(),
        crop=seen.crop,
    )
    found = with_features(
        images,
        ImageClassifier(trunk, head, freeze_trunk=True),
        views=CROP_VIEW + 1,
        cache=data.cache_folder,
        workers=data.decoders,
        say=say,
        plan=plan,
    )
    whole, views = found.holdout, found.train
    assert isinstance(whole, FeatureSplit) and isinstance(views, FeatureSplit)
    return whole.features[:, 0].numpy(), views.features.numpy()
