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
NEAR = 0.8
"""Correlation of small grey pictures above which images that also have alike features are copies.
On Grocery, whose test photographs were taken on other days, no pair exceeds 0.67, and one
training photograph in twenty has another of its burst above 0.81."""
MOST_CONFIRMED = 500
"""Images that are decoded to confirm what features propose."""
BLOCK = 1 << 24
"""Cosines that are computed at once."""


class Alike(NamedTuple):
    """Which images of some set are nearly the same."""

    groups: Groups
    uniform: tuple[int, ...] = ()
    """Classes in which more than half of the images are one group at the first threshold, so that
    it had to be cut: their hold-out is as easy as their training images are alike."""


FindAlike = Callable[[Pictures, Int64[np.ndarray, " n"]], Alike]
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
    unit = _unit(features)
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
    whole: Float32[np.ndarray, "n features"],
    crops: Float32[np.ndarray, "n features"],
    share: float = 0.75,
) -> float:
    """The cosine that three in four images (or another share) have with a crop of themselves.

    Photographs that are as alike as two crops of one photograph show one thing at one place.
    It adapts itself to the trunk: cosines of another trunk are larger or smaller.
    """
    return float(np.quantile((_unit(whole) * _unit(crops)).sum(1), 1 - share))


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


class Copies(NamedTuple):
    """Images of one set and, for each, the image of another set that it is a copy of."""

    places: Int64[np.ndarray, " n"]
    of: Int64[np.ndarray, " n"]
    similarity: Float32[np.ndarray, " n"]
    """1 for equal files, else the cosine of features."""


def equal_files(contents: Sequence[bytes], others: Sequence[bytes]) -> Copies:
    """The images whose file is also among the others, with the first such file.

    >>> equal_files([b"a", b"b", b"c"], [b"c", b"a", b"a"]).of.tolist()
    [1, 0]
    """
    first: dict[bytes, int] = {}
    for place, content in enumerate(others):
        first.setdefault(content, place)
    found = np.array([i for i, content in enumerate(contents) if content in first], np.int64)
    of = np.array([first[contents[i]] for i in found], np.int64)
    return Copies(found, of, np.ones(len(found), np.float32))


def nearest(
    features: Float32[np.ndarray, "n features"], others: Float32[np.ndarray, "m features"]
) -> Copies:
    """For each image the one of the others with the largest cosine; a block of rows at a time."""
    unit, wanted = _unit(others), _unit(features)
    of, similarity = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.float32)
    step = max(1, BLOCK // max(len(unit), 1))
    for first in range(0, len(wanted), step):
        rows = slice(first, first + step)
        cosines = wanted[rows] @ unit.T
        of[rows] = cosines.argmax(1)
        similarity[rows] = cosines.max(1)
    return Copies(np.arange(len(wanted)), of, similarity)


def near_copies(found: Copies, pictures: Pictures, others: Pictures, threshold: float) -> Copies:
    """Those nearest images that are copies: resized, saved again, mirrored, or taken just after.

    Features propose and pixels confirm. Two crates of oranges have a cosine of 0.96, more than many
    photographs have with a smaller copy of themselves, but their small grey pictures do not
    correlate.

    Args:
        found: for each image its nearest other one, by features.
        pictures, others: the images themselves.
        threshold: the least cosine. Of more than `MOST_CONFIRMED` such images, the nearest are
            looked at.
    """
    order = np.argsort(-found.similarity, kind="stable")
    chosen = np.sort(order[found.similarity[order] >= threshold][:MOST_CONFIRMED])
    one, other = (
        _unit(thumbnails(some, places.tolist()))
        for some, places in ((pictures, found.places[chosen]), (others, found.of[chosen]))
    )
    mirrored = other.reshape(-1, THUMBNAIL, THUMBNAIL)[:, :, ::-1].reshape(other.shape)
    alike = np.maximum((one * other).sum(1), (one * mirrored).sum(1)) >= NEAR
    return Copies(*(column[chosen[alike]] for column in found))


def _unit(rows: Float32[np.ndarray, "n width"]) -> Float32[np.ndarray, "n width"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
