"""Fig. 10: nodes as points, from their P."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockout.figures import examples, selection, style
from blockout.report.numbers import Projection, principal_components, strongest_clusters
from blockout.report.section import cluster_colour
from blockout.report.view import RunView

MANY = 200
"""Nodes: above, they are drawn small."""


@style.styled
def nodes(runs: Sequence[RunView], marked: Sequence[str] = ()) -> Figure:
    """A row a run, a column a set of nodes; colours are the strongest cluster of a node.

    Nodes with the same P fall on one dot, as large as there are many. Classes that are ``marked``
    by name are numbered; without names, four that tell something.
    """
    runs = selection.on_the_same_classes(runs)
    chosen = examples.indices_of(marked, runs[0]) or examples.telling_classes(runs[0])
    sets = list(dict.fromkeys(name for run in runs for name in run.memberships))
    pictured = (runs[0].folder / "thumbnails.png").exists()
    heights = [1.75] * len(runs) + [0.75 if pictured else 0.3]
    figure = style.new_figure(sum(heights))
    *rows, last = style.stacked(figure, heights)
    names = selection.labels(runs)
    for number, (row, run) in enumerate(zip(rows, runs, strict=True)):
        title = f"{style.letter(number)} {style.plain(_titled(names[number], run))}"
        row.suptitle(title, x=0.01, ha="left", fontsize=style.NORMAL)
        for axes, name in zip(row.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
            style.framed(axes)
            if name not in run.memberships:
                style.bare(axes)
                continue
            seen = _draw(axes, run.memberships[name])
            axes.set_title(style.symbol(name), loc="center")
            if run.memberships[name] is run.class_memberships:
                _number(axes, seen.points[chosen])
    examples.show(last, runs[0], chosen, each=2)
    return figure


def _titled(label: str, run: RunView) -> str:
    return label if "nodes" in label else f"{label}, {selection.width(run)} nodes"


def _draw(axes: Axes, p: np.ndarray) -> Projection:
    seen = principal_components(p)
    at, first, counts = np.unique(
        seen.points.round(2), axis=0, return_index=True, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")  # the small ones on top
    many = counts.max() > 1
    sizes = 3 + 700 * counts / len(p) if many else np.full(len(at), 4 if len(p) > MANY else 12)
    colours = [cluster_colour(c) for c in strongest_clusters(p[first]).tolist()]
    axes.scatter(
        *at[order].T, s=sizes[order], c=[colours[i] for i in order], alpha=0.75,
        linewidths=0, rasterized=True,
    )  # fmt: skip
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.15)
    share = f"{100 * seen.shares.sum():.0f} % of variance"
    axes.annotate(share, (1, 0), (-3, 3), xycoords="axes fraction", textcoords="offset points",
                  ha="right", fontsize=5.5, color=style.QUIET)  # fmt: skip
    return seen


def _number(axes: Axes, points: np.ndarray) -> None:
    """1, 2, ... beside the points of classes; those that fall together are numbered together."""
    near = 0.05 * float(np.ptp(axes.get_xlim()))
    together: dict[tuple[float, float], list[str]] = {}
    for number, point in enumerate(points, 1):
        same = next((at for at in together if np.hypot(*(point - at)) < near), tuple(point))
        together.setdefault(same, []).append(str(number))
    turn = np.quantile(axes.get_xlim(), 0.7)
    for (x, y), numbers in together.items():
        axes.plot(x, y, "o", color="none", markeredgecolor=style.INK, markersize=4.5,
                  markeredgewidth=0.8)  # fmt: skip
        side = -1 if x > turn else 1  # always inside the frame
        axes.annotate(
            ", ".join(numbers), (x, y), (6 * side, 0), textcoords="offset points",
            ha="left" if side > 0 else "right", va="center",
            fontsize=style.SMALL, fontweight="bold",
            bbox={"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.6},
        )  # fmt: skip
