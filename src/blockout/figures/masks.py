"""Fig. 5: masks of weights, as they are drawn and with their nodes in order."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from blockout import masking
from blockout.figures import selection, style
from blockout.report.numbers import expected_mask, order_by_code, shrunk
from blockout.report.view import RunView

NODES, CLUSTERS, KEPT, SEED = 48, 4, 0.5, 5
"""Of the examples that are drawn by chance."""
MOST = 256
"""Cells a side of a picture."""


class Mask(NamedTuple):
    title: str
    as_it_is: np.ndarray
    in_order: np.ndarray
    most: float = 1.0
    """What is drawn darkest."""
    axes: tuple[str, str] = ("inputs", "outputs")


@style.styled
def masks(runs: Sequence[RunView]) -> Figure:
    """Dropout, Blockout, DropConnect, and what a run has learned: the mean of its masks."""
    run = most_branched(runs)
    chance = torch.Generator().manual_seed(SEED)
    columns = [
        drawn("Dropout", 1, chance),
        drawn(f"Blockout, {CLUSTERS} clusters", CLUSTERS, chance),
        dropconnect(chance),
        *learned(run),
    ]
    figure = style.new_figure(2.8)
    rows = figure.subplots(2, len(columns))
    for number, (mask, pair) in enumerate(zip(columns, rows.T, strict=True)):
        for axes, matrix in zip(pair, mask[1:3], strict=True):
            axes.imshow(matrix, cmap=style.SHADE, vmin=0, vmax=mask.most, aspect="auto",
                        interpolation="nearest")  # fmt: skip
            axes.set_box_aspect(1)
            style.framed(axes)
            axes.set_ylabel(mask.axes[1], labelpad=2)
        pair[1].set_xlabel(mask.axes[0], labelpad=2)
        pair[0].set_title(f"{style.letter(number)} {mask.title}")
    for row, words in zip(rows, ("as it is", "ordered by code"), strict=True):
        row[0].annotate(words, (-0.25, 0.5), xycoords="axes fraction", rotation=90, ha="right",
                        va="center", color=style.QUIET)  # fmt: skip
    return figure


def most_branched(runs: Sequence[RunView]) -> RunView:
    """Of the finished Blockout runs, the one with the fewest connections left; one whose branches
    are all the same only where there is no other."""
    found = selection.branching(runs, finished=True)
    found = [run for run in found if run.structure is not None]
    found = [run for run in found if not run.one_branch] or found
    if not found:
        raise selection.CannotDraw("needs a finished run with Blockout")
    return min(found, key=_connections_left)


def drawn(title: str, clusters: int, chance: torch.Generator) -> Mask:
    """C_j C_{j-1}^T / k of one draw; with one cluster it is Dropout on both sides."""
    p = torch.full((NODES, clusters), KEPT if clusters == 1 else 0.3)
    c_out, c_in = (masking.draw_assignments(p, chance) for _ in range(2))
    mask = masking.block_mask(c_out, c_in).numpy()
    rows, columns = order_by_code(c_out.numpy()), order_by_code(c_in.numpy())
    return Mask(title, mask, mask[rows][:, columns])


def dropconnect(chance: torch.Generator) -> Mask:
    """Every weight by itself: no order of nodes makes blocks of it, only rows and columns by how
    many weights they keep."""
    mask = torch.bernoulli(torch.full((NODES, NODES), KEPT), generator=chance).numpy()
    rows, columns = (np.argsort(-mask.sum(axis), kind="stable") for axis in (1, 0))
    return Mask("DropConnect", mask, mask[rows][:, columns])


def learned(run: RunView) -> list[Mask]:
    """P_j P_{j-1}^T / k of the first and of the last layer."""
    assert run.structure is not None
    found = []
    for layer in dict.fromkeys((run.structure.layers[0], run.structure.layers[-1])):
        p_out, p_in = run.memberships[layer.outputs], run.memberships[layer.inputs]
        as_it_is = expected_mask(_some(p_out), _some(p_in))
        ordered = [shrunk(p[order_by_code(p)], MOST) for p in (p_out, p_in)]
        in_order = expected_mask(*ordered)
        names = _named(layer.inputs, run), _named(layer.outputs, run)
        title = f"learned, {layer.name.rpartition('.')[2]}"
        found.append(Mask(title, as_it_is, in_order, float(in_order.max()), names))
    return found


def _some(p: np.ndarray) -> np.ndarray:
    """Nodes at even distances: the mean of neighbours that have nothing in common shows nothing."""
    return p[np.linspace(0, len(p) - 1, min(len(p), MOST // 2)).round().astype(int)]


def _named(of: str, run: RunView) -> str:
    p = run.memberships[of]
    return f"{len(p)} {'classes' if p is run.class_memberships else f'nodes of {style.symbol(of)}'}"


def _connections_left(run: RunView) -> float:
    assert run.structure is not None
    costs = run.structure.costs
    return sum(c.pairs_after for c in costs) / sum(c.pairs_before for c in costs)
