"""The architecture that was learned, as a flow from the first nodes to the classes."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockout.diagrams import connected_share
from blockout.nodesets import Code, NodeSet
from blockout.report.grouping import some_names
from blockout.report.panels import LINE
from blockout.report.search import shows_classes
from blockout.report.section import Figure, Section, cluster_colour, plain
from blockout.report.selection import in_detail, with_branches
from blockout.report.view import RunView

MOST = 12
"""Codes of a set that are drawn on their own; the rest is merged by the number of branches."""
SMALL = 0.01
"""Codes of fewer than this share of the nodes are merged."""
HEIGHT = 620
BOX, GAP = 0.018, 0.012
"""Width of a box and room between boxes, as shares of the figure."""
LETTERS, LINE_HEIGHT = 24, 14
"""That fit right of the last boxes, and the height of a line of them in pixels."""
CURVE = np.linspace(0, 1, 13)

LEAD = (
    "The network from left to right, where every node keeps the branches (clusters) to which it "
    "belongs with P of at least 0.5. A box is the nodes that belong to exactly the same branches, "
    "its height is their number, striped in the colours of these branches. A band connects "
    "two boxes that share a branch: where no band runs, there is no connection."
)


def section(runs: Sequence[RunView]) -> Section | None:
    """A flow for each run with Blockout."""
    shown, left_out = in_detail(with_branches(runs))
    if not shown:
        return None
    figures = tuple(_figure(run, i, len(shown) > 1) for i, run in enumerate(shown))
    return Section("flow", "The learned architecture", LEAD + left_out, "", figures)


@dataclass(frozen=True)
class Box:
    """Nodes of one set that are drawn as one, from ``bottom`` to ``top``."""

    label: str
    codes: dict[Code, int]
    """How many nodes of each code."""
    members: tuple[int, ...]
    clusters: Code
    """That all of them belong to: empty for merged codes and for dead nodes."""
    bottom: float = 0.0
    top: float = 0.0

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def height(self) -> float:
        return self.top - self.bottom


def boxes_of(nodes: NodeSet) -> list[Box]:
    """A box for each frequent code, then what is merged, then dead nodes; heights add up to 1.

    >>> rows = ((1., 0.), (1., 0.), (1., 0.), (0., 1.))
    >>> [(box.label, box.count) for box in boxes_of(NodeSet("P_1", rows, .5))]
    [('0', 3), ('1', 1)]
    """
    by_code = {code: members for code, members in nodes.nodes_by_code.items() if code}
    large = [code for code in by_code if len(by_code[code]) >= SMALL * nodes.nodes][:MOST]
    boxes = [
        Box(" + ".join(map(str, c)), {c: len(by_code[c])}, by_code[c], c) for c in sorted(large)
    ]
    rest = {code: by_code[code] for code in by_code if code not in large}
    for size in sorted({len(code) for code in rest}):
        codes = {code: len(own) for code, own in rest.items() if len(code) == size}
        members = tuple(node for code in codes for node in rest[code])
        boxes.append(Box(_merged(size), codes, members, ()))
    if nodes.dead:
        boxes.append(Box("no branch", {(): len(nodes.dead)}, nodes.dead, ()))
    return _stacked(boxes, nodes.nodes)


def _merged(size: int) -> str:
    return f"others in {size}" if size > 1 else "others"


def _stacked(boxes: Sequence[Box], nodes: int) -> list[Box]:
    """From the top down, with gaps; heights in proportion to nodes."""
    room = 1 - GAP * (len(boxes) - 1)
    top, placed = 1.0, []
    for box in boxes:
        bottom = top - room * box.count / nodes
        placed.append(Box(box.label, box.codes, box.members, box.clusters, bottom, top))
        top = bottom - GAP
    return placed


@dataclass(frozen=True)
class Band:
    """A connection of two boxes: where it leaves and where it arrives, from bottom to top."""

    start: Box
    end: Box
    share: float
    """Of the pairs of their nodes that are connected."""
    leaves: tuple[float, float]
    arrives: tuple[float, float]


def bands_of(inputs: Sequence[Box], outputs: Sequence[Box]) -> list[Band]:
    """Bands between all boxes that share a branch.

    At its start a band takes the part of the box that its connections are among all connections of
    that box, at its end likewise: so boxes are filled, and their heights stay those of their nodes.
    """
    pairs = np.array(
        [[a.count * b.count * connected_share(a.codes, b.codes) for b in outputs] for a in inputs]
    )
    leaves = _portions(inputs, pairs)
    arrives = _portions(outputs, pairs.T)
    return [
        Band(a, b, pairs[i, j] / (a.count * b.count), leaves[i][j], arrives[j][i])
        for i, a in enumerate(inputs)
        for j, b in enumerate(outputs)
        if pairs[i, j]
    ]


def _portions(boxes: Sequence[Box], pairs: np.ndarray) -> list[list[tuple[float, float]]]:
    """For each box its height divided among its partners, from the top down."""
    found = []
    for box, row in zip(boxes, pairs, strict=True):
        ends = box.top - box.height * np.cumsum(row) / max(row.sum(), 1)
        starts = [box.top, *ends[:-1].tolist()]
        found.append([(low, high) for low, high in zip(ends.tolist(), starts, strict=True)])
    return found


def _figure(run: RunView, number: int, named: bool) -> Figure:
    structure = run.structure
    assert structure is not None
    names = list(structure.sets)
    columns = [boxes_of(nodes) for nodes in structure.sets.values()]
    places = np.linspace(0, 1, len(columns)).tolist()
    data: list[dict[str, Any]] = []
    for i in range(len(columns) - 1):
        for band in bands_of(columns[i], columns[i + 1]):
            data.append(_ribbon(band, places[i] + BOX / 2, places[i + 1] - BOX / 2))
    shapes = [s for x, column in zip(places, columns, strict=True) for s in _stripes(column, x)]
    data += [_hovers(run, names[i], columns[i], places[i]) for i in range(len(columns))]
    data.append(_classes(run, columns[-1], places[-1]))
    layout = {
        "height": HEIGHT, "meta": {"least_width": 760}, "showlegend": False,
        "hovermode": "closest", "shapes": shapes,
        "xaxis": {"visible": False, "range": [-0.06, 1.3], "fixedrange": True},
        "yaxis": {"visible": False, "range": [-0.02, 1.12], "fixedrange": True},
        "annotations": [_heading(run, n, x) for n, x in zip(names, places, strict=True)]
        + [a for x, c in zip(places, columns, strict=True) for a in _labels(run, c, x)],
        "margin": {"l": 10, "r": 10, "t": 20, "b": 10},
    }  # fmt: skip
    note = (
        "Bands have the colour of the first branch that their boxes share. Grey bands come from or "
        "lead to rare combinations of branches, merged into “others”: much grey means that the "
        "branches are not clearly separated."
    )
    return Figure(f"flow-{number}", data, layout, note, run.name if named else "")


def _ribbon(band: Band, left: float, right: float) -> dict[str, Any]:
    """Two smooth curves and what is between them."""
    ease = CURVE**2 * (3 - 2 * CURVE)
    x = left + (right - left) * CURVE
    low = band.leaves[0] + (band.arrives[0] - band.leaves[0]) * ease
    high = band.leaves[1] + (band.arrives[1] - band.leaves[1]) * ease
    shared = sorted(set(band.start.clusters) & set(band.end.clusters))
    of = "all" if band.share > 0.9995 else f"{band.share:.0%}"
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "hoveron": "fills", "opacity": 0.35,
        "x": np.concatenate([x, x[::-1]]).astype(np.float32),
        "y": np.concatenate([low, high[::-1]]).astype(np.float32),
        "line": {"width": 0}, "fillcolor": cluster_colour(shared[0]) if shared else LINE,
        "text": f"{_what(band.start)} → {_what(band.end)}: {of} of the connections",
        "hoverinfo": "text",
    }  # fmt: skip


def _what(box: Box) -> str:
    return box.label if not box.clusters else f"branch {box.label}"


def _stripes(boxes: Sequence[Box], x: float) -> list[dict[str, Any]]:
    """A box has a stripe for each of its branches."""
    shapes = []
    for box in boxes:
        colours = [cluster_colour(c) for c in box.clusters] or [LINE]
        width = BOX / len(colours)
        for i, colour in enumerate(colours):
            start = x - BOX / 2 + i * width
            shapes.append({
                "type": "rect", "x0": start, "x1": start + width, "y0": box.bottom, "y1": box.top,
                "fillcolor": colour, "line": {"width": 0},
            })  # fmt: skip
    return shapes


def _hovers(run: RunView, name: str, boxes: Sequence[Box], x: float) -> dict[str, Any]:
    """What a box is, shown at its middle."""
    assert run.structure is not None
    classes = name == run.structure.class_set.name
    texts = [f"{_what(box)}<br>{box.count:,} {'classes' if classes else 'nodes'}" for box in boxes]
    return {
        "type": "scatter", "mode": "markers", "x": [x] * len(boxes),
        "y": [(box.bottom + box.top) / 2 for box in boxes], "text": texts, "hoverinfo": "text",
        "marker": {"size": 14, "opacity": 0},
    }  # fmt: skip


def _classes(run: RunView, boxes: Sequence[Box], x: float) -> dict[str, Any]:
    """A small point for each class, right of its box."""
    found = [
        (c, box.top - box.height * (i + 0.5) / box.count)
        for box in boxes
        for i, c in enumerate(box.members)
    ]
    return {
        "type": "scatter", "mode": "markers", "x": [round(x + BOX, 4)] * len(found),
        "y": [round(y, 4) for _, y in found], "marker": {"size": 4, "color": LINE},
        "text": [plain(run.classes[c]) for c, _ in found],
        "hovertemplate": "<b>%{text}</b><extra></extra>",
        "meta": shows_classes(run), "customdata": [[c] for c, _ in found],
    }  # fmt: skip


def _beside(label: str, names: Sequence[str], lines: int) -> str:
    """As many names as fit after the label, or on a line below where there is one; as Plotly's.

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


def _heading(run: RunView, name: str, x: float) -> dict[str, Any]:
    assert run.structure is not None
    nodes = run.structure.sets[name].nodes
    what = "classes" if name == run.structure.class_set.name else "nodes"
    return {
        "text": f"<b>{plain(name)}</b><br>{nodes:,} {what}", "x": x, "y": 1.02, "showarrow": False,
        "yanchor": "bottom", "xanchor": "center",
    }  # fmt: skip


def _labels(run: RunView, boxes: Sequence[Box], x: float) -> list[dict[str, Any]]:
    """Branches and, for the last boxes, some classes; boxes that are too low have none."""
    last = x == 1
    found = []
    for box in boxes:
        if box.height * HEIGHT < 11:
            continue
        names = [plain(run.classes[c], 14) for c in box.members] if last else []
        lines = int(box.height * HEIGHT / LINE_HEIGHT)
        found.append({
            "text": f"<b>{box.label}</b>{_beside(box.label, names, lines)}",
            "x": x + BOX * (1.3 if last else 0.8), "y": (box.bottom + box.top) / 2,
            "xanchor": "left", "showarrow": False, "font": {"size": 11}, "align": "left",
        })  # fmt: skip
    return found
