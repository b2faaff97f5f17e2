"""Fig. 9: how each P_j is distributed through training."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blockout.runs import Run
from blockout.runs.run import Distributions
from blockout.show.distributions import through_training
from blockout.show.figures import style
from blockout.show.figures.selection import learning
from blockout.show.methods import labels

FAINTEST = 0.4
"""Exponent of the colours: a share of 1 % stays visible beside one of 100 %."""


@style.styled
def distributions(runs: Sequence[Run]) -> Figure:
    """A row per run, a column per set of nodes: shares of P in warm colours, the median in black.

    The final P of a finished run comes last.
    """
    runs = learning(runs, finished=False)
    sets = list(dict.fromkeys(name for run in runs for name in run.distributions))
    figure = style.new_figure(0.45 + 1.3 * len(runs))
    rows = style.rows(figure, [1.0] * len(runs), labels(runs))
    for row, run in zip(rows, runs, strict=True):
        seen = through_training(run)
        panels = row.subplots(1, len(sets), squeeze=False, sharey=True)[0]
        for axes, of in zip(panels, sets, strict=True):
            if of not in seen:
                axes.set_axis_off()
                continue
            mesh = _draw(axes, seen[of])
            axes.set_title(style.symbol(of) if row is rows[0] else "", loc="center")
            axes.set_xlabel("iteration" if row is rows[-1] else "")
        panels[0].set_ylabel("probability")
        bar = row.colorbar(mesh, ax=list(panels), pad=0.015, aspect=12, ticks=[0, 0.1, 0.5, 1])
        bar.set_label("share of $P_j$")
        bar.outline.set_linewidth(0.5)  # pyright: ignore
    return figure


def _draw(axes: Axes, seen: Distributions) -> QuadMesh:
    shares = seen.histograms / seen.histograms.sum(1, keepdims=True)
    heights = np.linspace(0, 1, shares.shape[1] + 1)
    look = {"cmap": style.HEAT, "norm": PowerNorm(FAINTEST, 0, 1), "rasterized": True}
    mesh = axes.pcolormesh(_edges(seen.steps), heights, shares.T, **look)
    axes.plot(seen.steps, seen.quartiles[:, 1], color="black", linewidth=1.2)
    axes.set(ylim=(-0.015, 1.015), yticks=[0, 0.5, 1])
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    return mesh


def _edges(steps: np.ndarray) -> np.ndarray:
    """Halfway between the logged steps; the first and the last are as wide as their neighbours.

    >>> _edges(np.array([50, 100, 120])).tolist()
    [25.0, 75.0, 110.0, 130.0]
    """
    if len(steps) == 1:
        return np.array([0.0, 2.0 * max(steps[0], 1)])
    middle = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([[2 * steps[0] - middle[0]], middle, [2 * steps[-1] - middle[-1]]])
