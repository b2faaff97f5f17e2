"""What the page says about a class that is searched for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockout.runs import Run
from blockout.show.masks import THRESHOLD
from blockout.show.page.drawing import list_of_classes
from blockout.structure.groups import similarities

NEAREST = 8
CONFUSED = 3


def class_facts(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The classes of the first run that knows its own, and what runs on the same classes say.

    None while no run knows its classes.
    """
    known = [run for run in runs if run.classes]
    if not known:
        return None
    names = known[0].classes
    return {
        "names": names,
        "list": list_of_classes(names),
        "runs": [_facts(run) for run in known if run.classes == names],
    }


def _facts(run: Run) -> dict[str, Any]:
    p, accuracy = run.class_memberships, run.class_accuracy
    return {
        "name": run.name,
        "clusters": 0 if p is None else p.shape[1],
        "accuracy": None if accuracy is None else accuracy.round(1).tolist(),
        "branches": None if p is None else [np.flatnonzero(row >= THRESHOLD).tolist() for row in p],
        "near": None if p is None else _nearest(p),
        "taken_for": None if run.confusion is None else _taken_for(run.confusion),
    }


def _nearest(p: np.ndarray) -> list[dict[str, Any]]:
    """Per class, those most like it by P if any are, and how many more tie with the last."""
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
    """Per class, [another class, per cent of its images] that it is most often taken for."""
    mistakes = confusion - np.diag(confusion.diagonal())
    shares = 100 * mistakes / np.maximum(confusion.sum(1, keepdims=True), 1)
    order = np.argsort(-mistakes, axis=1, kind="stable")[:, :CONFUSED]
    return [
        [[int(c), round(float(row[c]), 1)] for c in best if row[c] > 0]
        for row, best in zip(shares, order, strict=True)
    ]
