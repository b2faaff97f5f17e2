"""What is taken for what, in the order of the learned groups."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from blockout.report.grouping import Grouping, groups_to_show
from blockout.report.panels import AMOUNTS, LINE
from blockout.report.search import shows_classes
from blockout.report.section import Figure, Section, plain
from blockout.report.selection import in_detail, with_predictions
from blockout.report.view import RunView

MOST_CELLS = 300
NAMED = 30
"""Classes up to which every one has its name on the axes."""
SIZE = 760
ROOM = 0.02
"""Share of an axis that the name of a group takes."""
APART = "\u200b"
"""Behind a name: unseen, but it keeps names like "7" from being read as numbers."""

LEAD = (
    "Each row is a class, each column what its test images were taken for; the diagonal is what is "
    "right. Classes stand in groups, in the order of the learned hierarchy where there is one: "
    "colour inside a square is confusion within a group, colour outside is between groups."
)


def section(runs: Sequence[RunView]) -> Section | None:
    """A matrix for each run that was tested."""
    shown, left_out = in_detail([run for run in with_predictions(runs) if len(run.classes) > 1])
    if not shown:
        return None
    figures = tuple(_figure(run, i, len(shown) > 1) for i, run in enumerate(shown))
    return Section("confusion", "What is taken for what", LEAD + left_out, "", figures)


def row_shares(
    counts: Int64[np.ndarray, "classes classes"], order: Sequence[int], most: int
) -> Float[np.ndarray, "cells cells"]:
    """Per cent of the images of each row, in this order; for many classes several share a cell.

    >>> row_shares(np.array([[8, 2], [1, 3]]), [1, 0], 2).tolist()
    [[75.0, 25.0], [20.0, 80.0]]
    """
    starts = cell_starts(len(order), most)
    ordered = counts[np.ix_(order, order)]
    joined = np.add.reduceat(np.add.reduceat(ordered, starts, axis=0), starts, axis=1)
    return 100 * joined / np.maximum(joined.sum(1, keepdims=True), 1)


def cell_starts(count: int, most: int) -> Int64[np.ndarray, "cells"]:
    """Where each of at most ``most`` cells of about equal size begins.

    >>> cell_starts(5, 2).tolist()
    [0, 2]
    """
    cells = min(count, most)
    return np.arange(cells) * count // cells


def _figure(run: RunView, number: int, named: bool) -> Figure:
    assert run.confusion is not None
    groups = groups_to_show(run)
    shares = row_shares(run.confusion, groups.order, MOST_CELLS)
    labels = _labels([run.classes[c] for c in groups.order], len(shares))
    ticks = _ticks(groups, len(shares))
    layout = {
        "height": SIZE, "hovermode": "closest",
        "xaxis": {"title": {"text": "taken for"}, "showgrid": False, "constrain": "domain",
                  "automargin": True, **ticks},
        "yaxis": {"title": {"text": "true class", "standoff": 8}, "showgrid": False,
                  "autorange": "reversed",
                  "scaleanchor": "x", "constrain": "domain", "automargin": True, **ticks},
        "shapes": _squares(groups, len(shares)),
        "margin": {"t": 70},
    }  # fmt: skip
    data = [_cells(shares, labels), _diagonal(run, groups, labels)]
    note = _note(groups, shares, len(run.classes))
    return Figure(f"confusion-{number}", data, layout, note, run.name if named else "")


def _note(groups: Grouping, shares: np.ndarray, classes: int) -> str:
    kind = "groups that were learned" if groups.learned else "groups that the data knows"
    ordered = f"Squares: {kind}." if len(groups.names) > 1 else ""
    joined = (
        f" A cell stands for several of the {classes} classes." if len(shares) < classes else ""
    )
    return f"Per cent of the images of a row; small shares are emphasised. {ordered}{joined}"


def _labels(names: Sequence[str], cells: int) -> list[str]:
    """A name for each cell, no two alike; a cell of several classes has its first and last."""
    starts = cell_starts(len(names), cells).tolist()
    ends = [*starts[1:], len(names)]
    shown = [plain(name, 40) for name in names]
    texts = [
        shown[a] if b == a + 1 else f"{shown[a]} … {shown[b - 1]}"
        for a, b in zip(starts, ends, strict=True)
    ]
    seen: dict[str, int] = {}
    found = []
    for text in texts:
        seen[text] = seen.get(text, 0) + 1
        found.append(text + APART * seen[text])
    return found


def _ticks(groups: Grouping, cells: int) -> dict[str, Any]:
    """Names of the classes where there is room, else of the groups, in their middle."""
    if len(groups.order) <= NAMED:
        return {"type": "category", "tickmode": "linear", "dtick": 1, "tickfont": {"size": 10}}
    edges = np.array(groups.starts) * cells / len(groups.order)
    middles = ((edges[:-1] + edges[1:]) / 2 - 0.5).tolist()
    kept: list[int] = []
    for group in np.argsort(
        -np.diff(edges), kind="stable"
    ).tolist():  # the largest have their names
        if all(abs(middles[group] - middles[other]) >= ROOM * cells for other in kept):
            kept.append(group)
    return {
        "type": "category", "tickmode": "array", "tickvals": [middles[group] for group in kept],
        "ticktext": [plain(groups.names[group], 24) for group in kept], "tickfont": {"size": 10},
    }  # fmt: skip


def _squares(groups: Grouping, cells: int) -> list[dict[str, Any]]:
    if len(groups.names) < 2:
        return []
    edges = (np.array(groups.starts) * cells / len(groups.order) - 0.5).tolist()
    return [
        {"type": "rect", "x0": a, "x1": b, "y0": a, "y1": b, "line": {"color": LINE, "width": 1.5}}
        for a, b in itertools.pairwise(edges)
    ]


def _cells(shares: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "heatmap", "x": labels, "y": labels, "z": shares.round().astype(np.uint8),
        "zmin": 0, "zmax": 100, "colorscale": AMOUNTS,
        "colorbar": {"ticksuffix": " %", "thickness": 10, "len": 0.5,
                     "orientation": "h", "y": 1.0, "yanchor": "bottom"},
        "hovertemplate": "%{y}<br>taken for %{x}: %{z} %<extra></extra>",
    }  # fmt: skip


def _diagonal(run: RunView, groups: Grouping, labels: Sequence[str]) -> dict[str, Any]:
    """A point a class where it is right, so that a class that is searched for can be marked."""
    cell = np.searchsorted(cell_starts(len(groups.order), len(labels)), range(len(groups.order)),
                           side="right") - 1  # fmt: skip
    right = run.class_accuracy
    assert right is not None
    return {
        "type": "scatter", "mode": "markers", "x": [labels[i] for i in cell],
        "y": [labels[i] for i in cell], "marker": {"size": 6, "opacity": 0},
        "text": [f"<b>{plain(run.classes[c])}</b>: {right[c]:.0f} % right" for c in groups.order],
        "hovertemplate": "%{text}<extra></extra>", "showlegend": False,
        "meta": shows_classes(run), "customdata": [[c] for c in groups.order],
    }  # fmt: skip
