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
from blockout.show.page.drawing import AMOUNTS, apart, class_points, plain
from blockout.show.page.section import Figure, Section, in_detail
from blockout.show.selection import with_predictions

MOST_CELLS = 300
NAMED = 30
"""Up to so many classes, each has its name on the axes."""
SIZE = 760
ROOM = 0.02
"""Share of an axis that the name of a group takes."""

LEAD = """Each row is a class, each column what its test images were taken for; the diagonal is what
is right. Classes stand in groups, in the order of the learned hierarchy if there is one: colour
inside a square is confusion within a group, colour outside is between groups."""


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
    chart = go.Figure()
    chart.add_heatmap(
        x=labels,
        y=labels,
        z=shares.round().astype(np.uint8),
        zmin=0,
        zmax=100,
        colorscale=AMOUNTS,
        colorbar={**bar, "ticksuffix": " %"},
        hovertemplate="%{y}<br>taken for %{x}: %{z} %<extra></extra>",
    )
    at = [labels[i] for i in np.searchsorted(starts, range(len(groups.order)), side="right") - 1]
    right = [
        f"<b>{plain(run.classes[c])}</b>: {run.class_accuracy[c]:.0f} % right" for c in groups.order
    ]
    unseen = {"marker": {"size": 6, "opacity": 0}, "hovertemplate": "%{text}<extra></extra>"}
    chart.add_trace(class_points(run, groups.order, x=at, y=at, text=right, **unseen))
    usual = {"showgrid": False, "constrain": "domain", "automargin": True}
    chart.update_xaxes(title_text="taken for", **usual, **_ticks(groups, len(shares)))
    chart.update_yaxes(title={"text": "true class", "standoff": 8}, scaleanchor="x", **usual)
    chart.update_yaxes(autorange="reversed", **_ticks(groups, len(shares)))
    chart.update_layout(height=SIZE, margin_t=70)
    if len(groups.names) > 1:
        edges = (np.array(groups.starts) * len(shares) / len(groups.order) - 0.5).tolist()
        square = {"type": "rect", "line": {"color": LINE, "width": 1.5}}
        ends = itertools.pairwise(edges)
        chart.layout.shapes = [{**square, "x0": a, "x1": b, "y0": a, "y1": b} for a, b in ends]
    note = _note(groups, len(shares))
    return Figure(f"confusion-{number}", chart, note, run.name if named else "")


def _note(groups: Grouping, cells: int) -> str:
    kind = "groups that were learned" if groups.learned else "groups that the data knows"
    squares = f" Squares: {kind}." if len(groups.names) > 1 else ""
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


def _ticks(groups: Grouping, cells: int) -> dict[str, Any]:
    """Names of the classes if there is room, else of the groups, in their middle."""
    usual = {"type": "category", "tickfont": {"size": 10}}
    if len(groups.order) <= NAMED:
        return {**usual, "tickmode": "linear", "dtick": 1}
    edges = np.array(groups.starts) * cells / len(groups.order)
    middles = ((edges[:-1] + edges[1:]) / 2 - 0.5).tolist()
    kept: list[int] = []
    for group in np.argsort(-np.diff(edges), kind="stable").tolist():  # the largest get their names
        if all(abs(middles[group] - middles[other]) >= ROOM * cells for other in kept):
            kept.append(group)
    texts = [plain(groups.names[group], 24) for group in kept]
    values = [middles[group] for group in kept]
    return {**usual, "tickmode": "array", "tickvals": values, "ticktext": texts}
