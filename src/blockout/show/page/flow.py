"""The learned architecture as a flow from the first nodes to the classes (Fig. 1)."""

import html
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from blockout.runs import Run
from blockout.show.boxes import Band, Box, bands_of, boxes_of
from blockout.show.colours import LINE, cluster_colour
from blockout.show.page.drawing import class_points, plain
from blockout.show.page.section import Figure, Section, in_detail, some_names
from blockout.show.selection import with_branches

HEIGHT = 620
BOX = 0.018
"""Width of a box, as a share of the figure."""
LETTERS, LINE_HEIGHT, LEAST_HEIGHT = 24, 14, 11
"""Letters that fit right of the last boxes; pixels of a line of them, and of a box with words."""
CURVE = np.linspace(0, 1, 13)

LEAD = """The network from left to right. Every node keeps the branches to which it belongs with P
of at least 0.5. A box holds the nodes that belong to exactly the same branches; its height is their
number, its stripes have the colours of the branches. A band connects two boxes that share a branch:
without a band there is no connection. A linear classifier that stands beside these layers is not
shown."""
NOTE = """Bands have the colour of the first branch that their boxes share. Grey bands come from or
lead to rare combinations of branches, merged into “others”: much grey means that the branches are
not clearly separated."""


def section(runs: Sequence[Run]) -> Section | None:
    """A flow for each run with Blockout."""
    shown, left_out = in_detail(with_branches(runs))
    if not shown:
        return None
    figures = tuple(_figure(run, i, len(shown) > 1) for i, run in enumerate(shown))
    return Section("flow", "The learned architecture", LEAD + left_out, figures=figures)


def _figure(run: Run, number: int, named: bool) -> Figure:
    assert run.structure is not None
    columns = {name: boxes_of(nodes) for name, nodes in run.structure.sets.items()}
    places = dict(zip(columns, np.linspace(0, 1, len(columns)).tolist(), strict=True))
    data, shapes, words = [], [], []
    for layer in run.structure.layers:
        left, right = places[layer.inputs] + BOX / 2, places[layer.outputs] - BOX / 2
        bands = bands_of(columns[layer.inputs], columns[layer.outputs])
        data += [_ribbon(band, left, right) for band in bands]
    for name, boxes in columns.items():
        x, classes = places[name], run.classes if name == run.structure.class_set.name else ()
        shapes += [stripe for box in boxes for stripe in _stripes(box, x)]
        words += [_heading(name, run.structure.sets[name].nodes, x, bool(classes))]
        words += [_label(box, x, classes) for box in boxes if box.height * HEIGHT >= LEAST_HEIGHT]
        data += [_hovers(boxes, x, bool(classes))]
        data += [_classes(run, boxes, x + BOX)] if classes else []
    chart = go.Figure(data)
    chart.update_xaxes(visible=False, range=[-0.06, 1.3], fixedrange=True)
    chart.update_yaxes(visible=False, range=[-0.02, 1.12], fixedrange=True)
    chart.update_layout(height=HEIGHT, margin={"l": 10, "r": 10, "t": 20, "b": 10})
    chart.update_layout(
        showlegend=False, meta={"least_width": 760}, shapes=shapes, annotations=words
    )
    return Figure(f"flow-{number}", chart, NOTE, run.name if named else "")


def _ribbon(band: Band, left: float, right: float) -> go.Scatter:
    """Two smooth curves and the area between them."""
    ease = CURVE**2 * (3 - 2 * CURVE)
    x = left + (right - left) * CURVE
    low, high = (a + (b - a) * ease for a, b in zip(band.leaves, band.arrives, strict=True))
    of = "all" if band.share > 0.9995 else f"{band.share:.0%}"
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]).astype(np.float32),
        y=np.concatenate([low, high[::-1]]).astype(np.float32),
        mode="lines",
        line_width=0,
        fill="toself",
        opacity=0.35,
        fillcolor=cluster_colour(band.clusters[0]) if band.clusters else LINE,
        text=f"{_what(band.start)} → {_what(band.end)}: {of} of the connections",
        hoveron="fills",
        hoverinfo="text",
    )


def _what(box: Box) -> str:
    return f"branch {box.label}" if box.code else box.label


def _stripes(box: Box, x: float) -> list[dict[str, Any]]:
    """A stripe per branch."""
    colours = [cluster_colour(c) for c in box.code] or [LINE]
    edges = pairwise((x - BOX / 2 + BOX * np.arange(len(colours) + 1) / len(colours)).tolist())
    usual = {"type": "rect", "y0": box.bottom, "y1": box.top, "line": {"width": 0}}
    return [
        {**usual, "x0": left, "x1": right, "fillcolor": colour}
        for (left, right), colour in zip(edges, colours, strict=True)
    ]


def _heading(name: str, count: int, x: float, classes: bool) -> dict[str, Any]:
    text = f"<b>{plain(name)}</b><br>{count:,} {'classes' if classes else 'nodes'}"
    return {"text": text, "x": x, "y": 1.02, "yanchor": "bottom", "showarrow": False}


def _label(box: Box, x: float, classes: Sequence[str]) -> dict[str, Any]:
    names = [plain(classes[c], 14) for c in box.nodes] if classes else []
    text = f"<b>{box.label}</b>{_beside(box.label, names, int(box.height * HEIGHT / LINE_HEIGHT))}"
    where = {"x": x + BOX * (1.3 if classes else 0.8), "y": box.middle, "xanchor": "left"}
    return {"text": text, **where, "showarrow": False, "font": {"size": 11}, "align": "left"}


def _hovers(boxes: Sequence[Box], x: float, classes: bool) -> go.Scatter:
    """What each box is, shown when you point at its middle."""
    what = "classes" if classes else "nodes"
    texts = [f"{_what(box)}<br>{box.count:,} {what}" for box in boxes]
    look = {"mode": "markers", "marker": {"size": 14, "opacity": 0}, "hoverinfo": "text"}
    return go.Scatter(x=[x] * len(boxes), y=[box.middle for box in boxes], text=texts, **look)


def _classes(run: Run, boxes: Sequence[Box], x: float) -> go.Scatter:
    """A small point per class, right of its box."""
    order = [c for box in boxes for c in box.nodes]
    heights = [
        box.top - box.height * (i + 0.5) / box.count for box in boxes for i in range(box.count)
    ]
    y = [round(height, 4) for height in heights]
    return class_points(
        run, order, x=[round(x, 4)] * len(y), y=y, marker={"size": 4, "color": LINE}
    )


def _beside(label: str, names: Sequence[str], lines: int) -> str:
    """As many names as fit after the label, or on a line below it.

    >>> _beside("0", ["ash", "elm", "oak"], 1), _beside("0 + 1 + 2 + 3", ["ash", "elm", "oak"], 2)
    ('  ash, elm, +1', '<br>ash, elm, +1')
    >>> _beside("0 + 1 + 2 + 3 + 4", ["ash", "elm", "oak"], 1)
    ''
    """
    rooms = ("  ", LETTERS - len(label) - 2), ("<br>", LETTERS if lines > 1 else 0)
    for most in (2, 1):
        text = some_names(names, most)
        for start, room in rooms:
            if names and len(html.unescape(text)) <= room:
                return start + text
    return ""
