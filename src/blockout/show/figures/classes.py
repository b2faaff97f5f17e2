"""Fig. 11: to how many clusters each class belongs."""

import textwrap
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockout.runs import Run
from blockout.show.classes import correlation, expected_clusters, quartiles
from blockout.show.colours import PALETTE
from blockout.show.figures import examples, style
from blockout.show.figures.selection import on_the_same_classes
from blockout.show.methods import labels

PerClass = Float[np.ndarray, " classes"]
EXAMPLES = 3
BACKGROUND = {"boxstyle": "round,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.75}
LINK = {"arrowstyle": "-", "linewidth": 0.5, "color": PALETTE[3], "shrinkA": 0, "shrinkB": 0}


@style.styled
def classes(runs: Sequence[Run], marked: Sequence[str] = ()) -> Figure:
    """A panel per run. In each, classes are in the order of the first run.

    Classes that are ``marked`` by name are numbered; without names, the three with the most
    clusters over all runs.
    """
    runs = on_the_same_classes(runs)
    counts = [expected_clusters(p) for run in runs if (p := run.class_memberships) is not None]
    order = np.argsort(counts[0], kind="stable")
    most = np.argsort(np.mean(counts, axis=0), kind="stable")[: -EXAMPLES - 1 : -1].tolist()
    chosen = examples.indices_of(marked, runs[0]) or most
    across = len(runs) if len(runs) <= 3 else 2
    down = -(-len(runs) // across)
    heights = [1.75 * down, examples.height(runs[0])]
    figure = style.new_figure(sum(heights))
    above, below = style.rows(figure, heights)
    panels = list(above.subplots(down, across, squeeze=False, sharey=True).flat)
    for axes in panels[len(runs) :]:
        axes.set_visible(False)
    titles = _titles(runs, most=117 // across)
    for number, (axes, values) in enumerate(zip(panels, counts, strict=False)):
        _draw(axes, values[order])
        _number(axes, values, order, chosen)
        axes.set(title=titles[number], ylabel="" if number % across else "expected clusters")
        if number:
            axes.set_xlabel(f"{len(values)} classes, in the order of (a)")
            _correlate(axes, counts[0], values)
    panels[0].set_ylim(0, 1.2 * max(1, np.max(counts)))
    examples.show(below, runs[0], chosen, each=3)
    return figure


def _titles(runs: Sequence[Run], most: int) -> list[str]:
    """Each on at least two lines if one of them is too long."""
    found = [f"{style.letter(i)} {label}" for i, label in enumerate(labels(runs))]
    if max(map(len, found)) > most:
        halves = [title.rpartition(", ") for title in found]
        found = [
            f"{textwrap.fill(f'{first},', most)}\n{textwrap.fill(last, most)}"
            for first, _, last in halves
        ]
    return [style.plain(title) for title in found]


def _correlate(axes: Axes, first: PerClass, values: PerClass) -> None:
    """How similar the numbers of clusters are in two runs, if they vary."""
    if found := correlation(first, values):
        text = f"r = {found.pearson:.2f} with (a)"
        look = {"va": "top", "color": style.QUIET, "fontsize": style.SMALL}
        axes.annotate(text, (0.02, 0.98), xycoords="axes fraction", **look)


def _draw(axes: Axes, values: PerClass) -> None:
    low, median, high = quartiles(values)
    look = {"color": PALETTE[5], "linewidth": 0, "rasterized": len(values) > 300}
    axes.bar(range(len(values)), values, width=0.75, **look)
    for value, dashes in ((low, ":"), (median, "-"), (high, ":")):
        axes.axhline(value, color="black", linestyle=dashes, linewidth=0.9)
    text, look = f"median {median:.2f}", {"fontsize": style.SMALL, "bbox": BACKGROUND}
    axes.annotate(text, (0, median), (2, 2), textcoords="offset points", **look)
    axes.set(xlim=(-1, len(values)), xticks=[], xlabel=f"{len(values)} classes")


def _number(axes: Axes, values: PerClass, order: np.ndarray, chosen: Sequence[int]) -> None:
    """1, 2, ... in a row above their bars, each with a line to its own."""
    place = np.argsort(order)
    row = 1.06 * max((values[c] for c in chosen), default=0)
    apart = _spread([float(place[c]) for c in chosen], 0.055 * len(order), len(order) - 1)
    look = {"ha": "center", "va": "bottom", "fontsize": style.SMALL, "fontweight": "bold"}
    for number, (c, x) in enumerate(zip(chosen, apart, strict=True), 1):
        bar = float(place[c]), values[c]
        axes.bar(*bar, width=0.9, color=PALETTE[3], linewidth=0)
        axes.annotate(str(number), bar, (x, row), arrowprops=LINK, **look)


def _spread(places: Sequence[float], gap: float, end: float) -> list[float]:
    """The nearest places in the same order that are ``gap`` apart and not beyond ``end``.

    >>> _spread([98, 40, 99, 99], gap=4, end=99)
    [91, 40, 95, 99]
    """
    found, limit = list(places), end
    for i in sorted(range(len(places)), key=lambda i: (places[i], i), reverse=True):
        found[i] = min(places[i], limit)
        limit = found[i] - gap
    return found
