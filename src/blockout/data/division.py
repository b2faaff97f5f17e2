"""Which images are for training, for choices and for the final report; what is wrong with classes.

Every rule is stratified (the same share of each class) and seeded by `data_seed` alone.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from blockout.data.config import DataConfig, DataError
from blockout.data.folders import listed
from blockout.data.tables import HOLDOUT, PARTS, TEST, TRAIN, Catalogue

Index = Int64[np.ndarray, " n"]

UNEQUAL = 1.5
"""Class sizes that differ by more than this factor are worth a note."""


@dataclass(frozen=True)
class Division:
    """The images of the three splits, each in the order of the data."""

    train: Index
    holdout: Index
    test: Index
    notes: tuple[str, ...]


def check(catalogue: Catalogue, name: str) -> None:
    """Raise DataError for fewer than two classes, and for a class missing from a split."""
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
                "every class needs some in every split: add images, or remove the class from all"
            )


def divide(catalogue: Catalogue, config: DataConfig) -> Division:
    """The splits that the data brings, and by seeded rules the ones that it lacks."""
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
            f"no test split: {len(test)} of {len(train) + len(test)} images set apart as one"
        )
    if len(holdout) and config.holdout:
        notes.append("--holdout has no effect: the data brings a validation split of its own")
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
            f"cannot set a test split apart: only one image of {listed(single)}; "
            "add images, or bring a test split"
        )


def _stratified(
    labels: Index, images: Index, share: float, seed: int, purpose: int
) -> tuple[Index, Index]:
    """What stays and what is taken: of n images of a class round(share * n), but one at least is
    taken where there are two, and one always stays."""
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
    remedy = "classes are weighed" if balance else "--balance weighs them"
    return [
        f"class sizes range from {counts.min()} ({least}) to {counts.max()} ({most}) training "
        f"images; {remedy}"
    ]
