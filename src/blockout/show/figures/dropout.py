"""Fig. 4: Dropout as a mask of weights."""

import numpy as np
import torch
from matplotlib.figure import Figure

from blockout.masking import draw_assignments
from blockout.show.colours import PALETTE
from blockout.show.figures import style
from blockout.show.figures.sheet import Codes, Sheet

SEED = 20
NODES = (8, 6)


@style.styled
def dropout() -> Figure:
    """Dropped inputs and outputs are columns and rows of zeros in the weight."""
    chance = torch.Generator().manual_seed(SEED)
    c_in, c_out = (draw_assignments(torch.full((n, 1), 0.6), chance).numpy() for n in NODES)
    sheet = Sheet(2.2, 4.6)
    sheet.words(0.08, 2.08, "(a) a layer with dropped nodes", ha="left")
    _connections(sheet, c_in, c_out)
    sheet.words(2.3, 2.08, "(b) its weight with a mask, $W \\circ M$", ha="left")
    cell, x, y = 0.19, 2.75, 0.3
    sheet.block_matrix(x, y, cell, c_out, c_in)
    sheet.strip(x - cell - 0.06, y, cell, c_out, upright=True)
    sheet.strip(x, y + len(c_out) * cell + 0.06, cell, c_in, upright=False)
    sheet.words(x - cell - 0.16, y + 0.57, "$y$")
    sheet.words(x + 0.76, y + len(c_out) * cell + 0.36, "$x$")
    return sheet.figure


def _connections(sheet: Sheet, c_in: Codes, c_out: Codes) -> None:
    """Nodes in two columns; lines where both ends are kept."""
    cell, step, left, right = 0.15, 0.205, 0.35, 1.65
    inputs, outputs = ([1 + step * ((n - 1) / 2 - i) for i in range(n)] for n in NODES)
    look = {"color": PALETTE[0], "linewidth": 0.5, "alpha": 0.7}
    for i, j in np.argwhere(c_out * c_in.T):
        sheet.axes.plot([left + cell, right], [inputs[j], outputs[i]], **look)
    for x, c, centres in ((left, c_in, inputs), (right, c_out, outputs)):
        for kept, y in zip(c[:, 0], centres, strict=True):
            sheet.nodes(x, y - cell / 2, cell, cell, [0] if kept else [])
    sheet.words(left - 0.13, 1.0, "$x$")
    sheet.words(right + cell + 0.13, 1.0, "$y$")
