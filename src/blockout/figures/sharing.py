"""Fig. 6: two Blockout layers that share the nodes between them, with real numbers."""

from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from blockout import masking
from blockout.figures import boxes, style
from blockout.layers import BlockoutLinear
from blockout.memberships import Memberships
from blockout.report.section import PALETTE

SEED = 25
NODES, CLUSTERS = (7, 6, 5), 3
CELL = 0.125
SHARED = PALETTE[3]
"""The colour of what both layers use."""
SIGNED = LinearSegmentedColormap.from_list("signed", [PALETTE[1], "#ffffff", PALETTE[0]])

SETS = (1.15, 3.4, 5.65)
LAYERS = (2.275, 4.525)
TOP, MIDDLE, BOTTOM = 3.02, 1.85, 0.62
"""Inches: where the columns and rows of the picture have their middle."""


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
    figure = style.new_figure(3.7, constrained=False)
    axes = boxes.sheet(figure)
    _nodes(axes, step)
    _weights(axes, step)
    _memberships(axes, step)
    _shared(axes)
    return figure


def one_step() -> Step:
    """P, a draw C, the masks C_j C_{j-1}^T / k, and W_j = W~_j * mask."""
    chance = torch.Generator().manual_seed(SEED)
    sets = [
        Memberships(n, CLUSTERS, probability=torch.rand(n, CLUSTERS, generator=chance))
        for n in NODES
    ]
    c = [masking.draw_assignments(nodes.probabilities, chance) for nodes in sets]
    masks, weights = [], []
    for number in (1, 2):
        layer = BlockoutLinear(
            NODES[number - 1], NODES[number], CLUSTERS, inputs=sets[number - 1],
            outputs=sets[number], device="meta",
        )  # fmt: skip
        weight = torch.randn(layer.weight.shape, generator=chance)
        masks.append(masking.block_mask(c[number], c[number - 1]).numpy())
        weights.append(masking.masked_weight(weight, c[number], c[number - 1]).numpy())
    p = [nodes.probabilities.detach().numpy() for nodes in sets]
    return Step(p, [drawn.numpy() for drawn in c], masks, weights)


def _nodes(axes: Axes, step: Step) -> None:
    """The way of the data, above: nodes, weight, nodes, weight, nodes."""
    for number, x in enumerate(SETS):
        high = CELL * NODES[number]
        boxes.strip(axes, x - CELL / 2, TOP - high / 2, CELL, step.c[number], upright=True)
        boxes.words(axes, x, TOP + high / 2 + 0.1, f"$a_{number}$")
    for number, x in enumerate(LAYERS):
        half = CELL * NODES[number] / 2 + 0.06
        boxes.arrow(axes, (SETS[number] + 0.13, TOP), (x - half, TOP))
        boxes.arrow(axes, (x + half, TOP), (SETS[number + 1] - 0.13, TOP))


def _weights(axes: Axes, step: Step) -> None:
    """Both masks, and the weights that they leave."""
    for number, x in enumerate(LAYERS):
        weight, mask = step.weights[number], step.masks[number]
        high, wide = (CELL * n for n in mask.shape)
        most = float(np.abs(weight).max())
        boxes.matrix(axes, x - wide / 2, TOP - high / 2, CELL, weight, SIGNED, (-most, most))
        boxes.matrix(axes, x - wide / 2, MIDDLE - high / 2, CELL, mask)
        boxes.arrow(axes, (x, MIDDLE + high / 2 + 0.04), (x, TOP - high / 2 - 0.04))
        j = number + 1
        boxes.words(axes, x, TOP + high / 2 + 0.12, f"$W_{j} = \\tilde{{W}}_{j} \\circ M_{j}$")
        label = f"$M_{j} = C_{j} C_{j - 1}^\\top / k$"
        boxes.words(axes, x, MIDDLE - high / 2 - 0.13, label)


def _memberships(axes: Axes, step: Step) -> None:
    """P of every set of nodes, what was drawn from it, and the way up to the masks."""
    wide = CELL * CLUSTERS
    for number, x in enumerate(SETS):
        high = CELL * NODES[number]
        low, left = BOTTOM - high / 2, x - wide / 2
        boxes.matrix(axes, left - 0.8, low, CELL, step.p[number])
        boxes.clusters(axes, left, low, CELL, step.c[number])
        boxes.arrow(axes, (left - 0.8 + wide + 0.05, BOTTOM), (left - 0.07, BOTTOM))
        boxes.words(axes, left - 0.2, BOTTOM + 0.08, "draw", fontsize=5.5, color=style.QUIET)
        boxes.words(axes, left - 0.8 + wide / 2, low - 0.13, f"$P_{number}$")
        boxes.words(axes, x, low - 0.13, f"$C_{number}$")
        for side in {number - 1, number} & {0, 1}:
            end = LAYERS[side] + (0.52 if side < number else -0.52)
            colour = SHARED if number == 1 else style.INK
            boxes.arrow(axes, (x, low + high + 0.08), (end, MIDDLE - 0.2), color=colour)


def _shared(axes: Axes) -> None:
    """What the paper's figure is about."""
    wide, high = CELL * CLUSTERS + 0.1, CELL * NODES[1] + 0.1
    boxes.box(axes, SETS[1] - wide / 2, BOTTOM - high / 2, wide, high, facecolor="none",
              edgecolor=SHARED, linewidth=1.3)  # fmt: skip
    text = "$C_1$ is drawn once,\nmasks both layers and\nlearns from both"
    boxes.words(axes, SETS[1], MIDDLE + 0.08, text, color=SHARED, fontsize=style.SMALL,
                linespacing=1.35)  # fmt: skip
