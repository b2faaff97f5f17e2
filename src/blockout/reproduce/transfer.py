"""Heads on features of a frozen trunk: a run takes seconds, so it has no folder and no checkpoint.

It is what `blockout train` does with the same config, without what is recorded around it (and with
other initial weights: chance does not make a trunk first).
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from blockout.data import ImageData, Split
from blockout.data.features import FeatureSplit
from blockout.models import Head, build_model
from blockout.runs.config import TrainConfig
from blockout.training.assembly import make_engine
from blockout.training.engine import Engine, kept_random_state
from blockout.training.evaluation import eval_mode, evaluate, measure_statistics
from blockout.training.features import Say, with_features
from blockout.training.images import training_images
from blockout.training.processes import Processes

POINTS = 20
"""Of a curve."""
LOOKED_AT = 2500
"""Test images that a curve looks at, spread evenly over all of them."""
MEASURED_ON = 4096
"""Training images that give batch normalisation its statistics."""


class Curve(NamedTuple):
    """How a run came where it ended."""

    steps: list[int]
    test: list[float]
    """Accuracy on up to ``LOOKED_AT`` test images, in per cent; the last one is final as well."""
    loss: list[float]
    """Mean over the steps since the last point."""


class Trained(NamedTuple):
    """A head in eval mode, and how it came there."""

    head: Head
    curve: Curve
    seconds: float
    """Of training, without the looks at test images."""
    train_accuracy: float
    """On the steps since the last point of the curve, in per cent."""


@lru_cache(maxsize=2)
def features_of(config: TrainConfig, say: Say = print) -> ImageData:
    """The data of a config through its frozen trunk; what is cached is not computed again."""
    images = training_images(config, say)
    config = config.for_images(images)
    model = build_model(
        config.model,
        classes=len(images.classes),
        data_name=images.name,
        image_size=images.image_size,
    )
    return with_features(
        images,
        model,
        views=config.data.views,
        cache=config.data.cache_folder,
        workers=config.data.decoders,
        say=say,
    )


def some(data: ImageData, per_class: int | None, seed: int) -> ImageData:
    """So many training images per class, another choice with every seed."""
    if per_class is None:
        return data
    labels, rng = data.train.labels.numpy(), np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    kept = np.sort(np.concatenate([order[labels[order] == c][:per_class] for c in set(labels)]))
    assert isinstance(data.train, FeatureSplit)
    train = FeatureSplit(data.train.features[kept], data.train.images)
    train.labels = data.train.labels[kept]
    return replace(data, train=train)


def train_head(
    config: TrainConfig,
    data: ImageData,
    prepare: Callable[[Head], object] = lambda head: None,
    *,
    points: int = POINTS,
) -> Trained:
    """Trains the head of a resolved config on features.

    Args:
        config: resolved for ``data``.
        data: features, from ``features_of``.
        prepare: called with the new head, for example to give it memberships.
        points: of the curve.
    """
    seed, train = config.optimisation.seed, data.train
    assert isinstance(train, FeatureSplit)
    with kept_random_state(Processes()):
        torch.manual_seed(seed)
        head = new_head(config, data)
        prepare(head)
        torch.manual_seed(seed)
        engine = make_engine(config, head, data, Processes())
        try:
            curve, seconds, accuracy = _fitted(engine, config, data, points)
        finally:
            engine.close()
    head.eval()
    _measure(head, train, MEASURED_ON)
    return Trained(head, curve, seconds, accuracy)


def new_head(config: TrainConfig, data: ImageData) -> Head:
    m = config.model
    assert isinstance(data.train, FeatureSplit)
    assert m.nodes and m.clusters and m.dropout is not None
    return Head(
        data.train.features.shape[2],
        len(data.classes),
        method=m.method,
        nodes=m.nodes,
        clusters=m.clusters,
        hard=m.hard,
        learned=m.learned,
        dropout=m.dropout,
        with_linear=bool(m.with_linear),
    )


def _fitted(
    engine: Engine, config: TrainConfig, data: ImageData, points: int
) -> tuple[Curve, float, float]:
    """Trains to the end. The clock stands still while the curve looks at test images."""
    steps, curve, seconds = engine.recipe.steps, Curve([], [], []), 0.0
    due = {round(steps * (i + 1) / points) for i in range(points)}
    losses, hits, seen = [], 0, 0
    accuracy = 0.0
    engine.train()
    began = time.perf_counter()
    for x, y in _endless(config, data):
        step = engine.step(x, y)
        losses.append(step.loss)
        hits, seen = hits + step.hits, seen + step.examples
        if engine.done in due:
            seconds += time.perf_counter() - began
            curve.steps.append(engine.done)
            curve.loss.append(sum(losses) / len(losses))
            curve.test.append(_glance(engine.module, data, data.test).accuracy)
            if engine.guide is not None and len(data.holdout):
                engine.guide.hear(*_glance(engine.module, data, data.holdout))
            accuracy, losses, hits, seen = 100 * hits / seen, [], 0, 0
            began = time.perf_counter()
        if engine.done == steps:
            return curve, seconds, accuracy
    raise AssertionError("batches never end")


def _endless(config: TrainConfig, data: ImageData) -> Iterator[tuple[Tensor, Tensor]]:
    epoch, seed = 0, config.optimisation.seed
    while True:
        yield from data.train.batches(config.batch_size, train=True, seed=seed, epoch=epoch)
        epoch += 1


class Glance(NamedTuple):
    """At some images of a split."""

    accuracy: float
    """In per cent."""
    images: int


@torch.no_grad()
def _glance(module: nn.Module, data: ImageData, split: Split) -> Glance:
    """Accuracy as inference would have it now; training goes on as before."""
    assert isinstance(data.train, FeatureSplit) and isinstance(split, FeatureSplit)
    _measure(module, data.train, MEASURED_ON // 4)
    every = _every(split, LOOKED_AT)
    labels = split.labels[::every]
    with eval_mode(module):
        said = module(split.features[::every, 0]).argmax(1)
    return Glance(100 * float((said == labels).double().mean()), len(labels))


def _measure(module: nn.Module, train: FeatureSplit, images: int) -> None:
    """Statistics of batch normalisation on so many images, of all classes: folders are sorted."""
    measure_statistics(module, train.features[:: _every(train, images), 0].split(256))


def _every(split: FeatureSplit, most: int) -> int:
    """The step through a split that gives at most ``most`` images, spread evenly."""
    return max(math.ceil(len(split.labels) / most), 1)


def accuracy(head: nn.Module, split: Split) -> float | None:
    """In per cent; None where there is nothing to be right about."""
    return evaluate(head, split).accuracy if len(split.labels) else None


@torch.no_grad()
def confusion_of(head: nn.Module, data: ImageData) -> Float[np.ndarray, "classes classes"]:
    """How probable each class looks in images of each class that are not for the test, on average.

    Training images count too, because a hold-out may have but one image per class.
    """
    total = torch.zeros(len(data.classes), len(data.classes), dtype=torch.float64)
    for split in (data.train, data.holdout):
        assert isinstance(split, FeatureSplit)
        for x, y in split.batches(LOOKED_AT, train=False):
            total.index_add_(0, y, head(x).softmax(1).double())
    return (total / total.sum(1, keepdim=True)).numpy()
