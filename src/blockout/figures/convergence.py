"""Fig. 8: training cost, training accuracy and test accuracy through training, by method."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blockout.figures import selection, style
from blockout.report.section import PALETTE
from blockout.report.view import RunView

COLOURS = {
    "baseline": (PALETTE[7],), "fc": (PALETTE[4],), "dropout": (PALETTE[3],),
    "dropconnect": (PALETTE[1],), "blockout": (PALETTE[0], PALETTE[2], PALETTE[5], style.INK),
}  # fmt: skip
"""Of the curves of each method, in turn; without yellow, which is lost on white."""
DASHES = ("-", "--", "-.", ":")


@dataclass
class Curve:
    """Runs of one label: lines of x and y for each."""

    label: str
    look: dict[str, Any]
    cost: list[np.ndarray] = field(default_factory=list)
    train: list[np.ndarray] = field(default_factory=list)
    test: list[np.ndarray] = field(default_factory=list)


@style.styled
def convergence(runs: Sequence[RunView]) -> Figure:
    """Several seeds of one kind are drawn as their mean in the band of all."""
    runs = selection.in_order([run for run in runs if run.steps or run.epochs])
    if not runs:
        raise selection.CannotDraw("no given run has logged anything yet")
    curves = _curves(runs)
    figure = style.new_figure(2.15 + 0.16 * -(-len(curves) // _legend_columns(curves)))
    panels = figure.subplots(1, 3)
    titles = ("training cost", "training accuracy (%)", "test accuracy (%)")
    for number, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        axes.set_title(f"{style.letter(number)} {title}")
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y", color=style.FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
    for curve in curves:
        _draw(panels[0], curve.cost, curve.look, label=style.plain(curve.label))
        _draw(panels[1], curve.train, curve.look | {"marker": "o"})
        _draw(panels[2], curve.test, curve.look | {"marker": "o"})
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=_legend_columns(curves))
    return figure


def _curves(runs: Sequence[RunView]) -> list[Curve]:
    found: dict[str, Curve] = {}
    kinds: Counter[str] = Counter()
    for label, run in zip(selection.labels(runs), runs, strict=True):
        if label not in found:
            found[label] = Curve(label, _look(run.method, kinds[run.method]))
            kinds[run.method] += 1
        curve = found[label]
        curve.cost.append(_line(run.steps or run.epochs, "loss", "epoch_loss"))
        curve.train.append(_line(run.epochs or run.steps, "train_accuracy"))
        curve.test.append(_line(run.epochs, "test_accuracy", "holdout_accuracy"))
    for curve in found.values():
        if len(curve.cost) > 1:
            curve.label += f", {len(curve.cost)} seeds"
    return list(found.values())


def _legend_columns(curves: Sequence[Curve]) -> int:
    longest = max(len(curve.label) for curve in curves)
    return 3 if longest <= 38 else 2 if longest <= 60 else 1


def _look(method: str, number: int) -> dict[str, Any]:
    turn, place = divmod(number, len(COLOURS[method]))
    return {"color": COLOURS[method][place], "linestyle": DASHES[turn % len(DASHES)]}


def _line(entries: Sequence[dict[str, Any]], *names: str) -> np.ndarray:
    """(epochs, values) by the first name that the entries have."""
    name = next((n for n in names if any(n in entry for entry in entries)), names[0])
    pairs = [(entry["epoch"], entry[name]) for entry in entries if name in entry]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2).T


def _draw(axes: Axes, lines: Sequence[np.ndarray], look: dict[str, Any], label: str = "") -> None:
    lines = [line for line in lines if line.size]
    if not lines:
        if label:
            axes.plot([], [], label=label, **look)
        return
    shared = [x for x in lines[0][0].tolist() if all(x in line[0] for line in lines)]
    values = np.array([line[1][np.isin(line[0], shared)] for line in lines])
    axes.plot(shared, values.mean(0), label=label, **look)
    if len(values) > 1:
        axes.fill_between(shared, values.min(0), values.max(0), color=look["color"], alpha=0.2,
                          linewidth=0)  # fmt: skip
