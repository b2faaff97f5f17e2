"""What the page says of a class that is searched for."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from blockout.analysis import similarities
from blockout.report.view import RunView

NEAREST = 8
CONFUSED = 3
MEMBER = 0.5
"""A class belongs to a branch where its P is at least this."""


def class_facts(views: Sequence[RunView]) -> dict[str, Any] | None:
    """The classes of the first run that knows its own, and what runs on the same classes say of
    each; None while nothing is known of them."""
    known = [view for view in views if view.classes]
    if not known:
        return None
    names = known[0].classes
    return {
        "names": names,
        "list": _list_of(names),
        "runs": [_facts(view) for view in known if view.classes == names],
    }


def shows_classes(view: RunView) -> dict[str, Any]:
    """``meta`` of a trace that shows the classes of a run: of which list and of which run they are.
    What is searched for is marked in runs with the same classes, with each one's own neighbours."""
    return {"classes": _list_of(view.classes), "run": view.name}


def _list_of(names: Sequence[str]) -> int:
    """A number that lists of classes share only if they are the same."""
    return zlib.crc32("\0".join(names).encode())


def _facts(view: RunView) -> dict[str, Any]:
    p, accuracy = view.class_memberships, view.class_accuracy
    return {
        "name": view.name,
        "clusters": 0 if p is None else p.shape[1],
        "accuracy": None if accuracy is None else accuracy.round(1).tolist(),
        "branches": None if p is None else [np.flatnonzero(row >= MEMBER).tolist() for row in p],
        "near": None if p is None else _nearest(p),
        "taken_for": None if view.confusion is None else _taken_for(view.confusion),
    }


def _nearest(p: np.ndarray) -> list[dict[str, Any]]:
    """For each class those most like it by P, if they are alike at all, and how many more are as
    near as the last of them."""
    alike = similarities(p.astype(np.float64)).round(4)
    np.fill_diagonal(alike, -np.inf)
    count = min(NEAREST, len(p) - 1)
    order = np.argsort(-alike, axis=1, kind="stable")[:, :count]
    found = []
    for row, best in zip(alike, order, strict=True):
        best = best[row[best] > 0]
        as_near = int((row >= row[best[-1]]).sum()) - len(best) if len(best) else 0
        found.append({"classes": best.tolist(), "alike": row[best].tolist(), "more": as_near})
    return found


def _taken_for(confusion: np.ndarray) -> list[list[list[float]]]:
    """For each class [another class, per cent of its images] that it is most often taken for."""
    mistakes = confusion - np.diag(confusion.diagonal())
    shares = 100 * mistakes / np.maximum(confusion.sum(1, keepdims=True), 1)
    order = np.argsort(-mistakes, axis=1, kind="stable")[:, :CONFUSED]
    return [
        [[int(c), round(float(row[c]), 1)] for c in best if row[c] > 0]
        for row, best in zip(shares, order, strict=True)
    ]
