"""Nodes as points in a plane, by their P (the paper's Fig. 10)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from blockout.report.grouping import some_names
from blockout.report.naming import nodes_called
from blockout.report.numbers import THRESHOLD, principal_components, strongest_clusters
from blockout.report.panels import LINE, axis, axis_key, side_by_side
from blockout.report.search import shows_classes
from blockout.report.section import Figure, Section, cluster_colour, plain
from blockout.report.selection import with_structure
from blockout.report.view import RunView

MOST_RUNS = 4
NOWHERE = 0.05
"""A node whose largest P is below this is in no cluster."""
LARGEST, SMALLEST = 44, 6
"""Diameter of bubbles in pixels."""
HEIGHT, PLOTTED, WIDTH = 400, 240, 850
"""Of a figure and of what is inside its axes, in pixels; the width as on a laptop."""
PLACES_NAMED = 30
GOLDEN_ANGLE = np.pi * (3 - 5**0.5)

LEAD = (
    "Each node of the network, and each class, has a chance P of belonging to each branch "
    "(cluster). Here every node is a point, seen along the two directions in which nodes differ "
    "most; the axes say how much of all differences that shows. Those of the same branches lie "
    "together; different colours at one place differ in what is not seen. The colour is the "
    "strongest branch, the rim the second where there is one."
)


def section(runs: Sequence[RunView]) -> Section | None:
    """A figure for each set of nodes; runs, such as those of different widths, side by side."""
    shown = _chosen(with_structure(runs))
    if not shown:
        return None
    names = list(dict.fromkeys(name for run in shown for name in run.memberships))
    figures = tuple(_figure(name, [r for r in shown if name in r.memberships]) for name in names)
    return Section("nodes", "Nodes and classes by their branches", LEAD, "", figures)


def _chosen(runs: Sequence[RunView]) -> list[RunView]:
    """One run of each width first, the narrowest first; then others as room allows."""
    first = {_width(run): run for run in reversed(runs)}
    others = [run for run in runs if first[_width(run)] is not run]
    picked = [*first.values(), *others][:MOST_RUNS]
    return sorted(picked, key=_width)


def _width(run: RunView) -> int:
    return max(len(p) for p in run.memberships.values())


def _figure(name: str, runs: Sequence[RunView]) -> Figure:
    titles = [run.name if len(runs) > 1 else "" for run in runs]
    layout = side_by_side(titles, HEIGHT)
    data: list[dict[str, Any]] = []
    for panel, run in enumerate(runs):
        cloud = _Cloud(run, name, WIDTH // len(runs))
        traces = cloud.classes() if cloud.holds_classes else cloud.nodes()
        for trace in traces:
            data.append(trace | {"xaxis": axis("x", panel), "yaxis": axis("y", panel)})
        for letter, share in zip("xy", cloud.shares, strict=True):
            layout[axis_key(letter, panel)] |= _unnumbered(share)
    data += _legend(data)
    layout |= {
        "showlegend": True, "hovermode": "closest",
        "meta": {"least_width": max(480, 270 * len(runs))},
        "legend": {"orientation": "h", "y": -0.18}, "margin": {"t": 34 if len(runs) > 1 else 14},
    }  # fmt: skip
    bubbles = any("sizemode" in trace["marker"] for trace in data if "marker" in trace)
    id, note = f"nodes-{name.lower().replace('_', '')}", _note(name, runs[0], bubbles)
    return Figure(id, data, layout, note, _title(name, runs))


def _unnumbered(share: float) -> dict[str, Any]:
    """The numbers on a principal component mean nothing to a reader; how much it shows does."""
    words = f"shows {share:.0%} of the differences"
    return {"title": {"text": words, "font": {"size": 11}}, "showticklabels": False,
            "zeroline": False}  # fmt: skip


def _title(name: str, runs: Sequence[RunView]) -> str:
    called = nodes_called(name, runs[0].memberships)
    structure = runs[0].structure
    if structure is None or name == structure.class_set.name:
        return called
    widths = sorted({len(run.memberships[name]) for run in runs})
    return f"{called}, {' / '.join(f'{width:,}' for width in widths)} nodes"


def _note(name: str, run: RunView, bubbles: bool) -> str:
    assert run.structure is not None
    if name == run.structure.class_set.name:
        return (
            "Each point is a class; point at it for its name. Classes with the same branches lie "
            "at the same place and are spread a little so that each can be seen."
        )
    if not bubbles:
        return "Each point is a node."
    return "A point is a node; nodes with the same branches are one bubble, its area their number."


def _legend(data: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A plain disc for each cluster that occurs; hiding it hides it in all panels."""
    shown = {trace["name"]: trace["marker"]["color"] for trace in data if "name" in trace}
    return [
        {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": name,
         "legendgroup": name, "marker": {"size": 11, "color": colour}, "showlegend": True}
        for name, colour in sorted(shown.items())
    ]  # fmt: skip


@dataclass(frozen=True)
class _Cloud:
    """The points of one set of nodes of one run."""

    run: RunView
    name: str
    pixels: int
    """Width of its panel."""

    @property
    def p(self) -> Float[np.ndarray, "nodes clusters"]:
        return self.run.memberships[self.name]

    @property
    def holds_classes(self) -> bool:
        assert self.run.structure is not None
        return self.name == self.run.structure.class_set.name

    @property
    def shares(self) -> list[float]:
        return principal_components(self.p).shares.tolist()

    def nodes(self) -> list[dict[str, Any]]:
        """Bubbles where many nodes have the same P, else a point a node."""
        points = principal_components(self.p).points
        _, first, counts = np.unique(self.p.round(2), axis=0, return_index=True, return_counts=True)
        if 2 * len(first) > len(self.p):
            return [_dots(points[own], own, c) for c, own in _by_strongest(self.p)]
        scale = 2 * counts.max() / LARGEST**2  # as Plotly asks for where sizes are areas
        return [
            _bubbles(points[first[own]], self.p[first[own]], counts[own], c, scale)
            for c, own in _by_strongest(self.p[first])
        ]

    def classes(self) -> list[dict[str, Any]]:
        """A point a class, with its name; and the names beside the places where there are few."""
        points = principal_components(self.p).points
        place = _places(points)
        points = _spread(points, place, self.pixels)
        texts = [
            f"<b>{plain(name)}</b><br>{branches(row)}"
            for name, row in zip(self.run.classes, self.p, strict=True)
        ]
        meta = {"meta": shows_classes(self.run)}
        traces = [
            _class_points(points, texts, self.p, own, c) | meta for c, own in _by_strongest(self.p)
        ]
        if place.max() < PLACES_NAMED:
            traces.append(self._names(points, place))
        return traces

    def _names(self, points: np.ndarray, place: np.ndarray) -> dict[str, Any]:
        """Some of the classes of each place in words beside it, where there is room for them."""
        scale = np.array([self.pixels, PLOTTED]) / np.maximum(np.ptp(points, axis=0), 0.1)
        labels: list[_Label] = []
        sizes = np.bincount(place)
        for number in np.argsort(-sizes, kind="stable"):
            own = np.flatnonzero(place == number)
            text = some_names([plain(self.run.classes[c], 18) for c in own], 2)
            for right in (True, False):
                label = _Label(text, points[own], right, scale)
                others = np.delete(points, own, axis=0)
                if label.fits(points, others) and not any(map(label.overlaps, labels)):
                    labels.append(label)
                    break
        return {
            "type": "scatter", "mode": "text", "hoverinfo": "skip",
            "x": [label.x for label in labels], "y": [label.y for label in labels],
            "text": [f"  {label.text}  " for label in labels],
            "textposition": [f"middle {'right' if label.right else 'left'}" for label in labels],
            "textfont": {"size": 11}, "showlegend": False,
        }  # fmt: skip


class _Label:
    """Words to the right or left of some points, and the room that they take in pixels."""

    def __init__(self, text: str, points: np.ndarray, right: bool, scale: np.ndarray) -> None:
        self.text, self.right, self.scale = text, right, scale
        self.x = float(points[:, 0].max() if right else points[:, 0].min())
        self.y = float(points[:, 1].mean())
        start, width = self.x * scale[0], 6.5 * len(text) + 20
        self.ends = (start, start + width) if right else (start - width, start)

    def overlaps(self, other: "_Label") -> bool:
        apart = self.ends[0] > other.ends[1] or other.ends[0] > self.ends[1]
        return not apart and abs(self.y - other.y) * self.scale[1] < 15

    def fits(self, points: np.ndarray, others: np.ndarray) -> bool:
        """Whether it ends where points do, or little further, and covers no other points."""
        low, high = points[:, 0].min() * self.scale[0], points[:, 0].max() * self.scale[0]
        across, down = (others * self.scale).T
        covered = (across > self.ends[0] - 6) & (across < self.ends[1] + 6)
        covered &= np.abs(down - self.y * self.scale[1]) < 12
        return self.ends[0] >= low - 25 and self.ends[1] <= high + 25 and not covered.any()


def branches(row: Float[np.ndarray, "clusters"]) -> str:
    """
    >>> branches(np.array([.9, .2, .6])), branches(np.array([.1, .2]))
    ('branches 0 + 2', 'not surely in any branch')
    """
    found = np.flatnonzero(row >= THRESHOLD).tolist()
    if not found:
        return "not surely in any branch"
    return f"branch{'es' if len(found) > 1 else ''} {' + '.join(map(str, found))}"


def _by_strongest(
    p: Float[np.ndarray, "nodes clusters"],
) -> list[tuple[int | None, Int64[np.ndarray, "some"]]]:
    """Each cluster with the nodes that belong to it most; None for nodes in no cluster."""
    strongest = np.where(p.max(1) < NOWHERE, -1, strongest_clusters(p))
    found = [(c, np.flatnonzero(strongest == c)) for c in range(-1, p.shape[1])]
    return [(None if c < 0 else c, own) for c, own in found if len(own)]


def _trace(points: Float[np.ndarray, "n 2"], cluster: int | None) -> dict[str, Any]:
    where = "no branch" if cluster is None else f"branch {cluster}"
    return {
        "type": "scattergl" if len(points) > 400 else "scatter", "mode": "markers",
        "name": where, "legendgroup": where, "showlegend": False,
        "x": points[:, 0].astype(np.float32), "y": points[:, 1].astype(np.float32),
    }  # fmt: skip


def _colour(cluster: int | None) -> str:
    return LINE if cluster is None else cluster_colour(cluster)


def _rims(p: Float[np.ndarray, "n clusters"], cluster: int | None) -> list[str]:
    """The colour of the second cluster of each node, or of its only one."""
    if cluster is None or p.shape[1] < 2:
        return [_colour(cluster)] * len(p)
    second = strongest_clusters(np.where(np.arange(p.shape[1]) == cluster, -1, p))
    belongs = p[np.arange(len(p)), second] >= THRESHOLD
    return [cluster_colour(s if b else cluster) for s, b in zip(second, belongs, strict=True)]


def _dots(points: np.ndarray, nodes: np.ndarray, cluster: int | None) -> dict[str, Any]:
    return _trace(points, cluster) | {
        "marker": {"size": 5, "opacity": 0.65, "color": _colour(cluster)},
        "customdata": nodes, "hovertemplate": "node %{customdata}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _bubbles(
    points: np.ndarray, p: np.ndarray, counts: np.ndarray, cluster: int | None, scale: float
) -> dict[str, Any]:
    said = [
        f"{count:,} node{'s' if count > 1 else ''}<br>{branches(row)}"
        for count, row in zip(counts.tolist(), p, strict=True)
    ]
    return _trace(points, cluster) | {
        "marker": {
            "size": counts, "sizemode": "area", "sizeref": scale, "sizemin": SMALLEST / 2,
            "color": _colour(cluster), "opacity": 0.85,
            "line": {"width": 3, "color": _rims(p, cluster)},
        },
        "text": said, "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _class_points(
    points: np.ndarray, texts: Sequence[str], p: np.ndarray, own: np.ndarray, cluster: int | None
) -> dict[str, Any]:
    return _trace(points[own], cluster) | {
        "marker": {
            "size": 11 if len(p) <= 200 else 7, "color": _colour(cluster),
            "line": {"width": 3 if len(p) <= 200 else 2, "color": _rims(p[own], cluster)},
        },
        "text": [texts[c] for c in own], "hovertemplate": "%{text}<extra></extra>",
        "customdata": [[c] for c in own.tolist()],
    }  # fmt: skip


def _places(points: Float[np.ndarray, "n 2"]) -> Int64[np.ndarray, "n"]:
    """A number for each point; the same for points that would be drawn over each other."""
    span = np.maximum(np.ptp(points, axis=0), 1e-9)
    return np.unique((points / span * 25).round(), axis=0, return_inverse=True)[1].reshape(-1)


def _spread(
    points: Float[np.ndarray, "n 2"], place: Int64[np.ndarray, "n"], pixels: int
) -> Float[np.ndarray, "n 2"]:
    """Points of one place like the seeds of a sunflower, about a marker's size apart."""
    span = np.maximum(np.ptp(points, axis=0), 0.1)
    step = 9 * span / np.array([pixels, PLOTTED])
    moved = points.astype(np.float64).copy()
    for number in range(place.max() + 1):
        own = np.flatnonzero(place == number)
        rank = np.arange(len(own))
        ring, angle = np.sqrt(rank), rank * GOLDEN_ANGLE
        offsets = np.stack([ring * np.cos(angle), ring * np.sin(angle)], axis=1)
        moved[own] = points[own].mean(0) + offsets * step
    return moved
