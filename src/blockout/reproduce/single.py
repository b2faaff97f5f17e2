"""One run of a cell, at any scale: trains, and says in a record what came of it."""

import time
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Float
from torch import nn

from blockout import to_branches
from blockout.data import ImageData
from blockout.layers import memberships_of
from blockout.reproduce import hierarchies
from blockout.reproduce.records import RunRecord, Spread
from blockout.reproduce.rows import METHODS
from blockout.reproduce.settings import Cell, Condition, cell_of, config_of
from blockout.reproduce.transfer import (
    Trained,
    accuracy,
    confusion_of,
    features_of,
    some,
    train_head,
)
from blockout.runs import Run
from blockout.runs.config import TrainConfig
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.structure import Structure
from blockout.structure.groups import agreement, similarities

DIGITS = 2
CURVE_POINTS = 60


class Impossible(RuntimeError):
    """This cell cannot be run on this data; the message says why."""


class Outcome(NamedTuple):
    """A record with what was run, and on what."""

    record: RunRecord
    config: dict[str, Any]
    environment: dict[str, Any]


def run_cell(condition: Condition, cell: Cell, seed: int, work: Path) -> Outcome:
    """Does one run; at the scales with run folders, goes on where an earlier attempt stopped.

    Raises:
        Impossible: the data lacks what the cell needs.
    """
    if condition.scale == "transfer":
        data = _some_features(condition, seed)  # the first run of many waits for them
        began = time.perf_counter()
        record, config = _transferred(condition, cell, seed, data)
        took = time.perf_counter() - began
    else:
        record, config = _trained(condition, cell, seed, work)
        took = record.seconds
    made_with = {k: v for k, v in as_json(environment()).items() if k not in ("command", "origins")}
    return Outcome(_rounded(record, took), config.recipe(), made_with)


def _rounded(record: RunRecord, took: float) -> RunRecord:
    return _with(
        record,
        test=round(record.test, DIGITS),
        holdout=None if record.holdout is None else round(record.holdout, DIGITS),
        train=round(record.train, DIGITS),
        seconds=round(record.seconds, 1),
        took=round(took, 1),
        curve_test=[None if x is None else round(x, 1) for x in record.curve_test],
        curve_loss=[round(x, 3) for x in record.curve_loss],
    )


# --- heads on features ----------------------------------------------------------------------------


def _transferred(
    condition: Condition, cell: Cell, seed: int, data: ImageData
) -> tuple[RunRecord, TrainConfig]:
    config = config_of(condition, cell, seed).for_images(data)
    given, probability = cell.settings["given"], cell.settings["probability"]
    groups, prepare = None, lambda head: None
    if given:
        groups = _given_groups(given, condition, data, seed, cell.settings["clusters"])
        prepare = partial(hierarchies.give, groups=groups)
    elif not config.model.learned and probability != 0.5:
        prepare = partial(hierarchies.give_probability, probability=probability)
    trained = train_head(config, data, prepare)
    record = _record(trained, data, seed, config)
    if groups is not None:
        record = _with(record, groups=groups.tolist())
    if groups is not None or config.guided:
        record = _with(record, **_compacted(trained.head, data))
    return record, config


def _some_features(condition: Condition, seed: int) -> ImageData:
    plain = cell_of({**METHODS["baseline"][1], "paper": True}, condition.scale)
    return some(features_of(config_of(condition, plain, 0)), condition.per_class, seed)


def _record(trained: Trained, data: ImageData, seed: int, config: TrainConfig) -> RunRecord:
    head, curve = trained.head, trained.curve
    test = accuracy(head, data.test)
    assert test is not None
    record = RunRecord(
        seed=seed,
        test=test,
        holdout=accuracy(head, data.holdout),
        train=trained.train_accuracy,
        steps=curve.steps[-1],
        seconds=trained.seconds,
        took=0.0,
        images=len(data.train.labels),
        curve_steps=curve.steps,
        curve_test=list(curve.test),
        curve_loss=curve.loss,
    )
    learned = config.model.method == "blockout" and config.model.learned
    if not learned:
        return record
    found = {k: m.probabilities.detach().numpy() for k, m in memberships_of(head).items()}
    return _with(record, **facts(found, data.groups))


def facts(
    memberships: dict[str, Float[np.ndarray, "nodes clusters"]], groups: tuple[int, ...] | None
) -> dict[str, Any]:
    """What a record says of learned memberships; the classes are the last set.

    >>> p = np.array([[0.0, 1.0], [0.95, 0.5]])
    >>> facts({"P_0": p}, None)["codes"], facts({"P_0": p}, None)["p"]["P_0"].below
    ('09 95', 0.25)
    """
    classes = list(memberships.values())[-1]
    expected = np.quantile(classes.sum(1), (0, 0.25, 0.5, 0.75, 1)).round(DIGITS)
    digits = np.minimum(classes * 10, 9).astype(int)
    together = None
    if groups is not None:
        alike = similarities(classes.astype(np.float64))
        alone = list(range(len(classes)))
        together = agreement(alone, groups, alike=alike, permutations=1).auc
    return {
        "p": {name: _spread(p) for name, p in memberships.items()},
        "clusters_per_class": tuple(expected.tolist()),
        "codes": " ".join("".join(map(str, row)) for row in digits.tolist()),
        "auc": None if together is None else round(together, 3),
    }


def _spread(p: Float[np.ndarray, "nodes clusters"]) -> Spread:
    low, middle, high = np.quantile(p, (0.25, 0.5, 0.75)).round(3).tolist()
    below, above = round(float((p < 0.1).mean()), 3), round(float((p > 0.9).mean()), 3)
    return Spread(below, above, (low, middle, high))


def _compacted(head: nn.Module, data: ImageData) -> dict[str, Any]:
    total = Structure.from_model(head, classes=data.classes).total
    small = accuracy(to_branches(head, measure=False).eval(), data.test)
    left = round(100 * total.pairs_after / total.pairs_before, 1)
    return {"left": left, "compact": None if small is None else round(small, DIGITS)}


def _with(record: RunRecord, **values: Any) -> RunRecord:
    return msgspec.structs.replace(record, **values)


def _given_groups(
    kind: str, condition: Condition, data: ImageData, seed: int, clusters: int
) -> hierarchies.Groups:
    if kind == "superclasses":
        if data.groups is None:
            raise Impossible(f"{data.name} has no known groups of classes")
        known = np.array(data.groups)
        if known.max() + 1 <= clusters:
            return known
        return hierarchies.merged_groups(known, _confusion(condition, seed), clusters, seed)
    groups = hierarchies.confused_groups(_confusion(condition, seed), clusters, seed)
    return hierarchies.shuffled_groups(groups, seed) if kind == "random" else groups


@lru_cache(maxsize=4)
def _confusion(condition: Condition, seed: int) -> Float[np.ndarray, "classes classes"]:
    """Of a baseline of the same seed on the same images."""
    data = _some_features(condition, seed)
    plain = cell_of({**METHODS["baseline"][1], "paper": True}, condition.scale)
    config = config_of(condition, plain, seed).for_images(data)
    return confusion_of(train_head(config, data, points=1).head, data)


# --- whole networks, in run folders ---------------------------------------------------------------


def _trained(
    condition: Condition, cell: Cell, seed: int, work: Path
) -> tuple[RunRecord, TrainConfig]:
    from blockout.training import train

    config = config_of(condition, cell, seed)
    folder = work / condition.name / f"{cell.name}-{seed}"
    train(replace(config, run=replace(config.run, run=folder)))
    run = Run.open(folder)
    result = run.result
    assert result is not None and run.description is not None
    every = max(len(run.epochs) // CURVE_POINTS, 1)
    points = run.epochs[::-every][::-1]
    images = 0 if result.images is None else result.images.train
    record = RunRecord(
        seed=seed,
        test=result.test.accuracy,
        holdout=None if result.holdout is None else result.holdout.accuracy,
        train=run.epochs[-1].train_accuracy,
        steps=result.steps,
        seconds=result.seconds,
        took=result.seconds,
        images=images,
        curve_steps=[entry.step for entry in points],
        curve_test=[entry.test_accuracy for entry in points],
        curve_loss=[entry.epoch_loss for entry in points],
    )
    if run.learned:
        record = _with(record, **facts(run.memberships, run.description.groups))
        if run.structure is not None:
            total = run.structure.total
            left = round(100 * total.pairs_after / total.pairs_before, 1)
            record = _with(record, left=left)
    return record, run.config
