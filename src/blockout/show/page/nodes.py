"""Nodes as points in a plane, by their P (the paper's Fig. 10)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int64
from plotly.subplots import make_subplots

from blockout.runs import Run
from blockout.show.colours import LINE, cluster_colour
from blockout.show.masks import THRESHOLD
from blockout.show.nodes import Projection, principal_components, strongest_clusters
from blockout.show.page.drawing import nodes_called, plain, shows_classes
from blockout.show.page.section import Figure, Section, some_names
from blockout.show.selection import with_branches

MOST_RUNS = 4
NOWHERE = 0.05
"""A node whose largest P is below this is in no branch."""
LARGEST, SMALLEST = 44, 6
"""Diameter of bubbles in pixels."""
HEIGHT, PLOTTED, WIDTH = 400, 240, 850
"""Of a figure, and of what is inside its axes, in pixels; the width as on a laptop."""
PLACES_NAMED = 30
GOLDEN_ANGLE = np.pi * (3 - 5**0.5)

LEAD = """Every node is a point, and so is every class. You see them along the two directions in
which their P differ most; the axes say how much of all differences that shows. Nodes of the same
branches lie together; different colours in one place differ in what is not shown. The colour is the
strongest branch, the rim the second strongest if there is one."""
OF_CLASSES = """Each point is a class; point at it for its name. Classes with the same branches lie
in the same place, spread a little so that you can see each."""
OF_BUBBLES = "Nodes with the same branches form one bubble, its area their number."


def section(runs: Sequence[Run]) -> Section | None:
    """A figure per set of nodes; runs, such as those of different widths, side by side."""
    shown = _chosen(with_branches(runs))
    if not shown:
        return None
    names = list(dict.fromkeys(name for run in shown for name in run.memberships))
    figures = tuple(_figure(name, [r for r in shown if name in r.memberships]) for name in names)
    return Section("nodes", "Nodes and classes by their branches", LEAD, figures=figures)


def _chosen(runs: Sequence[Run]) -> list[Run]:
    """One run of each width, the narrowest first; then others while there is room."""
    first = {_width(run): run for run in reversed(runs)}
    others = [run for run in runs if first[_width(run)] is not run]
    return sorted([*first.values(), *others][:MOST_RUNS], key=_width)


def _width(run: Run) -> int:
    return max(len(p) for p in run.memberships.values())


def _figure(name: str, runs: Sequence[Run]) -> Figure:
    several = len(runs) > 1
    titles = [plain(run.name) if several else "" for run in runs]
    chart = make_subplots(1, len(runs), subplot_titles=titles, horizontal_spacing=0.06)
    chart.update_annotations(font_size=13)
    drawn: list[Any] = []
    for column, run in enumerate(runs, 1):
        cloud = _Cloud.of(run, name, WIDTH // len(runs))
        for trace in cloud.classes() if cloud.holds_classes else cloud.nodes():
            chart.add_trace(trace, 1, column)
            drawn.append(trace)
        updates = chart.update_xaxes, chart.update_yaxes
        for update, share in zip(updates, cloud.shares, strict=True):
            said = {"text": f"shows {share:.0%} of the differences", "font_size": 11}
            update(title=said, showticklabels=False, zeroline=False, col=column)
    bubbles = any(trace.marker.sizemode for trace in drawn)
    _add_legend(chart, {trace.name: trace.marker.color for trace in drawn if trace.name})
    chart.update_layout(
        height=HEIGHT,
        meta={"least_width": max(480, 270 * len(runs))},
        legend={"orientation": "h", "y": -0.18},
        margin={"t": 34 if several else 14},
    )
    assert runs[0].structure is not None
    title, note = nodes_called(name, runs[0].memberships), OF_CLASSES
    if name != runs[0].structure.class_set.name:
        widths = sorted({len(run.memberships[name]) for run in runs})
        title += f", {' / '.join(f'{width:,}' for width in widths)} nodes"
        note = OF_BUBBLES if bubbles else "Each point is a node."
    return Figure(f"nodes-{name.lower().replace('_', '')}", chart, note, title)


def _add_legend(chart: go.Figure, colours: dict[str, str]) -> None:
    """A plain disc per branch; hiding it hides the branch in all panels."""
    for name, colour in sorted(colours.items()):
        marker = {"size": 11, "color": colour}
        one = go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker)
        chart.add_trace(one.update(legendgroup=name, showlegend=True))


@dataclass(frozen=True)
class _Cloud:
    """The points of one set of nodes of one run."""

    run: Run
    p: Float[np.ndarray, "nodes clusters"]
    seen: Projection
    holds_classes: bool
    pixels: int
    """Width of its panel."""

    @classmethod
    def of(cls, run: Run, name: str, pixels: int) -> "_Cloud":
        assert run.structure is not None
        p = run.memberships[name]
        return cls(run, p, principal_components(p), name == run.structure.class_set.name, pixels)

    @property
    def shares(self) -> list[float]:
        return self.seen.shares.tolist()

    def nodes(self) -> list[go.Scatter]:
        """Bubbles where many nodes have the same P, else a point per node."""
        points = self.seen.points
        _, first, counts = np.unique(self.p.round(2), axis=0, return_index=True, return_counts=True)
        if 2 * len(first) > len(self.p):
            return [_dots(points[own], own, c) for c, own in _by_strongest(self.p)]
        scale = 2 * counts.max() / LARGEST**2  # as Plotly wants it for sizes that are areas
        return [
            _bubbles(points[first[own]], self.p[first[own]], counts[own], c, scale)
            for c, own in _by_strongest(self.p[first])
        ]

    def classes(self) -> list[go.Scatter]:
        """A point per class, and names beside the places if they are few."""
        place = _places(self.seen.points)
        points = _spread(self.seen.points, place, self.pixels)
        many = len(self.p) > 200
        traces = []
        for cluster, own in _by_strongest(self.p):
            rim = {"width": 2 if many else 3, "color": _rims(self.p[own], cluster)}
            trace = _trace(points[own], cluster, size=7 if many else 11, line=rim)
            names = [f"<b>{plain(self.run.classes[c])}</b><br>{branches(self.p[c])}" for c in own]
            trace.update(text=names, hovertemplate="%{text}<extra></extra>")
            trace.update(meta=shows_classes(self.run), customdata=[[c] for c in own.tolist()])
            traces.append(trace)
        return [*traces, self._names(points, place)] if place.max() < PLACES_NAMED else traces

    def _names(self, points: np.ndarray, place: np.ndarray) -> go.Scatter:
        """Some classes of each place as words beside it, if there is room for them."""
        scale = np.array([self.pixels, PLOTTED]) / np.maximum(np.ptp(points, axis=0), 0.1)
        labels: list[_Label] = []
        for number in np.argsort(-np.bincount(place), kind="stable"):
            own = np.flatnonzero(place == number)
            text = some_names([plain(self.run.classes[c], 18) for c in own], 2)
            others = np.delete(points, own, axis=0)
            for right in (True, False):
                label = _Label(text, points[own], right, scale)
                if label.fits(points, others) and not any(map(label.overlaps, labels)):
                    labels.append(label)
                    break
        return go.Scatter(
            mode="text",
            x=[label.x for label in labels],
            y=[label.y for label in labels],
            text=[f"  {label.text}  " for label in labels],
            textposition=[f"middle {'right' if label.right else 'left'}" for label in labels],
            textfont_size=11,
            hoverinfo="skip",
            showlegend=False,
        )


class _Label:
    """Words to the right or left of some points, and the room they take in pixels."""

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
        """Whether it ends about where the points do, and covers no other points."""
        low, high = points[:, 0].min() * self.scale[0], points[:, 0].max() * self.scale[0]
        across, down = (others * self.scale).T
        covered = (across > self.ends[0] - 6) & (across < self.ends[1] + 6)
        covered &= np.abs(down - self.y * self.scale[1]) < 12
        return self.ends[0] >= low - 25 and self.ends[1] <= high + 25 and not covered.any()


def branches(row: Float[np.ndarray, " clusters"]) -> str:
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
) -> list[tuple[int | None, Int64[np.ndarray, " some"]]]:
    """Each branch with the nodes that belong to it most; None for nodes in no branch."""
    strongest = np.where(p.max(1) < NOWHERE, -1, strongest_clusters(p))
    found = [(c, np.flatnonzero(strongest == c)) for c in range(-1, p.shape[1])]
    return [(None if c < 0 else c, own) for c, own in found if len(own)]


def _trace(points: Float[np.ndarray, "n 2"], cluster: int | None, **marker: Any) -> Any:
    where = "no branch" if cluster is None else f"branch {cluster}"
    kind = go.Scattergl if len(points) > 400 else go.Scatter
    return kind(
        mode="markers",
        name=where,
        legendgroup=where,
        showlegend=False,
        x=points[:, 0].astype(np.float32),
        y=points[:, 1].astype(np.float32),
        marker={"color": _colour(cluster), **marker},
    )


def _colour(cluster: int | None) -> str:
    return LINE if cluster is None else cluster_colour(cluster)


def _rims(p: Float[np.ndarray, "n clusters"], cluster: int | None) -> list[str]:
    """The colour of the second branch of each node, or of its only one."""
    if cluster is None or p.shape[1] < 2:
        return [_colour(cluster)] * len(p)
    second = strongest_clusters(np.where(np.arange(p.shape[1]) == cluster, -1, p))
    belongs = p[np.arange(len(p)), second] >= THRESHOLD
    return [cluster_colour(s if b else cluster) for s, b in zip(second, belongs, strict=True)]


def _dots(points: np.ndarray, nodes: np.ndarray, cluster: int | None) -> Any:
    hover = "node %{customdata}<extra>%{fullData.name}</extra>"
    return _trace(points, cluster, size=5, opacity=0.65).update(
        customdata=nodes, hovertemplate=hover
    )


def _bubbles(
    points: np.ndarray, p: np.ndarray, counts: np.ndarray, cluster: int | None, scale: float
) -> Any:
    said = [
        f"{count:,} node{'s' if count > 1 else ''}<br>{branches(row)}"
        for count, row in zip(counts.tolist(), p, strict=True)
    ]
    area = {"size": counts, "sizemode": "area", "sizeref": scale, "sizemin": SMALLEST / 2}
    rim = {"width": 3, "color": _rims(p, cluster)}
    trace = _trace(points, cluster, **area, opacity=0.85, line=rim)
    return trace.update(text=said, hovertemplate="%{text}<extra></extra>")


def _places(points: Float[np.ndarray, "n 2"]) -> Int64[np.ndarray, " n"]:
    """A number per point; the same for points that would cover each other."""
    span = np.maximum(np.ptp(points, axis=0), 1e-9)
    return np.unique((points / span * 25).round(), axis=0, return_inverse=True)[1].reshape(-1)


def _spread(
    points: Float[np.ndarray, "n 2"], place: Int64[np.ndarray, " n"], pixels: int
) -> Float[np.ndarray, "n 2"]:
    """Points of one place arranged like sunflower seeds, about a marker's size apart."""
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
