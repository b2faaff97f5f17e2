"""What is taken for what, in the order of the groups of classes."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from blockout.runs import Run
from blockout.show.colours import LINE
from blockout.show.groups import Grouping, groups_to_show
from blockout.show.mistakes import cell_starts, row_shares
from blockout.show.page.drawing import AMOUNTS, apart, class_points, plain, to_class
from blockout.show.page.section import Figure, Section, in_detail
from blockout.show.selection import with_predictions

MOST_CELLS = 300
NAMED = 110
"""Up to so many classes, each has its name on the axes."""
SIZE, CELLS_WIDE = 560, 870
"""Pixels of the matrix: at least so many, and about so many where every class has its name."""
SMALLEST, LARGEST = 8.5, 60
"""Pixels of a class with a name."""
RIGHT = [[0.0, "#b9c4bf"], [1.0, "#009e73"]]
"""Colours of the diagonal: mistakes are to stand out from what is right."""
LONGEST = 26
"""Letters of a name on an axis."""
ROOM = 0.02
"""Share of an axis that the name of a group takes."""

LEAD = """Each row is a class, each column what its test images were taken for. Green is right; blue
to red are mistakes, the redder the more frequent. Click a name to mark its class everywhere."""


def section(runs: Sequence[Run]) -> Section | None:
    """A matrix for each run that was tested."""
    shown, left_out = in_detail([run for run in with_predictions(runs) if len(run.classes) > 1])
    if not shown:
        return None
    figures = tuple(_figure(run, i, len(shown) > 1) for i, run in enumerate(shown))
    return Section("confusion", "What is taken for what", LEAD + left_out, figures=figures)


def _figure(run: Run, number: int, named: bool) -> Figure:
    assert run.confusion is not None and run.class_accuracy is not None
    groups = groups_to_show(run)
    shares = row_shares(run.confusion, groups.order, MOST_CELLS)
    starts = cell_starts(len(groups.order), len(shares))
    labels = _labels([run.classes[c] for c in groups.order], starts)
    bar = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "thickness": 10, "len": 0.5}
    percent = shares.round().astype(np.uint8)
    chart = go.Figure()
    chart.add_heatmap(
        x=labels,
        y=labels,
        z=percent,
        zmin=0,
        zmax=100,
        colorscale=AMOUNTS,
        colorbar={**bar, "ticksuffix": " %"},
        hovertemplate="%{y}<br>taken for %{x}: %{z} %<extra></extra>",
    )
    chart.add_trace(_diagonal(labels, percent))
    at = [labels[i] for i in np.searchsorted(starts, range(len(groups.order)), side="right") - 1]
    right = [
        f"<b>{plain(run.classes[c])}</b>: {run.class_accuracy[c]:.0f} % right" for c in groups.order
    ]
    unseen = {"marker": {"size": 6, "opacity": 0}, "hovertemplate": "%{text}<extra></extra>"}
    chart.add_trace(class_points(run, groups.order, x=at, y=at, text=right, **unseen))
    side, room = _side(len(groups.order)), _room(run)
    ticks = {**_ticks(run, groups, len(shares)), "showgrid": False, "constrain": "domain"}
    chart.update_xaxes(**ticks, title={"text": "taken for", "standoff": 8})
    chart.update_xaxes(tickangle=90 if room else None)
    chart.update_yaxes(**ticks, title={"text": "true class", "standoff": 8})
    ends = [-0.5, len(shares) - 0.5]
    chart.update_xaxes(range=ends)
    chart.update_yaxes(scaleanchor="x", range=ends[::-1])
    margin = {"t": 60, "r": 20, "l": room + 36, "b": room + 36}
    chart.update_layout(height=side + margin["t"] + margin["b"], margin=margin)
    chart.update_layout(meta={"least_width": (side if room else SIZE) + margin["l"] + 20})
    if len(groups.names) > 1:
        edges = (np.array(groups.starts) * len(shares) / len(groups.order) - 0.5).tolist()
        square = {"type": "rect", "line": {"color": LINE, "width": 1.5}}
        ends = itertools.pairwise(edges)
        chart.layout.shapes = [{**square, "x0": a, "x1": b, "y0": a, "y1": b} for a, b in ends]
    note = _note(groups, len(shares))
    return Figure(f"confusion-{number}", chart, note, run.name if named else "")


def _diagonal(labels: list[str], percent: np.ndarray) -> go.Heatmap:
    """What is right, in colours of its own over those of mistakes."""
    z = np.diag(percent.diagonal() + np.uint8(100))
    scale = [[0.0, "rgba(0,0,0,0)"], [0.49, "rgba(0,0,0,0)"]]
    scale += [[0.5 + at / 2, colour] for at, colour in RIGHT]
    look = {"colorscale": scale, "showscale": False, "hoverinfo": "skip"}
    return go.Heatmap(x=labels, y=labels, z=z, zmin=0, zmax=200, **look)


def _side(classes: int) -> int:
    """Pixels of the matrix: as many as the names of its classes need."""
    if classes > NAMED:
        return SIZE + 140
    return round(classes * min(max(CELLS_WIDE / classes, SMALLEST), LARGEST))


def _room(run: Run) -> int:
    """Pixels that the names of classes take on an axis; 0 where groups have names instead."""
    longest = max(min(len(name), LONGEST) for name in run.classes)
    return round(5.6 * longest + 8) if len(run.classes) <= NAMED else 0


def _note(groups: Grouping, cells: int) -> str:
    kind = "groups that were learned" if groups.learned else "groups that the data knows"
    squares = (
        f" Squares: {kind}; mistakes inside them stay within a group."
        if len(groups.names) > 1
        else ""
    )
    classes = len(groups.order)
    joined = f" A cell stands for several of the {classes} classes." if cells < classes else ""
    return f"Per cent of the images of a row; small shares are emphasised.{squares}{joined}"


def _labels(names: Sequence[str], starts: np.ndarray) -> list[str]:
    """A name per cell; a cell of several classes has its first and its last."""
    ends = [*starts[1:].tolist(), len(names)]
    shown = [plain(name, 40) for name in names]
    return apart(
        [
            shown[a] if b == a + 1 else f"{shown[a]} … {shown[b - 1]}"
            for a, b in zip(starts.tolist(), ends, strict=True)
        ]
    )


def _ticks(run: Run, groups: Grouping, cells: int) -> dict[str, Any]:
    """Names of the classes if there is room, else of the groups, in their middle."""
    usual = {"type": "category", "tickfont": {"size": 10}}
    if (count := len(groups.order)) <= NAMED:
        names = [to_class(run, c, LONGEST) for c in groups.order]
        usual["tickfont"] = {"size": 10 if count <= 85 else 8.5}
        return {**usual, "tickmode": "array", "tickvals": list(range(count)), "ticktext": names}
    edges = np.array(groups.starts) * cells / len(groups.order)
    middles = ((edges[:-1] + edges[1:]) / 2 - 0.5).tolist()
    kept: list[int] = []
    for group in np.argsort(-np.diff(edges), kind="stable").tolist():  # the largest get their names
        if all(abs(middles[group] - middles[other]) >= ROOM * cells for other in kept):
            kept.append(group)
    texts = [plain(groups.names[group], 24) for group in kept]
    values = [middles[group] for group in kept]
    return {**usual, "tickmode": "array", "tickvals": values, "ticktext": texts}
