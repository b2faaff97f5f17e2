"""``blockout evaluate``."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from blockout.commands.flags import Parser, at_least, flag
from blockout.commands.runs import CACHE, SKIP, images_of, open_run

if TYPE_CHECKING:
    from blockout.data import Split
    from blockout.runs import TrainedModel

WEIGHTS = "the last, the best on the hold-out, or the network that `blockout compact` made"
OTHERS = """score all images of other labelled data, for example a folder with one folder per class;
the run's own data, repeated here, may be fetched"""
DRAWS = "average over N sampled architectures instead of using the expected weights"


def run(arguments: list[str]) -> int:
    parser = Parser("evaluate", "Accuracy of a finished run on its images, or on others.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    flag(parser, "--split", "which images of the run", ("test", "holdout", "train"), "test")
    flag(parser, "--data NAME", OTHERS, str)
    flag(parser, "--cache DIR", CACHE, Path)
    flag(parser, "--skip-corrupt", "with --data: skip unreadable images")
    flag(parser, "--weights", WEIGHTS, ("final", "best", "compact"), "final")
    flag(parser, "--draws N", DRAWS, at_least(2))
    flag(parser, "--json", "print one JSON object")
    from blockout.data.config import DataError, UnreadableImage

    values = parser.parse_args(arguments)
    try:
        return _evaluate(values)
    except UnreadableImage as error:
        if values.data is None:
            raise
        raise DataError(f"{error}; {SKIP}") from error


def _evaluate(values: argparse.Namespace) -> int:
    opened = open_run(values.folder, data=values.data, cache=values.cache)
    trained = opened.network(values.weights)
    from blockout.runs import RunError
    from blockout.sampling import SampledModel
    from blockout.training import evaluate

    if values.data not in (None, opened.config.data.data):
        values.split, split = values.data, _others(trained, values)
    else:
        split = getattr(images_of(opened, quiet=values.json), values.split)
    if not len(split):
        raise RunError(
            f"the run in {values.folder} has no images in its {values.split} split "
            f"(--holdout {opened.config.data.holdout:g}); choose another with --split"
        )
    judged, split = _sooner(trained, split, values)
    model = SampledModel(judged, values.draws) if values.draws else judged
    torch.manual_seed(opened.seed)  # the same draws each time
    result = evaluate(model, split).require_finite()
    if values.json:
        print(json.dumps({"split": values.split, "images": len(split), **result.numbers()}))
    else:
        print(
            f"{values.split}: {result.accuracy:.2f} % of {len(split)} images right, "
            f"{result.top5:.2f} % among the first five, loss {result.loss:.4f}"
        )
    return 0


def _sooner(
    trained: "TrainedModel", split: "Split", values: argparse.Namespace
) -> tuple[nn.Module, "Split"]:
    """What to evaluate on what: the head on the trunk's features, kept or computed by the fastest
    way, where that gives the same result sooner than the whole network."""
    from blockout.data import DataConfig
    from blockout.training.features import feature_splits, worth_features

    if not worth_features(trained.model, split):
        return trained.model, split
    config = DataConfig(cache=values.cache)
    found = feature_splits(
        {"these": split},
        trained.model,
        trained,
        cache=config.cache_folder,
        workers=config.decoders,
        say=(lambda _: None) if values.json else partial(print, flush=True),
    )
    return trained.model.head, found["these"]


def _others(trained: "TrainedModel", values: argparse.Namespace) -> "Split":
    """All images of other data, labelled by the classes of the run."""
    from blockout.data import DataConfig, DataError
    from blockout.data.load import Expected, load_whole

    name = values.data
    config = DataConfig(
        name,
        image_size=trained.image_size,
        skip_corrupt=values.skip_corrupt,
        cache=values.cache,
    )
    classes, split = load_whole(config, Expected(trained.crop, (trained.mean, trained.std)))
    if unknown := sorted(set(classes) - set(trained.classes)):
        raise DataError(
            f"{name} has {len(unknown)} classes that the run does not know, among them "
            f"{unknown[0]!r}; it knows {len(trained.classes)}, such as {trained.classes[0]!r}"
        )
    places = torch.tensor([trained.classes.index(label) for label in classes])
    split.labels = places[split.labels]
    return split
