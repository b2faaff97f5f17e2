"""The figure of the benchmark: what each set gains, and what size costs."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from blockout.reproduce.comparison import TUNED_DROPOUT
from blockout.reproduce.statistics import Difference
from blockout.show.colours import PALETTE
from blockout.show.figures import style
from head_benchmark.bars import APART, MEAN, MOST_CONNECTIONS
from head_benchmark.sets import DEFAULT
from head_benchmark.summary import Point, SetSummary

BLUE, ORANGE, GREEN = PALETTE[:3]
FOREST = {
    DEFAULT: ("default", BLUE, "o", -0.16),
    TUNED_DROPOUT: ("tuned Dropout", ORANGE, "s", 0.16),
}
"""Label, colour, marker and place in the line of a set."""
USUAL_NODES = 512
ON_FRONTIER = {
    "grocery": "(b) Grocery, guided: budget (seeds if few)",
    "cifar100-50": "(c) CIFAR-100, 50 per class, guided: the same",
}
WITH_AND_WITHOUT = {True: "with a linear classifier", False: "without it"}
NAMES = {
    "grocery": "Grocery, features",
    "cifar10-50": "CIFAR-10, 50 per class, features",
    "cifar100-50": "CIFAR-100, 50 per class, features",
    "cifar10": "CIFAR-10, all images, features",
    "cifar100": "CIFAR-100, all images, features",
    "shapes": "shapes, from nothing",
    "grocery-from-nothing": "Grocery at 48 px, from nothing",
    "cifar100-from-nothing": "CIFAR-100, from nothing",
}


@style.styled
def heads(found: Sequence[SetSummary]) -> Figure:
    """Sets and settings without runs keep their place and say so."""
    figure = style.new_figure(4.2, 7.4)
    parts: Any = figure.subfigures(1, 2, width_ratios=(1.35, 1))
    left, right = parts
    _forest(left.subplots(), [its for its in found if its.name not in APART])
    panels: Any = right.subplots(len(ON_FRONTIER), 1, sharex=True)
    by_name = {its.name: its for its in found}
    for axes, (name, title) in zip(panels, ON_FRONTIER.items(), strict=True):
        _frontier(axes, by_name[name], title)
    panels[-1].set_xlabel("connections left, linear classifier counted, %")
    labelled = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    right.legend(labelled.values(), labelled, loc="outside lower center", ncols=2)
    return figure


# --- differences ----------------------------------------------------------------------------------


def _forest(axes: Axes, sets: Sequence[SetSummary]) -> None:
    axes.set_title("(a) against a linear classifier (digits: dense layers)")
    axes.axvline(0, color=style.QUIET, linewidth=0.6)
    axes.axvline(MEAN, color=style.QUIET, linewidth=0.6, linestyle=":")
    for place, its in enumerate(sets):
        drawn = [_interval(axes, place, its.difference(row), row) for row in FOREST]
        if not any(drawn):
            axes.text(0, place, " n = 0", va="center", color=style.QUIET, fontsize=style.TINY)
    axes.set_yticks(range(len(sets)), [NAMES.get(its.name, its.name) for its in sets])
    axes.set_ylim(len(sets) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("points of test accuracy, paired by seed, 95 % interval")
    axes.grid(axis="y", color=style.FAINT, linewidth=0.4)
    axes.set_axisbelow(True)
    axes.legend(handles=_legend(), loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)


def _interval(axes: Axes, place: int, difference: Difference | None, row: str) -> bool:
    if difference is None:
        return False
    _, colour, marker, beside = FOREST[row]
    y = place + beside
    axes.plot(difference.mean, y, marker, color=colour, markersize=4, zorder=3)
    edge = difference.mean
    if difference.low is not None and difference.high is not None:
        axes.plot([difference.low, difference.high], [y, y], color=colour, linewidth=1.2)
        edge = difference.high
    axes.annotate(
        f"n = {difference.seeds}",
        (edge, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=style.TINY,
        color=style.QUIET,
    )
    return True


def _legend() -> list[Line2D]:
    return [
        Line2D([], [], color=colour, marker=marker, markersize=4, label=label)
        for label, colour, marker, _ in FOREST.values()
    ]


# --- accuracy and size ----------------------------------------------------------------------------


def _frontier(axes: Axes, its: SetSummary, title: str) -> None:
    axes.set_title(title)
    axes.set_ylabel("points against linear")
    axes.axhline(0, color=style.QUIET, linewidth=0.6)
    axes.axvline(MOST_CONNECTIONS, color=style.QUIET, linewidth=0.6, linestyle=":")
    dropout = its.difference(TUNED_DROPOUT)
    level = [] if dropout is None else [dropout.mean] * 2
    axes.plot([], [], "--", color=ORANGE, linewidth=0.9, label="tuned Dropout")
    for y in level[:1]:
        axes.axhline(y, color=ORANGE, linewidth=0.9, linestyle="--")
    for linear, label in WITH_AND_WITHOUT.items():
        _series(axes, [p for p in its.frontier if p.linear is linear], linear, label)
    axes.margins(0.1, 0.2)
    if not its.frontier:
        axes.text(0.5, 0.5, "n = 0", transform=axes.transAxes, ha="center", color=style.QUIET)


def _series(axes: Axes, points: Sequence[Point], linear: bool, label: str) -> None:
    """Settings by size; those with the usual nodes are joined."""
    colour = BLUE if linear else GREEN
    known = [(p, p.against_baseline.mean) for p in points if p.against_baseline]
    usual = [(p.with_linear, mean) for p, mean in known if p.nodes == USUAL_NODES]
    joined = [x for x, _ in usual], [y for _, y in usual]
    axes.plot(*joined, "o-", color=colour, linewidth=0.7, markersize=4, label=label)
    for point, mean in known:
        if point.nodes != USUAL_NODES:
            name = f"{point.nodes} nodes"
            axes.plot(point.with_linear, mean, "D", color=colour, markersize=4, label=name)
        axes.annotate(
            _named(point),
            (point.with_linear, mean),
            xytext=(0, 4 if linear else -4),
            textcoords="offset points",
            ha="center",
            va="bottom" if linear else "top",
            fontsize=style.TINY,
        )


def _named(point: Point) -> str:
    """Its budget, and its seeds where they are fewer than wanted."""
    return f"{point.budget:g}" if point.n >= point.wanted else f"{point.budget:g} ({point.n})"
