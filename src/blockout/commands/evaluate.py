"""``blockout evaluate``."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from blockout.commands.flags import Parser, at_least, flag
from blockout.commands.runs import CACHE, FIRST_FIVE, SKIP, images_of, open_run
from blockout.limits import HUB

if TYPE_CHECKING:
    from blockout.data import Split
    from blockout.runs import Run, TrainedModel
    from blockout.training import Evaluation

WEIGHTS = "the last, the best on the hold-out, or the network that `blockout compact` made"
OTHERS = """score all images of other labelled data, for example a folder with one folder per class.
If it holds the run's own images, only those of --split are scored. What the hub has
(hf://owner/name) is fetched only if you say it here"""
MOST_DRAWS = 10_000
DRAWS = "average over N sampled architectures instead of using the expected weights"


def run(arguments: list[str]) -> int:
    parser = Parser("evaluate", "Accuracy of a finished run on its images, or on others.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    flag(parser, "--split", "which images of the run", ("test", "holdout", "train"), "test")
    flag(parser, "--data NAME", OTHERS, str)
    flag(parser, "--cache DIR", CACHE, Path)
    flag(parser, "--skip-corrupt", "with --data: skip unreadable images")
    flag(parser, "--weights", WEIGHTS, ("final", "best", "compact"), "final")
    flag(parser, "--draws N", DRAWS, at_least(2, MOST_DRAWS))
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
    from blockout.runs.config import name_of
    from blockout.sampling import SampledModel
    from blockout.training import evaluate

    split, about = _scored(opened, trained, values)
    judged, split = _sooner(trained, split, values, name_of(values.data or opened.data_name))
    model = SampledModel(judged, values.draws) if values.draws else judged
    torch.manual_seed(opened.seed)  # the same draws each time
    result = evaluate(model, split).require_finite()
    if values.json:
        print(json.dumps({**about, **result.numbers()}))
    else:
        print(in_words(about["split"], len(split), result, len(trained.classes)))
    return 0


def in_words(name: str, images: int, result: "Evaluation", classes: int) -> str:
    """A result in one line."""
    top = f"{result.top5:.2f} % among the first five, " if classes > FIRST_FIVE else ""
    return f"{name}: {result.accuracy:.2f} % of {images} images right, {top}loss {result.loss:.4f}"


def _scored(
    opened: "Run", trained: "TrainedModel", values: argparse.Namespace
) -> tuple["Split", dict[str, Any]]:
    """The images to score, and what ``--json`` says of them beside the result."""
    from blockout.runs import RunError

    own = opened.config.data.data.removeprefix(HUB)
    if values.data is not None and values.data.removeprefix(HUB) != own:
        found = _others(opened, trained, values)
        if found is not None:
            return found
        whose = f"{values.data} holds the run's own images"
        _note(values, f"{whose}: only its {values.split} images are scored")
    split = getattr(images_of(opened, quiet=values.json), values.split)
    if not len(split):
        raise RunError(
            f"the run in {values.folder} has no images in its {values.split} split "
            f"(--holdout {opened.config.data.holdout:g}); choose another with --split"
        )
    return split, {"split": values.split, "images": len(split)}


def _others(
    opened: "Run", trained: "TrainedModel", values: argparse.Namespace
) -> tuple["Split", dict[str, Any]] | None:
    """All images of other data, labelled by the classes of the run; None if they are the run's."""
    from blockout.data import DataConfig
    from blockout.data.folders import listed
    from blockout.data.load import Expected
    from blockout.data.whole import load_whole
    from blockout.runs.split import kept_split

    config = DataConfig(
        values.data,
        image_size=trained.image_size,
        skip_corrupt=values.skip_corrupt,
        cache=values.cache,
    )
    expected = Expected(trained.crop, (trained.mean, trained.std))
    split, left_out = load_whole(config, expected, trained.classes)
    kept = None if opened.split is None else kept_split(opened.split)
    if kept is not None and kept.is_held_by(split.contents):
        return None
    count, seen = len(split), None if kept is None else kept.trained_on(split.contents)
    if left_out:
        images = "1 image" if (n := sum(left_out.values())) == 1 else f"{n} images"
        names = listed(set(left_out))
        _note(values, f"left out {images} of classes that the run does not know: {names}")
    if seen is None:
        _note(values, "this older run does not say which images it trained on; some may be these")
    elif seen:
        were = "was a training image" if seen == 1 else "were training images"
        told = f"{seen} of {count} scored images {were} of this run"
        _note(values, f"{told}, so the accuracy is too high")
    about = {"split": values.data, "images": count, "trained_on": seen, "left_out": left_out}
    return split, about


def _note(values: argparse.Namespace, text: str) -> None:
    if not values.json:
        print(f"note: {text}")


def _sooner(
    trained: "TrainedModel", split: "Split", values: argparse.Namespace, name: str
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
        name=name,
    )
    return trained.model.head, found["these"]
