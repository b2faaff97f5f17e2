"""Figs. 1-3: what a structure of clusters can be, and that it is a matrix of blocks."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from blockout.figures import boxes, style
from blockout.figures.flow import WIDE, Frame, Group, flow
from blockout.layers import BlockoutLinear
from blockout.memberships import Memberships
from blockout.structure import Structure

Codes = Sequence[tuple[int, ...]]
NAMES_SHOWN = 3
QUIETLY = {"fontsize": style.SMALL, "color": style.QUIET}

INDEPENDENT = [(0,)] * 3 + [(1,)] * 3
OVERLAPPING = [(0,)] * 2 + [(0, 1)] * 2 + [(1,)] * 2
EQUIVALENT = {
    "independent": (INDEPENDENT, INDEPENDENT),
    "merging": (INDEPENDENT, OVERLAPPING),
    "branching": (OVERLAPPING, INDEPENDENT),
}
BOTH, DROPPED = [(0, 1)] * 4, [(0,)] * 3 + [()] * 2
COMPONENTS = {
    "parallel": (INDEPENDENT, INDEPENDENT),
    "dropout of inputs": (DROPPED, [(0,)] * 5),
    "dropout of outputs": ([(0,)] * 5, DROPPED),
    "branch": (BOTH, INDEPENDENT),
    "merge": (INDEPENDENT, BOTH),
}


def layered(*sets: Codes, classes: Sequence[str] = ()) -> Structure:
    """A structure of real Blockout layers whose nodes are given their clusters.

    >>> layered([(0,), (1,)], [(0, 1)])
    Structure(2 sets of nodes, 1 classes, threshold 0.5: 2 of 2 weights left)
    """
    clusters = 1 + max(cluster for codes in sets for code in codes for cluster in code)
    given = [Memberships.given(_assignments(codes, clusters)) for codes in sets]
    layers = [
        BlockoutLinear(a.nodes, b.nodes, clusters, inputs=a, outputs=b, device="meta")
        for a, b in pairwise(given)
    ]
    return Structure.from_model(nn.Sequential(*layers), classes=classes or None)


@style.styled
def architectures(learned: Structure | None = None) -> Figure:
    """Fig. 1: one model for all classes, a given hierarchy, and one that was learned."""
    learned = learned or _example()
    dense = layered([(0,)] * 12, [(0,)] * 12, [(0,)] * 12)
    third = [(0,)] * 4 + [(1,)] * 4 + [(2,)] * 4
    figure = style.new_figure(2.5, constrained=False)
    axes = boxes.sheet(figure)
    panels = (
        ("one model for all classes", dense, 0.08, 0.85, ()),
        ("a hierarchy given beforehand", layered(third, third, third), 1.72, 0.85, ()),
        ("a hierarchy that was learned", learned, 3.45, 1.5, learned.classes),
    )
    for number, (title, structure, x, wide, names) in enumerate(panels):
        boxes.words(axes, x, 2.38, f"{style.letter(number)} {title}", ha="left")
        _trunk(axes, x, Frame(x + 0.42, 0.32, wide, 1.9))
        columns = flow(axes, structure, Frame(x + 0.42, 0.32, wide, 1.9))
        _column_names(axes, structure, Frame(x + 0.42, 0.32, wide, 1.9))
        if names:
            _name_classes(axes, columns[-1], names, x + 0.42 + wide + 0.05)
    return figure


@style.styled
def equivalence() -> Figure:
    """Fig. 2: one layer with a matrix of blocks (above) is parallel layers (below)."""
    figure = style.new_figure(3.15, constrained=False)
    axes = boxes.sheet(figure)
    for number, (title, (inputs, outputs)) in enumerate(EQUIVALENT.items()):
        x, cell = 0.6 + 2.12 * number, 0.17
        c_out, c_in = (_assignments(codes, 2).numpy() for codes in (outputs, inputs))
        boxes.words(axes, x - 0.25, 3.03, f"{style.letter(number)} {title}", ha="left")
        boxes.block_matrix(axes, x, 1.6, cell, c_out, c_in)
        boxes.strip(axes, x - cell - 0.06, 1.6, cell, c_out, upright=True)
        boxes.strip(axes, x, 1.66 + 6 * cell, cell, c_in, upright=False)
        boxes.words(axes, x + 6 * cell + 0.06, 1.745 + 6 * cell, "inputs", ha="left", **QUIETLY)
        boxes.words(axes, x - 0.145, 1.54, "outputs", **QUIETLY)
        flow(axes, layered(inputs, outputs), Frame(x - 0.2, 0.12, 1.35, 1.15), gap=0.09)
    boxes.words(axes, 0.12, 2.1, "one layer, $W_j$ in blocks", rotation=90, color=style.QUIET)
    boxes.words(axes, 0.12, 0.7, "parallel layers", rotation=90, color=style.QUIET)
    return figure


@style.styled
def components() -> Figure:
    """Fig. 3: what one layer can do with its nodes."""
    figure = style.new_figure(1.45, constrained=False)
    axes = boxes.sheet(figure)
    for number, (title, (inputs, outputs)) in enumerate(COMPONENTS.items()):
        x = 0.12 + 1.29 * number
        boxes.words(axes, x, 1.33, f"{style.letter(number)} {title}", ha="left")
        flow(axes, layered(inputs, outputs), Frame(x, 0.12, 1.0, 1.05), gap=0.09)
    return figure


def _assignments(codes: Codes, clusters: int) -> torch.Tensor:
    c = torch.zeros(len(codes), clusters)
    for node, code in enumerate(codes):
        c[node, list(code)] = 1
    return c


def _example() -> Structure:
    """For the docs, where no run is at hand."""
    low = [(0, 1)] * 3 + [(1,)] * 2 + [(1, 2)] * 3 + [(2,)] * 2 + [(0,)] * 2
    high = [(0,)] * 4 + [(1,)] * 3 + [(1, 2)] * 2 + [(2,)] * 3
    last = [(0,)] * 3 + [(1,)] * 2 + [(1, 2)] + [(2,)] * 3
    names = ("cat", "dog", "fox", "oak", "fir", "rose", "bus", "car", "tram")
    return layered(low, high, last, classes=names)


def _trunk(axes: Axes, x: float, frame: Frame) -> None:
    middle = frame.y + frame.high / 2
    boxes.box(axes, x, middle - 0.35, 0.2, 0.7, facecolor=style.FAINT)
    boxes.words(axes, x + 0.1, middle, "trunk", rotation=90, fontsize=style.SMALL)
    edges = (x + 0.2, middle - 0.35, middle + 0.35), (frame.x, frame.y, frame.y + frame.high)
    boxes.ribbon(axes, *edges, style.QUIET)


def _column_names(axes: Axes, structure: Structure, frame: Frame) -> None:
    names = [layer.inputs for layer in structure.layers] + ["classes"]
    step = (frame.wide - WIDE) / (len(names) - 1)
    for number, name in enumerate(names):
        shown = name if name == "classes" else style.symbol(name)
        boxes.words(axes, frame.x + number * step + WIDE / 2, frame.y - 0.14, shown,
                    fontsize=style.SMALL)  # fmt: skip


def _name_classes(axes: Axes, groups: list[Group], names: Sequence[str], x: float) -> None:
    """The first few of each group that is high enough for a line."""
    lowest = np.inf
    for group in groups:
        if group.high - group.low < 0.05 or group.middle > lowest - 0.09:
            continue
        some = [names[node].replace("_", " ") for node in group.nodes[:NAMES_SHOWN]]
        more = len(group.nodes) - len(some)
        text = style.shortened(", ".join(some), 22) + (f" +{more}" if more else "")
        boxes.words(axes, x, group.middle, style.plain(text), ha="left", fontsize=5.5)
        lowest = group.middle
