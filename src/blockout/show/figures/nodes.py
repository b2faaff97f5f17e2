"""Fig. 10: nodes as points, from their P."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockout.runs import Run
from blockout.show.colours import cluster_colour
from blockout.show.figures import examples, style
from blockout.show.figures.selection import on_the_same_classes
from blockout.show.methods import labels
from blockout.show.nodes import Projection, principal_components, strongest_clusters

MANY = 200
"""Nodes: more are drawn small."""
NUMBER = {
    "textcoords": "offset points",
    "va": "center",
    "fontsize": style.SMALL,
    "fontweight": "bold",
    "bbox": {"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.6},
}


@style.styled
def nodes(runs: Sequence[Run], marked: Sequence[str] = ()) -> Figure:
    """A row per run, a column per set of nodes; the colour is the strongest cluster of a node.

    Nodes with the same P fall on one dot, whose area is their number. Classes that are ``marked``
    by name are numbered; without names, four telling ones.
    """
    runs = on_the_same_classes(runs)
    chosen = examples.indices_of(marked, runs[0]) or examples.telling_classes(runs[0])
    sets = list(dict.fromkeys(name for run in runs for name in run.memberships))
    heights = [1.75] * len(runs) + [examples.height(runs[0])]
    figure = style.new_figure(sum(heights))
    *rows, last = style.rows(figure, heights, labels(runs))
    for row, run in zip(rows, runs, strict=True):
        for axes, name in zip(row.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
            style.framed(axes)
            if name not in run.memberships:
                axes.set_axis_off()
                continue
            seen = _draw(axes, run.memberships[name])
            axes.set_title(style.symbol(name), loc="center")
            if run.memberships[name] is run.class_memberships:
                _number(axes, seen.points[chosen])
    examples.show(last, runs[0], chosen, each=2)
    return figure


def _draw(axes: Axes, p: Float[np.ndarray, "nodes clusters"]) -> Projection:
    seen = principal_components(p)
    at, first, counts = np.unique(
        seen.points.round(2), axis=0, return_index=True, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")  # small dots on top
    alone = np.full(len(at), 4 if len(p) > MANY else 12)
    sizes = 3 + 700 * counts / len(p) if counts.max() > 1 else alone
    colours = [cluster_colour(c) for c in strongest_clusters(p[first[order]]).tolist()]
    look = {"alpha": 0.75, "linewidths": 0, "rasterized": True}
    axes.scatter(*at[order].T, s=sizes[order], c=colours, **look)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.15)
    share = f"{100 * seen.shares.sum():.0f} % of variance"
    look = {"ha": "right", "fontsize": style.TINY, "color": style.QUIET}
    axes.annotate(share, (0.98, 0.02), xycoords="axes fraction", **look)
    return seen


def _number(axes: Axes, points: Float[np.ndarray, "classes 2"]) -> None:
    """1, 2, ... beside the points of classes; points that fall together share a label."""
    near = 0.05 * float(np.ptp(axes.get_xlim()))
    together: dict[tuple[float, float], list[str]] = {}
    for number, point in enumerate(points, 1):
        same = next((at for at in together if np.hypot(*(point - at)) < near), tuple(point))
        together.setdefault(same, []).append(str(number))
    turn = np.quantile(axes.get_xlim(), 0.7)
    ring = {"color": "none", "markeredgecolor": style.INK, "markersize": 4.5}
    for (x, y), numbers in together.items():
        axes.plot(x, y, "o", markeredgewidth=0.8, **ring)
        side, align = (-6, "right") if x > turn else (6, "left")  # always inside the frame
        axes.annotate(", ".join(numbers), (x, y), (side, 0), ha=align, **NUMBER)
