"""Splits images into training, hold-out and test, and checks the classes.

What the data says about its splits is kept. What it leaves open is drawn by the content of each
image and by `data_seed`: the same images are divided alike everywhere, whatever they are called,
and an image that is added moves no other, unless that is one of a group. Groups of alike images go
to one side; of those, each class has as many in the test as bring it close to its share.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from blockout.data.config import DataConfig, DataError
from blockout.data.folders import listed
from blockout.data.tables import HOLDOUT, PARTS, TEST, TRAIN, Catalogue

Index = Int64[np.ndarray, " n"]

UNEQUAL = 1.5
"""Class sizes that differ by more than this factor get a note."""
LARGE_GROUP = 0.25
"""Groups that cover more of their class than this, and than twice the share that is drawn, are not
held out: a hold-out of 5 % must not cost a class half of its images. They may exceed the share, or
it would hardly ever have a burst."""
HELD_OUT_FROM = 4
"""Smaller classes need not have an image in the hold-out: they need it more for training."""
OPEN = -1
"""The part of an image that is still to be drawn."""


@dataclass(frozen=True)
class Division:
    """The images of the three splits, in the order of the data."""

    train: Index
    holdout: Index
    test: Index
    notes: tuple[str, ...]
    own_holdout: bool = False
    """The data has a validation split, which is the hold-out."""
    own_test: bool = False
    """The data has a test split."""


def check(catalogue: Catalogue, name: str) -> None:
    """Raises DataError for fewer than two classes, or a class without training images."""
    if len(catalogue.classes) < 2:
        raise DataError(
            f"{name} has only one class, {listed(set(catalogue.classes))}; "
            "training needs two or more"
        )
    trained = catalogue.labels[catalogue.parts == TRAIN]
    counts = np.bincount(trained, minlength=len(catalogue.classes))
    if (counts == 0).any():
        lacking = {catalogue.classes[i] for i in np.flatnonzero(counts == 0)}
        raise DataError(
            f"the train split of {name} has no image of {listed(lacking)}; "
            "every class needs training images: add some, or remove the class"
        )


def is_drawn(catalogue: Catalogue, config: DataConfig) -> bool:
    """Whether the data leaves a split open."""
    has = {int(part) for part in np.unique(catalogue.parts)}
    return TEST not in has or (HOLDOUT not in has and config.holdout > 0)


def divide(
    catalogue: Catalogue,
    config: DataConfig,
    groups: Index | None = None,
    before: Index | None = None,
) -> Division:
    """The splits that the data has; those it lacks are drawn.

    Args:
        catalogue: classes, splits and contents of the images.
        config: shares and seed.
        groups: the group of each image; drawing does not part a group. Default: equal contents.
        before: the part that an image had in an earlier run, which it keeps; OPEN for new ones.
    """
    has_test, has_holdout = ((catalogue.parts == part).any() for part in (TEST, HOLDOUT))
    labels, parts, notes = catalogue.labels, catalogue.parts.copy(), []
    chance = _chances(catalogue, config.data_seed)
    groups = (
        same_content(catalogue) if groups is None else np.unique(groups, return_inverse=True)[1]
    )
    before = np.full(len(parts), OPEN) if before is None else before
    drawing = _Drawing(labels, groups, chance, _followed(before, groups))
    if not has_test:
        notes.extend(_untested(catalogue, groups))
        parts[drawing.drawn(parts == TRAIN, config.test_share, TEST)] = TEST
        count = int((parts == TEST).sum())
        notes.append(f"no test split: took {count} of {len(parts)} images for testing")
    if has_holdout and config.holdout not in (0, DataConfig.holdout):
        notes.append("--holdout has no effect: the data has its own validation split")
    elif config.holdout and not has_holdout:
        parts[drawing.drawn(parts == TRAIN, config.holdout, HOLDOUT)] = HOLDOUT
    train, holdout, test = (np.flatnonzero(parts == part) for part in (TRAIN, HOLDOUT, TEST))
    if config.per_class is not None:
        train = _at_most(labels, train, config.per_class, chance[TRAIN])
    notes.extend(_unequal(catalogue, train, config.balance))
    return Division(train, holdout, test, tuple(notes), bool(has_holdout), bool(has_test))


def _chances(catalogue: Catalogue, seed: int) -> Float64[np.ndarray, "3 n"]:
    """For each part a number from 0 to 1 per image, which its content and the seed decide."""
    contents = catalogue.contents
    if contents is None:  # nobody has read them: then their place decides
        contents = np.arange(len(catalogue.labels))[:, None]
    salt = str(seed).encode()
    rows = [hashlib.blake2b(row.tobytes(), key=salt, digest_size=24).digest() for row in contents]
    return np.frombuffer(b"".join(rows), np.uint64).reshape(-1, 3).T / 2.0**64


def same_content(catalogue: Catalogue) -> Index:
    """Groups of equal images."""
    if catalogue.contents is None:
        return np.arange(len(catalogue.labels))
    return np.unique(catalogue.contents, axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _followed(before: Index, groups: Index) -> Index:
    """Whole groups follow those of their images that had a part; training images come first."""
    rank = np.where(before == OPEN, len(PARTS), before)
    first = np.full(int(groups.max(initial=-1)) + 1, len(PARTS))
    np.minimum.at(first, groups, rank)
    found = np.where(before == OPEN, first[groups], before)
    return np.where(found == len(PARTS), OPEN, found)


@dataclass(frozen=True)
class _Drawing:
    labels: Index
    groups: Index
    chance: Float64[np.ndarray, "3 n"]
    before: Index

    def drawn(self, pool: Bool[np.ndarray, " n"], share: float, part: int) -> Index:
        """The images that go from the pool to the part: of each class about this share."""
        chosen = pool & (self.before == part)
        number = self._numbers(part)
        for label in np.unique(self.labels[pool]):
            members = np.flatnonzero(pool & (self.labels == label))
            free = members[self.before[members] == OPEN]
            known = int(chosen[members].sum())
            needed = not known and (part == TEST or len(members) >= HELD_OUT_FROM)
            groups, sizes = np.unique(self.groups[free], return_counts=True)
            draw = _to_test if part == TEST else _to_holdout
            taken = draw(number[groups], sizes, len(members) - known, share, needed)
            chosen[free[np.isin(self.groups[free], groups[taken])]] = True
        return np.flatnonzero(chosen)

    def _numbers(self, part: int) -> Float64[np.ndarray, " groups"]:
        """What decides about each group: the number of one of its images. Which one is chance, so
        an image that joins a group seldom changes it."""
        order = np.argsort(self.chance[TRAIN], kind="stable")
        _, first = np.unique(self.groups[order], return_index=True)
        return self.chance[part][order[first]]


def _to_test(
    numbers: Float64[np.ndarray, " groups"], sizes: Index, total: int, share: float, needed: bool
) -> Bool[np.ndarray, " groups"]:
    """Which groups of a class are drawn for the test: single images with numbers below the share,
    then groups of several, the lowest numbers first, where they fit into the share and bring the
    class closer to it.

    If one is needed and none is drawn, the one that exceeds the share least. One is always left.

    Args:
        numbers, sizes: of the groups.
        total: how many images of the class there are to draw from.
        share: of them to draw.
        needed: whether there must be one.
    """
    wanted = share * total
    excess = np.maximum(sizes - math.ceil(wanted), 0)
    taken = (numbers < share) & (sizes == 1)
    order, count = np.argsort(numbers), int(taken.sum())
    bursts: Bool[np.ndarray, " groups"] = (sizes > 1) & (excess == 0)
    for group in order[bursts[order]]:
        closer = abs(count + sizes[group] - wanted) < abs(count - wanted)
        taken[group] = closer
        count += int(sizes[group]) * closer
    if needed and not taken.any() and len(sizes):
        taken[np.lexsort((numbers, excess))[0]] = True
    return _with_one_left(taken, numbers, sizes, total)


def _to_holdout(
    numbers: Float64[np.ndarray, " groups"], sizes: Index, total: int, share: float, needed: bool
) -> Bool[np.ndarray, " groups"]:
    """Which are drawn for the hold-out: those with numbers below the share, without large ones.

    If one is needed and none is drawn, the one with the lowest number, unless all are large. One is
    always left.
    """
    small = sizes <= max(LARGE_GROUP, 2 * share) * total
    taken = (numbers < share) & small
    if needed and not taken.any() and small.any():
        taken[np.argmin(numbers + ~small)] = True
    return _with_one_left(taken, numbers, sizes, total)


def _with_one_left(
    taken: Bool[np.ndarray, " groups"],
    numbers: Float64[np.ndarray, " groups"],
    sizes: Index,
    total: int,
) -> Bool[np.ndarray, " groups"]:
    if taken.any() and sizes[taken].sum() == total:
        taken[np.argmax(np.where(taken, numbers, -1))] = False
    return taken


def _untested(catalogue: Catalogue, groups: Index) -> list[str]:
    """Names the classes of one image (or of copies of one): it is trained on, and they are not
    tested. Raises DataError if no class can be tested."""
    labels = catalogue.labels
    count = len(catalogue.classes)
    single = {c for c in range(count) if len(np.unique(groups[labels == c])) < 2}
    names = listed({catalogue.classes[c] for c in single})
    if len(single) == count:
        raise DataError(
            f"cannot split off a test set: only one image of {names}; add images or a test split"
        )
    said = f"only one image of {names}: it is trained on, and nothing tests whether it is learned"
    return [f"{said}; add photographs"] if single else []


def _at_most(labels: Index, images: Index, most: int, chance: Float64[np.ndarray, " n"]) -> Index:
    kept = []
    for label in np.unique(labels[images]):
        members = images[labels[images] == label]
        kept.append(members[np.argsort(chance[members], kind="stable")[:most]])
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
