"""Splits images into training, hold-out and test, and checks the classes.

Every split takes the same share of each class and depends on `data_seed` alone.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from blockout.data.config import DataConfig, DataError
from blockout.data.folders import listed
from blockout.data.tables import HOLDOUT, PARTS, TEST, TRAIN, Catalogue

Index = Int64[np.ndarray, " n"]

UNEQUAL = 1.5
"""Class sizes that differ by more than this factor get a note."""


@dataclass(frozen=True)
class Division:
    """The images of the three splits, in the order of the data."""

    train: Index
    holdout: Index
    test: Index
    notes: tuple[str, ...]


def check(catalogue: Catalogue, name: str) -> None:
    """Raises DataError for fewer than two classes, or a class that is missing from a split."""
    if len(catalogue.classes) < 2:
        raise DataError(
            f"{name} has only one class, {listed(set(catalogue.classes))}; "
            "training needs two or more"
        )
    for part in np.unique(catalogue.parts):
        counts = np.bincount(
            catalogue.labels[catalogue.parts == part], minlength=len(catalogue.classes)
        )
        if (counts == 0).any():
            lacking = {catalogue.classes[i] for i in np.flatnonzero(counts == 0)}
            raise DataError(
                f"the {PARTS[part]} split of {name} has no image of {listed(lacking)}; "
                "every class needs images in every split: add some, or remove the class everywhere"
            )


def divide(catalogue: Catalogue, config: DataConfig) -> Division:
    """The splits that the data has; those it lacks are drawn."""
    train, holdout, test = (
        np.flatnonzero(catalogue.parts == part) for part in (TRAIN, HOLDOUT, TEST)
    )
    notes = []
    if not len(test):
        _check_divisible(catalogue, train)
        train, test = _stratified(
            catalogue.labels, train, config.test_share, config.data_seed, TEST
        )
        notes.append(
            f"no test split: took {len(test)} of {len(train) + len(test)} images for testing"
        )
    if len(holdout) and config.holdout:
        notes.append("--holdout has no effect: the data has its own validation split")
    elif config.holdout:
        train, holdout = _stratified(
            catalogue.labels, train, config.holdout, config.data_seed, HOLDOUT
        )
    if config.per_class is not None:
        train = _at_most(catalogue.labels, train, config.per_class, config.data_seed)
    notes.extend(_unequal(catalogue, train, config.balance))
    return Division(train, holdout, test, tuple(notes))


def _check_divisible(catalogue: Catalogue, images: Index) -> None:
    counts = np.bincount(catalogue.labels[images], minlength=len(catalogue.classes))
    if (counts < 2).any():
        single = {catalogue.classes[i] for i in np.flatnonzero(counts < 2)}
        raise DataError(
            f"cannot split off a test set: only one image of {listed(single)}; "
            "add images or a test split"
        )


def _stratified(
    labels: Index, images: Index, share: float, seed: int, purpose: int
) -> tuple[Index, Index]:
    """What stays and what is taken: round(share * n) of a class's n images are taken, at least one
    if n > 1, and at least one stays."""
    rng = np.random.default_rng([seed, purpose])
    taken = []
    for label in np.unique(labels[images]):
        members = rng.permutation(images[labels[images] == label])
        taken.append(members[: min(max(1, round(share * len(members))), len(members) - 1)])
    chosen = np.sort(np.concatenate(taken))
    return np.setdiff1d(images, chosen), chosen


def _at_most(labels: Index, images: Index, most: int, seed: int) -> Index:
    rng = np.random.default_rng([seed, TRAIN])
    kept = [
        rng.permutation(images[labels[images] == label])[:most]
        for label in np.unique(labels[images])
    ]
    return np.sort(np.concatenate(kept))


def _unequal(catalogue: Catalogue, train: Index, balance: bool) -> list[str]:
    counts = np.bincount(catalogue.labels[train], minlength=len(catalogue.classes))
    if counts.max() <= UNEQUAL * counts.min():
        return []
    least, most = catalogue.classes[counts.argmin()], catalogue.classes[counts.argmax()]
    remedy = "classes are weighted" if balance else "use --balance to weight them"
    return [
        f"class sizes range from {counts.min()} ({least}) to {counts.max()} ({most}) training "
        f"images; {remedy}"
    ]
