"""Fig. 11: to how many clusters each class belongs."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockout.figures import examples, selection, style
from blockout.report.numbers import expected_clusters, quartiles
from blockout.report.section import PALETTE
from blockout.report.view import RunView

EXAMPLES = 3
BACKGROUND = {"boxstyle": "round,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.75}


@style.styled
def classes(runs: Sequence[RunView], marked: Sequence[str] = ()) -> Figure:
    """A panel a run. Classes stand in the order of the first one, everywhere.

    Numbered are those ``marked`` by name, or else the three with the most clusters over all runs.
    """
    runs = selection.on_the_same_classes(runs)
    counts = [expected_clusters(p) for run in runs if (p := run.class_memberships) is not None]
    order = np.argsort(counts[0], kind="stable")
    chosen = examples.indices_of(marked, runs[0])
    if not chosen:
        chosen = np.argsort(np.mean(counts, axis=0), kind="stable")[: -EXAMPLES - 1 : -1].tolist()
    across = len(runs) if len(runs) <= 3 else 2
    down = -(-len(runs) // across)
    pictured = (runs[0].folder / "thumbnails.png").exists()
    heights = [1.75 * down, 0.75 if pictured else 0.3]
    figure = style.new_figure(sum(heights))
    above, below = style.stacked(figure, heights)
    panels = list(above.subplots(down, across, squeeze=False, sharey=True).flat)
    titles = _titles(runs, most=117 // across)
    for number, (axes, title) in enumerate(zip(panels, titles, strict=False)):
        _draw(axes, counts[number][order], ", in the order of (a)" if number else "")
        _number(axes, counts[number], order, chosen)
        axes.set_title(title)
        if number:
            _correlate(axes, counts[0], counts[number])
    for number, axes in enumerate(panels):
        axes.set_visible(number < len(runs))
        if number % across == 0:
            axes.set_ylabel("expected clusters")
    top = max(values.max() for values in counts)
    above.axes[0].set_ylim(0, 1.2 * max(top, 1))
    examples.show(below, runs[0], chosen, each=3)
    return figure


def _titles(runs: Sequence[RunView], most: int) -> list[str]:
    """On two lines each where one of them is too long for one."""
    found = []
    for number, (run, label) in enumerate(zip(runs, selection.labels(runs), strict=True)):
        named = label if "nodes" in label else f"{label}, {selection.width(run)} nodes"
        found.append(f"{style.letter(number)} {named}")
    if max(map(len, found)) <= most:
        return [style.plain(title) for title in found]
    halves = [title.rpartition(", ") for title in found]
    return [
        style.plain(f"{textwrap.fill(f'{first},', most)}\n{textwrap.fill(last, most)}")
        for first, _, last in halves
    ]


def _correlate(axes: Axes, first: np.ndarray, values: np.ndarray) -> None:
    """How alike the numbers of clusters are in two runs, where they differ at all."""
    if first.std() > 1e-9 and values.std() > 1e-9:
        text = f"r = {np.corrcoef(first, values)[0, 1]:.2f} with (a)"
        axes.annotate(text, (0.02, 0.98), xycoords="axes fraction", va="top", color=style.QUIET,
                      fontsize=style.SMALL)  # fmt: skip


def _draw(axes: Axes, values: np.ndarray, order: str) -> None:
    low, median, high = quartiles(values)
    axes.bar(range(len(values)), values, width=0.75, color=PALETTE[5], linewidth=0,
             rasterized=len(values) > 300)  # fmt: skip
    for value, dashes in ((low, ":"), (median, "-"), (high, ":")):
        axes.axhline(value, color="black", linestyle=dashes, linewidth=0.9)
    axes.annotate(f"median {median:.2f}", (0, median), (2, 2), textcoords="offset points",
                  fontsize=style.SMALL, bbox=BACKGROUND)  # fmt: skip
    axes.set_xlim(-1, len(values))
    axes.set_xticks([])
    axes.set_xlabel(f"{len(values)} classes{order}")


def _number(axes: Axes, values: np.ndarray, order: np.ndarray, chosen: Sequence[int]) -> None:
    """1, 2, ... in a row above their bars, each with a line to its own."""
    place = np.argsort(order)
    row = 1.06 * max((values[c] for c in chosen), default=0)
    apart = _spread([float(place[c]) for c in chosen], 0.055 * len(order), len(order) - 1)
    for number, (c, x) in enumerate(zip(chosen, apart, strict=True), 1):
        axes.bar(place[c], values[c], width=0.9, color=PALETTE[3], linewidth=0)
        axes.annotate(
            str(number), (float(place[c]), values[c]), (x, row), ha="center", va="bottom",
            fontsize=style.SMALL, fontweight="bold",
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": PALETTE[3], "shrinkA": 0,
                        "shrinkB": 0},
        )  # fmt: skip


def _spread(places: Sequence[float], gap: float, end: float) -> list[float]:
    """The nearest places in their order that lie a gap apart; up to the end where they fit.

    >>> _spread([98, 40, 99, 99], gap=4, end=99)
    [91, 40, 95, 99]
    """
    found, limit = list(places), end
    for i in sorted(range(len(places)), key=lambda i: (places[i], i), reverse=True):
        found[i] = min(places[i], limit)
        limit = found[i] - gap
    return found
