"""Fig. 6: two Blockout layers that share the nodes between them, with real numbers."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from blockout import masking
from blockout.show.colours import PALETTE
from blockout.show.figures import style
from blockout.show.figures.sheet import Sheet

SEED = 25
NODES, CLUSTERS = (7, 6, 5), 3
CELL = 0.125
SHARED = PALETTE[3]
"""The colour of what both layers use."""
SIGNED = LinearSegmentedColormap.from_list("signed", [PALETTE[1], "#ffffff", PALETTE[0]])

SETS = (1.15, 3.4, 5.65)
LAYERS = (2.275, 4.525)
TOP, MIDDLE, BOTTOM = 3.02, 1.85, 0.62
"""Inches: the middles of the columns and rows of the picture."""


class Step(NamedTuple):
    """One training step of two neighbouring layers."""

    p: list[np.ndarray]
    c: list[np.ndarray]
    masks: list[np.ndarray]
    weights: list[np.ndarray]


@style.styled
def sharing() -> Figure:
    """The assignments of the nodes between two layers mask both, and learn from both."""
    step = one_step()
    sheet = Sheet(3.7)
    _nodes(sheet, step)
    _weights(sheet, step)
    _memberships(sheet, step)
    _shared(sheet)
    return sheet.figure


def one_step() -> Step:
    """P, a draw C, the masks C_j C_{j-1}^T / k, and W_j = W~_j * mask."""
    chance = torch.Generator().manual_seed(SEED)
    p = [torch.rand(n, CLUSTERS, generator=chance) for n in NODES]
    c = [masking.draw_assignments(of_set, chance) for of_set in p]
    masks, weights = [], []
    for c_in, c_out in pairwise(c):
        weight = torch.randn(len(c_out), len(c_in), generator=chance)
        masks.append(masking.block_mask(c_out, c_in).numpy())
        weights.append(masking.masked_weight(weight, c_out, c_in).numpy())
    return Step([of_set.numpy() for of_set in p], [drawn.numpy() for drawn in c], masks, weights)


def _nodes(sheet: Sheet, step: Step) -> None:
    """The path of the data, at the top: nodes, weight, nodes, weight, nodes."""
    for number, x in enumerate(SETS):
        high = CELL * NODES[number]
        sheet.strip(x - CELL / 2, TOP - high / 2, CELL, step.c[number], upright=True)
        sheet.words(x, TOP + high / 2 + 0.1, f"$a_{number}$")
    for number, x in enumerate(LAYERS):
        half = CELL * NODES[number] / 2 + 0.06
        sheet.arrow((SETS[number] + 0.13, TOP), (x - half, TOP))
        sheet.arrow((x + half, TOP), (SETS[number + 1] - 0.13, TOP))


def _weights(sheet: Sheet, step: Step) -> None:
    """Both masks, and the weights that remain."""
    for number, x in enumerate(LAYERS):
        weight, mask = step.weights[number], step.masks[number]
        high, wide = (CELL * n for n in mask.shape)
        most = float(np.abs(weight).max())
        sheet.matrix(x - wide / 2, TOP - high / 2, CELL, weight, SIGNED, (-most, most))
        sheet.matrix(x - wide / 2, MIDDLE - high / 2, CELL, mask)
        sheet.arrow((x, MIDDLE + high / 2 + 0.04), (x, TOP - high / 2 - 0.04))
        j = number + 1
        sheet.words(x, TOP + high / 2 + 0.12, f"$W_{j} = \\tilde{{W}}_{j} \\circ M_{j}$")
        label = f"$M_{j} = C_{j} C_{j - 1}^\\top / k$"
        sheet.words(x, MIDDLE - high / 2 - 0.13, label)


def _memberships(sheet: Sheet, step: Step) -> None:
    """P of every set of nodes, the draw C, and arrows up to the masks."""
    wide = CELL * CLUSTERS
    for number, x in enumerate(SETS):
        high = CELL * NODES[number]
        low, left = BOTTOM - high / 2, x - wide / 2
        sheet.matrix(left - 0.8, low, CELL, step.p[number])
        sheet.clusters(left, low, CELL, step.c[number])
        sheet.arrow((left - 0.8 + wide + 0.05, BOTTOM), (left - 0.07, BOTTOM))
        sheet.words(left - 0.2, BOTTOM + 0.08, "draw", fontsize=style.TINY, color=style.QUIET)
        sheet.words(left - 0.8 + wide / 2, low - 0.13, f"$P_{number}$")
        sheet.words(x, low - 0.13, f"$C_{number}$")
        for side in {number - 1, number} & {0, 1}:
            end = LAYERS[side] + (0.52 if side < number else -0.52)
            colour = SHARED if number == 1 else style.INK
            sheet.arrow((x, low + high + 0.08), (end, MIDDLE - 0.2), color=colour)


def _shared(sheet: Sheet) -> None:
    """What the paper's figure is about."""
    wide, high = CELL * CLUSTERS + 0.1, CELL * NODES[1] + 0.1
    x, y = SETS[1] - wide / 2, BOTTOM - high / 2
    sheet.box(x, y, wide, high, facecolor="none", edgecolor=SHARED, linewidth=1.3)
    text = "$C_1$ is drawn once,\nmasks both layers and\nlearns from both"
    look = {"color": SHARED, "fontsize": style.SMALL, "linespacing": 1.35}
    sheet.words(SETS[1], MIDDLE + 0.08, text, **look)
