"""Fig. 4: Dropout as a mask of weights."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blockout import masking
from blockout.figures import boxes, style
from blockout.report.section import PALETTE

SEED = 20
NODES = (8, 6)


@style.styled
def dropout() -> Figure:
    """Fig. 4: dropped inputs and outputs are columns and rows of zeros in the weight."""
    chance = torch.Generator().manual_seed(SEED)
    c_in, c_out = (masking.draw_assignments(torch.full((n, 1), 0.6), chance).numpy() for n in NODES)
    figure = style.new_figure(2.2, 4.6, constrained=False)
    axes = boxes.sheet(figure)
    boxes.words(axes, 0.08, 2.08, "(a) a layer with dropped nodes", ha="left")
    _connections(axes, c_in, c_out)
    boxes.words(axes, 2.3, 2.08, "(b) its weight with a mask, $W \\circ M$", ha="left")
    cell, x, y = 0.19, 2.75, 0.3
    boxes.block_matrix(axes, x, y, cell, c_out, c_in)
    boxes.strip(axes, x - cell - 0.06, y, cell, c_out, upright=True)
    boxes.strip(axes, x, y + len(c_out) * cell + 0.06, cell, c_in, upright=False)
    boxes.words(axes, x - cell - 0.16, y + 0.57, "$y$")
    boxes.words(axes, x + 0.76, y + len(c_out) * cell + 0.36, "$x$")
    return figure


def _connections(axes: Axes, c_in: np.ndarray, c_out: np.ndarray) -> None:
    """Nodes in two columns; lines where both ends are kept."""
    cell, gap, left, right = 0.15, 0.055, 0.35, 1.65
    heights = [_centres(len(c), cell + gap, 1.0) for c in (c_in, c_out)]
    for i, j in np.ndindex(len(c_out), len(c_in)):
        if c_out[i, 0] * c_in[j, 0]:
            axes.plot([left + cell, right], [heights[0][j], heights[1][i]], color=PALETTE[0],
                      linewidth=0.5, alpha=0.7)  # fmt: skip
    for x, c, centres in ((left, c_in, heights[0]), (right, c_out, heights[1])):
        for kept, y in zip(c[:, 0], centres, strict=True):
            boxes.node_box(axes, x, y - cell / 2, cell, cell, [0] if kept else [])
    boxes.words(axes, left - 0.13, 1.0, "$x$")
    boxes.words(axes, right + cell + 0.13, 1.0, "$y$")


def _centres(count: int, step: float, middle: float) -> list[float]:
    """From above."""
    return [middle + step * ((count - 1) / 2 - i) for i in range(count)]
