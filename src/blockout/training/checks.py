"""Images of a run that somebody should look at: copies of training images in the test, and labels
that look wrong."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int64

from blockout.data import ImageData, Split
from blockout.data.duplicates import (
    Copies,
    as_alike_as_crops,
    equal_files,
    near_copies,
    nearest,
)
from blockout.data.features import FeatureSplit
from blockout.data.labels import Doubts, LabelJudge
from blockout.data.sides import MOST_COMPARED
from blockout.runs import folder as files
from blockout.runs.documents import Checks, CopiedImage, DoubtedLabel, as_json
from blockout.training.evaluation import Evaluation
from blockout.training.features import Say
from blockout.training.images import CROP_VIEW

LISTED = 1000
"""So many images of each kind are listed; more are counted."""
CROPS = 0.95
"""Near copies are at least as alike as this share of the images are with a crop of themselves."""
USUAL_CROPS = 0.8
"""What that is where there are no crops to measure it with."""
SLOW = 1e11
"""Products of features that take a few seconds; before more of them, a line says so."""
TABLE = (
    *("problem", "image", "label", "other_image", "other_label", "similarity"),
    "part",
)


def write_checks(
    folder: Path, data: ImageData, final: Mapping[str, Evaluation], say: Say = print
) -> None:
    """Writes ``checks.json`` and, if there is something to look at, a table of it.

    Args:
        folder: of the run.
        data: its images, with features where its trunk is frozen.
        final: what the network says of the test images and the hold-out.
        say: tells the user if it takes long.
    """
    found = checked(data, final, say)
    files.write_json(folder / files.CHECKS, as_json(found))
    if found.copies or found.doubts:
        text = table(found, data.classes)
        path = folder / files.CHECKS_TABLE
        files.write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def checked(data: ImageData, final: Mapping[str, Evaluation], say: Say = print) -> Checks:
    """What there is to look at. Near copies and labels are only looked for with features, in sets
    of up to 50,000 images."""
    exact, skipped = equal_files(data.test.contents, data.train.contents), _skipped(data)
    near, doubts, doubts_found = _no_copies(), (), 0
    if not skipped:
        _announce(data, say)
        near = _near(data, exact)
        doubts, doubts_found = _doubts(data, final)
    pairs = _pairs(data, exact, near)
    return Checks(pairs[:LISTED], len(pairs), doubts, doubts_found, skipped)


def _skipped(data: ImageData) -> str:
    """Why only equal files are looked for; empty if that is not so."""
    total = len(data.train) + len(data.holdout) + len(data.test)
    what = "near copies and wrong labels were not looked for"
    if not (isinstance(data.train, FeatureSplit) and isinstance(data.test, FeatureSplit)):
        return f"{what}: that takes the features of a frozen trunk"
    if total > MOST_COMPARED:
        return f"{what}: there are {total:,} images, more than {MOST_COMPARED:,}"
    return ""


def _announce(data: ImageData, say: Say) -> None:
    width = _features(data.train).shape[1]
    known = len(data.train) + len(data.holdout)
    products = len(data.test) * len(data.train) * width
    products += known * width * (2 * width + 2 * len(data.classes))
    if products > SLOW:
        say(f"looking for copies and wrong labels among {known + len(data.test):,} images ...")


def _features(split: Split) -> Float32[np.ndarray, "n features"]:
    """As evaluation sees the images."""
    assert isinstance(split, FeatureSplit)
    return split.features[:, 0].numpy()


def _no_copies() -> Copies:
    nothing = np.empty(0, np.int64)
    return Copies(nothing, nothing, np.empty(0, np.float32))


def _near(data: ImageData, exact: Copies) -> Copies:
    """Near copies among the test images that are no exact ones."""
    assert isinstance(data.train, FeatureSplit)
    views, threshold = data.train.features, USUAL_CROPS
    if views.shape[1] > CROP_VIEW:
        threshold = as_alike_as_crops(views[:, 0].numpy(), views[:, CROP_VIEW].numpy(), CROPS)
    found = nearest(_features(data.test), _features(data.train))
    rest: Bool[np.ndarray, " n"] = ~np.isin(found.places, exact.places)
    found = Copies(*(column[rest] for column in found))
    return near_copies(found, data.test.pictures, data.train.pictures, threshold)


def _pairs(data: ImageData, exact: Copies, near: Copies) -> tuple[CopiedImage, ...]:
    """Equal files first, and of these the ones whose labels differ."""
    test, train = data.test, data.train
    pairs = [
        CopiedImage(
            test.pictures.name(place),
            int(test.labels[place]),
            train.pictures.name(of),
            int(train.labels[of]),
            copies is exact,
            min(round(float(similarity), 4), 1.0),
        )
        for copies in (exact, near)
        for place, of, similarity in zip(*(c.tolist() for c in copies), strict=True)
    ]
    pairs.sort(key=lambda p: (not p.exact, p.test_label == p.train_label, -p.similarity, p.test))
    return tuple(pairs)


def _doubts(
    data: ImageData, final: Mapping[str, Evaluation]
) -> tuple[tuple[DoubtedLabel, ...], int]:
    """Labels that look wrong: those to list, and how many there are."""
    train, names = data.train, ["train", "holdout"] if len(data.holdout) else ["train"]
    known = [getattr(data, name) for name in names]
    labels = np.concatenate([split.labels.numpy() for split in known])
    features = np.concatenate([_features(split) for split in known])
    judge = LabelJudge(features, labels, len(data.classes))
    found = judge.known()
    held = found.places >= len(train)
    parts = {"train": Doubts(*(column[~held] for column in found))}
    late = Doubts(*(column[held] for column in found))
    parts["holdout"] = late._replace(places=late.places - len(train))
    parts["test"] = judge.others(_features(data.test), data.test.labels.numpy())
    rows = []
    for part, doubts in parts.items():
        agreed = _agreed(doubts, final.get(part))
        rows += [(part, *row) for row in zip(*(c.tolist() for c in agreed), strict=True)]
    rows.sort(key=lambda row: -row[3])
    return tuple(_doubted(data, *row) for row in rows[:LISTED]), len(rows)


def _agreed(doubts: Doubts, said: Evaluation | None) -> Doubts:
    """Those with which the network agrees, where it has not learned the labels themselves."""
    if said is None:
        return doubts
    agree = said.classes[doubts.places, 0].numpy() == doubts.looks_like
    return Doubts(*(column[agree] for column in doubts))


def _doubted(
    data: ImageData, part: str, place: int, looks_like: int, typical: float
) -> DoubtedLabel:
    split: Split = getattr(data, part)
    members: Int64[np.ndarray, " m"] = np.flatnonzero(data.train.labels.numpy() == looks_like)
    alike = nearest(_features(split)[place : place + 1], _features(data.train)[members]).of[0]
    return DoubtedLabel(
        split.pictures.name(place),
        part,  # pyright: ignore[reportArgumentType]
        int(split.labels[place]),
        looks_like,
        data.train.pictures.name(int(members[alike])),
        round(typical, 4),
    )


def table(found: Checks, classes: tuple[str, ...]) -> str:
    """The same as CSV: a line per image, with what it is or looks like."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(TABLE)
    for c in found.copies:
        kind = "exact copy" if c.exact else "near copy"
        names = c.test, classes[c.test_label], c.train, classes[c.train_label]
        rows.writerow((kind, *names, f"{c.similarity:.4f}", "test"))
    for d in found.doubts:
        names = d.image, classes[d.label], d.beside, classes[d.looks_like]
        rows.writerow(("label looks wrong", *names, "", d.part))
    return text.getvalue()
