"""Finds the image, label and group columns of a Hugging Face data set, and its splits."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from blockout.data.config import DataError
from blockout.data.folders import SPLIT_NAMES, part_codes
from blockout.data.tables import Catalogue, Table, join

if TYPE_CHECKING:
    from datasets import Dataset

IMAGE_COLUMNS = ("image", "img", "picture", "photo", "bytes")
LABEL_COLUMNS = ("fine_label", "label", "labels", "fine_labels", "class", "target", "category")
GROUP_COLUMNS = ("coarse_label", "coarse_labels", "superclass", "group")


def table_of(name: str, splits: "Mapping[str, Dataset]") -> Table:
    """The table of a data set with one or several splits.

    Raises:
        DataError: an image or label column, a training split, or labels are missing.
    """
    chosen = _choose_splits(name, splits)
    features = chosen["train"].features
    image, label = _image_column(name, features), _label_column(name, features)
    _check_columns(name, chosen, [image, label])
    classes, labels = _encoded(name, chosen, label)
    groups, group_names, notes = _groups(
        chosen, _first(GROUP_COLUMNS, features), labels, len(classes)
    )
    sizes = [len(split) for split in chosen.values()]
    codes = part_codes(chosen)
    parts = np.repeat([codes[split] for split in chosen], sizes)
    catalogue = Catalogue(classes, groups, group_names, labels, parts, notes)
    return Table(catalogue, join(chosen, image))


def _choose_splits(name: str, splits: "Mapping[str, Dataset]") -> "dict[str, Dataset]":
    """The training split, then `val` and `test` if they exist and have labels."""
    plain = {SPLIT_NAMES[s]: data for s, data in splits.items() if s in SPLIT_NAMES}
    if "train" not in plain:
        if len(splits) > 1:
            raise DataError(
                f"{name} has the splits {', '.join(splits)}; expected one of them to be train"
            )
        plain = {"train": next(iter(splits.values()))}
    for split, data in plain.items():
        if not len(data):
            raise DataError(f"the {split} split of {name} holds no images")
    label = _label_column(name, plain["train"].features)
    unlabelled = {split for split, data in plain.items() if _unlabelled(data, label)}
    if "train" in unlabelled:
        raise DataError(f"the train split of {name} has no labels: {label} is -1 in every row")
    return {s: plain[s] for s in ("train", "val", "test") if s in plain and s not in unlabelled}


def _unlabelled(split: "Dataset", label: str) -> bool:
    """Competitions publish test sets without labels, or with -1 instead."""
    return label not in split.features or bool(np.all(_column(split, label) == -1))


def _first(names: tuple[str, ...], features: dict) -> str | None:
    return next((name for name in names if name in features), None)


def _image_column(name: str, features: dict) -> str:
    from datasets import Image

    images = [column for column, kind in features.items() if isinstance(kind, Image)]
    found = images[0] if images else _first(IMAGE_COLUMNS, features)
    if found is None:
        raise DataError(
            f"{name} has the columns {', '.join(features)}; expected one of them to hold images"
        )
    return found


def _label_column(name: str, features: dict) -> str:
    found = _first(LABEL_COLUMNS, features)
    if found is None:
        raise DataError(
            f"{name} has the columns {', '.join(features)}; expected one of them to be called label"
        )
    return found


def _check_columns(name: str, splits: "dict[str, Dataset]", columns: list[str]) -> None:
    for split, data in splits.items():
        if lacking := [column for column in columns if column not in data.features]:
            raise DataError(
                f"the {split} split of {name} has no column {lacking[0]!r} but the train split does"
            )


def _column(split: "Dataset", column: str) -> np.ndarray:
    return split.data.column(column).to_numpy()


def _encoded(
    name: str, splits: "dict[str, Dataset]", label: str
) -> tuple[tuple[str, ...], Int64[np.ndarray, " n"]]:
    """Class names (the data's own, else its sorted values) and the class of each row."""
    values = np.concatenate([_column(split, label) for split in splits.values()])
    names = getattr(splits["train"].features[label], "names", None)
    if names is None:
        missing = values == None if values.dtype == object else np.isnan(values)  # noqa: E711
        if missing.any():
            raise DataError(f"{name}: {missing.sum()} rows have no {label}; remove them")
        found, labels = np.unique(values, return_inverse=True)
        return tuple(str(value) for value in found.tolist()), labels.astype(np.int64)
    labels = np.nan_to_num(values.astype(np.float64), nan=-1).astype(np.int64)
    if wrong := int(((labels < 0) | (labels >= len(names))).sum()):
        raise DataError(
            f"{name}: {wrong} rows have a {label} outside its {len(names)} classes; remove them"
        )
    return tuple(names), labels


def _groups(
    splits: "dict[str, Dataset]", group: str | None, labels: Int64[np.ndarray, " n"], classes: int
) -> tuple[tuple[int, ...] | None, tuple[str, ...] | None, tuple[str, ...]]:
    """The group of each class, if each class has exactly one."""
    if group is None or any(group not in split.features for split in splits.values()):
        return None, None, ()
    names, groups = _encoded(group, splits, group)
    pairs = np.unique(np.column_stack([labels, groups]), axis=0)
    if not np.array_equal(pairs[:, 0], np.arange(classes)):
        note = f"column {group} is not used: some classes have several groups or none"
        return None, None, (note,)
    return tuple(pairs[:, 1].tolist()), names, ()
