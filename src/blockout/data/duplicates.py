"""Images that are nearly the same: copies, and photographs taken one after another.

A hold-out or a test set that shares them with the training set is too easy. So they are found
first, and each group of them goes to one side (`division`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from blockout.data.images import centre_square
from blockout.data.splits import Pictures

Groups = Int64[np.ndarray, " n"]
"""The number of each image's group."""

COPIES = 0.99
"""Correlation of small grey pictures above which images are copies. Saving an image again with
another quality or size costs less than 0.005; two photographs of simple things, such as digits,
reach 0.97."""
THUMBNAIL = 32
"""Pixels per side of these small grey pictures."""
WHOLE = 0.5
"""No group of alike images covers more of its class than this."""
FINER = 10
"""In so many steps the threshold rises to 1 where a group would."""
LARGEST_CLASS = 20_000
"""In larger classes only exact copies are looked for: all pairs would take minutes."""


class Alike(NamedTuple):
    """Which images of some set are nearly the same."""

    groups: Groups
    uniform: tuple[int, ...] = ()
    """Classes in which more than half of the images are one group at the first threshold, so that
    it had to be cut: their hold-out is as easy as their training images are alike."""


Grouping = Callable[[Pictures, Int64[np.ndarray, " n"]], Alike]
"""Groups pictures with these labels."""


def duplicate_groups(
    features: Float32[np.ndarray, "n features"],
    labels: Int64[np.ndarray, " n"] | None = None,
    *,
    threshold: float,
) -> Alike:
    """Groups of images whose features have a cosine above the threshold, directly or by way of
    others (single linkage).

    Args:
        features: one row per image, for example of a frozen trunk.
        labels: with labels, images of different classes are never in one group, and no group covers
            more than half of its class: there, the threshold rises until it does not.
        threshold: the least cosine of near-duplicates; `as_alike_as_crops` finds one.

    >>> rows = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [-1, 0]], np.float32)
    >>> duplicate_groups(rows, threshold=0.9).groups.tolist()
    [0, 0, 1, 1, 2]
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    if labels is None:
        return Alike(_linked(unit, threshold))
    groups, uniform, count = np.empty(len(unit), np.int64), [], 0
    for label in np.unique(labels).tolist():
        members = np.flatnonzero(labels == label)
        found, cut = _within(unit[members], threshold)
        groups[members] = found + count
        count += int(found.max()) + 1
        uniform.extend([label] if cut else [])
    return Alike(groups, tuple(uniform))


def _within(unit: Float32[np.ndarray, "n features"], threshold: float) -> tuple[Groups, bool]:
    """The groups of one class, and whether the threshold had to rise for it."""
    if len(unit) > LARGEST_CLASS:
        return np.arange(len(unit)), False
    most = max(WHOLE * len(unit), 1)
    for step in range(FINER):
        found = _linked(unit, threshold + (1 - threshold) * step / FINER)
        if np.bincount(found).max() <= most:
            return found, step > 0
    return np.arange(len(unit)), len(unit) > 2


def _linked(unit: Float32[np.ndarray, "n features"], threshold: float) -> Groups:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    alike = csr_matrix(unit @ unit.T > threshold)
    return connected_components(alike, directed=False)[1].astype(np.int64)


def joined(one: Groups, other: Groups) -> Groups:
    """Groups in which images are together that are together in either.

    >>> joined(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2])).tolist()
    [0, 0, 0, 1]
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n, width = len(one), int(one.max(initial=0)) + 1
    size = width + int(other.max(initial=0)) + 1
    links = coo_matrix((np.ones(n, bool), (one, width + other)), (size, size))
    found = connected_components(links, directed=False)[1][one]
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def as_alike_as_crops(
    whole: Float32[np.ndarray, "n features"], crops: Float32[np.ndarray, "n features"]
) -> float:
    """The cosine that three in four images have with another crop of themselves.

    Photographs that are as alike as two crops of one photograph show one thing at one place.
    It adapts itself to the trunk: cosines of another trunk are larger or smaller.
    """
    norms = np.linalg.norm(whole, axis=1) * np.linalg.norm(crops, axis=1)
    return float(np.quantile((whole * crops).sum(1) / np.maximum(norms, 1e-12), 0.25))


def copies(pictures: Pictures, labels: Int64[np.ndarray, " n"]) -> Alike:
    """Groups by small grey pictures: finds copies, also resized or saved again."""
    return duplicate_groups(thumbnails(pictures, range(len(labels))), labels, threshold=COPIES)


def thumbnails(pictures: Pictures, places: Sequence[int]) -> Float32[np.ndarray, "n pixels"]:
    """Small grey pictures without their mean: the cosine of two of them is their correlation."""
    grey = np.empty((len(places), THUMBNAIL**2), np.float32)
    for row, place in zip(grey, places, strict=True):
        square = centre_square(pictures.image(place, THUMBNAIL), THUMBNAIL)
        row[:] = square.mean(2, dtype=np.float32).ravel()
    return grey - grey.mean(1, keepdims=True)
