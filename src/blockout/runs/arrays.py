"""What a run keeps as arrays: the learned P, predictions, histograms of P over time.

They are checked when they are read: later code needs no guards.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from blockout.data import DataError
from blockout.data.images import decode
from blockout.runs import digests
from blockout.runs.documents import Count, Distribution, parsed
from blockout.runs.errors import RunError
from blockout.runs.folder import read_tensors
from blockout.runs.logs import read_lines


@dataclass(frozen=True)
class Distributions:
    """How the P of one set of nodes was distributed at each logged step."""

    steps: Int64[np.ndarray, " times"]
    histograms: Int64[np.ndarray, "times bins"]
    quartiles: Float[np.ndarray, "times 3"]


class Predictions(NamedTuple):
    """What the network said of every test image."""

    labels: Int64[np.ndarray, " images"]
    """The true class."""
    classes: Int64[np.ndarray, "images 5"]
    """The most probable classes, best first; fewer columns for few classes."""
    probabilities: Float[np.ndarray, "images 5"]


def read_memberships(path: Path) -> dict[str, Float[np.ndarray, "nodes clusters"]]:
    """P of every set of nodes, in the order of their names; empty without the file."""
    if not path.exists():
        return {}
    found = {name: _floats(p, path) for name, p in sorted(read_tensors(path).items())}
    for name, p in found.items():
        _require(p.ndim == 2 and p.size > 0, path, f"{name} has no nodes and clusters")
        _require(bool(((p >= 0) & (p <= 1)).all()), path, f"{name} holds no probabilities")
    return found


def read_predictions(path: Path, classes: int | None) -> Predictions | None:
    """None without the file.

    Args:
        path: of the file.
        classes: how many there are, where it is known.
    """
    if not path.exists():
        return None
    said = read_tensors(path)
    _require(set(said) == set(Predictions._fields), path, f"it holds {', '.join(sorted(said))}")
    labels, predicted = (_integers(said[name], path) for name in ("labels", "classes"))
    found = Predictions(labels, predicted, _floats(said["probabilities"], path))
    shape = found.probabilities.shape
    fits = labels.ndim == 1 and len(shape) == 2 and predicted.shape == shape
    _require(fits and shape[0] == len(labels) > 0 and shape[1] > 0, path, "its shapes do not fit")
    known = np.concatenate([labels, predicted.ravel()])
    most = np.inf if classes is None else classes
    _require(bool(((known >= 0) & (known < most)).all()), path, "it names a class that is not")
    likely = (found.probabilities >= 0) & (found.probabilities <= 1)
    _require(bool(likely.all()), path, "it holds no probabilities")
    return found


def read_thumbnails(
    path: Path, classes: int
) -> UInt8[np.ndarray, "classes side images_side 3"] | None:
    """A strip of test images for each class, square images side by side; None without the file."""
    if not path.exists():
        return None
    digests.require_undamaged(path)
    try:
        sheet = np.asarray(decode(path))
    except DataError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    height, width, _ = sheet.shape
    side = height // max(classes, 1)
    fits = classes * side == height and side > 0 and width % side == 0
    _require(fits, path, f"it has no row of images for each of {classes} classes")
    return sheet.reshape(classes, side, width, 3)


def read_distributions(path: Path) -> dict[str, Distributions]:
    """By the names of the sets, in order; empty without the file."""
    lines = read_lines(path)
    kind = dict[str, Distribution | Count]
    entries = [parsed(line, path, kind, f" at line {i}") for i, line in enumerate(lines, 1)]
    if not entries:
        return {}
    names = sorted(set(entries[0]) - {"step"})
    for number, entry in enumerate(entries, 1):
        fits = isinstance(entry.get("step"), int) and sorted(set(entry) - {"step"}) == names
        whole = all(isinstance(entry[name], Distribution) for name in names if fits)
        _require(fits and whole, path, "it does not say how P is distributed", number)
    return {name: _over_time(name, entries) for name in names}


def _over_time(name: str, entries: list[dict]) -> Distributions:
    return Distributions(
        np.array([entry["step"] for entry in entries], np.int64),
        np.array([entry[name].histogram for entry in entries], np.int64),
        np.array([entry[name].quartiles for entry in entries], np.float64),
    )


def _floats(tensor: Tensor, path: Path) -> np.ndarray:
    _require(tensor.is_floating_point(), path, f"it holds {tensor.dtype}, not floating point")
    return (tensor if tensor.itemsize >= 4 else tensor.float()).numpy()


def _integers(tensor: Tensor, path: Path) -> np.ndarray:
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    _require(whole, path, f"it holds {tensor.dtype}, not whole numbers")
    return tensor.long().numpy()


def _require(holds: bool, path: Path, problem: str, line: int | None = None) -> None:
    if not holds:
        place = "" if line is None else f" at line {line}"
        raise RunError(f"{path} is damaged{place}: {problem}")
