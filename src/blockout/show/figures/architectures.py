"""Figs. 1-3: what structures clusters can form, and that each is a matrix of blocks."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from blockout.layers import BlockoutLinear
from blockout.memberships import Memberships
from blockout.show.boxes import Box
from blockout.show.figures import style
from blockout.show.figures.flow import WIDE, Frame, flow
from blockout.show.figures.sheet import Sheet
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
    """A structure of real Blockout layers whose nodes have the given clusters.

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
    """Fig. 1: one model for all classes, a hierarchy given in advance, and a learned one."""
    learned = learned or _example()
    dense, third = [(0,)] * 12, [(0,)] * 4 + [(1,)] * 4 + [(2,)] * 4
    sheet = Sheet(2.5)
    panels = (
        ("one model for all classes", layered(dense, dense, dense), 0.08, 0.85),
        ("a hierarchy given in advance", layered(third, third, third), 1.72, 0.85),
        ("a learned hierarchy", learned, 3.45, 1.5),
    )
    for number, (title, structure, x, wide) in enumerate(panels):
        frame = Frame(x + 0.42, 0.32, wide, 1.9)
        sheet.words(x, 2.38, f"{style.letter(number)} {title}", ha="left")
        _trunk(sheet, x, frame)
        columns = flow(sheet, structure, frame)
        _name_columns(sheet, structure, frame)
    _name_classes(sheet, columns[-1], learned.classes, frame)
    if any(box.merged for boxes in columns for box in boxes):
        sheet.words(6.42, 2.38, "grey: nodes of rare codes", ha="right", **QUIETLY)
    return sheet.figure


@style.styled
def equivalence() -> Figure:
    """Fig. 2: one layer whose matrix has blocks (above) is parallel layers (below)."""
    sheet = Sheet(3.15)
    for number, (title, (inputs, outputs)) in enumerate(EQUIVALENT.items()):
        x, cell = 0.6 + 2.12 * number, 0.17
        c_out, c_in = (_assignments(codes, 2).numpy() for codes in (outputs, inputs))
        sheet.words(x - 0.25, 3.03, f"{style.letter(number)} {title}", ha="left")
        sheet.block_matrix(x, 1.6, cell, c_out, c_in)
        sheet.strip(x - cell - 0.06, 1.6, cell, c_out, upright=True)
        sheet.strip(x, 1.66 + 6 * cell, cell, c_in, upright=False)
        sheet.words(x + 6 * cell + 0.06, 1.745 + 6 * cell, "inputs", ha="left", **QUIETLY)
        sheet.words(x - 0.145, 1.54, "outputs", **QUIETLY)
        flow(sheet, layered(inputs, outputs), Frame(x - 0.2, 0.12, 1.35, 1.15), gap=0.09)
    sheet.words(0.12, 2.1, "one layer, $W_j$ in blocks", rotation=90, color=style.QUIET)
    sheet.words(0.12, 0.7, "parallel layers", rotation=90, color=style.QUIET)
    return sheet.figure


@style.styled
def components() -> Figure:
    """Fig. 3: what one layer can do with its nodes."""
    sheet = Sheet(1.45)
    for number, (title, (inputs, outputs)) in enumerate(COMPONENTS.items()):
        x = 0.12 + 1.29 * number
        sheet.words(x, 1.33, f"{style.letter(number)} {title}", ha="left")
        flow(sheet, layered(inputs, outputs), Frame(x, 0.12, 1.0, 1.05), gap=0.09)
    return sheet.figure


def _assignments(codes: Codes, clusters: int) -> torch.Tensor:
    c = torch.zeros(len(codes), clusters)
    for node, code in enumerate(codes):
        c[node, list(code)] = 1
    return c


def _example() -> Structure:
    """Shown if no run is given."""
    low = [(0, 1)] * 3 + [(1,)] * 2 + [(1, 2)] * 3 + [(2,)] * 2 + [(0,)] * 2
    high = [(0,)] * 4 + [(1,)] * 3 + [(1, 2)] * 2 + [(2,)] * 3
    last = [(0,)] * 3 + [(1,)] * 2 + [(1, 2)] + [(2,)] * 3
    names = ("cat", "dog", "fox", "oak", "fir", "rose", "bus", "car", "tram")
    return layered(low, high, last, classes=names)


def _trunk(sheet: Sheet, x: float, frame: Frame) -> None:
    middle = frame.at(0.5)
    sheet.box(x, middle - 0.35, 0.2, 0.7, facecolor=style.FAINT)
    sheet.words(x + 0.1, middle, "trunk", rotation=90, fontsize=style.SMALL)
    left, right = (x + 0.2, middle - 0.35, middle + 0.35), (frame.x, frame.at(0), frame.at(1))
    sheet.ribbon(left, right, style.QUIET)


def _name_columns(sheet: Sheet, structure: Structure, frame: Frame) -> None:
    names = [*(style.symbol(layer.inputs) for layer in structure.layers), "classes"]
    for number, name in enumerate(names):
        x = frame.column(number, len(names)) + WIDE / 2
        sheet.words(x, frame.y - 0.14, name, fontsize=style.SMALL)


def _name_classes(sheet: Sheet, boxes: Sequence[Box], names: Sequence[str], frame: Frame) -> None:
    """The first few of each box, if there is room for a line."""
    lowest = np.inf
    for box in boxes:
        y = frame.at(box.middle)
        if frame.high * box.height < 0.05 or y > lowest - 0.09:
            continue
        some = [names[node].replace("_", " ") for node in box.nodes[:NAMES_SHOWN]]
        more = box.count - len(some)
        text = style.shortened(", ".join(some), 22) + (f" +{more}" if more else "")
        x = frame.x + frame.wide + 0.05
        sheet.words(x, y, style.plain(text), ha="left", fontsize=style.TINY)
        lowest = y
