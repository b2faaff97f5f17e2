"""A structure as a flow: nodes of one code as a box, every cluster as a dense block between."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes

from blockout.figures import boxes
from blockout.nodesets import Code, NodeSet
from blockout.report.numbers import order_by_code
from blockout.report.section import cluster_colour
from blockout.structure import Structure

RAREST = 0.01
"""Codes of a smaller share of many nodes are left out."""
WIDE = 0.13


@dataclass(frozen=True)
class Frame:
    """Where on the sheet, in inches."""

    x: float
    y: float
    wide: float
    high: float


@dataclass(frozen=True)
class Group:
    """Nodes of one set and one code, and where their box stands."""

    code: Code
    nodes: tuple[int, ...]
    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


def flow(axes: Axes, structure: Structure, frame: Frame, gap: float = 0.035) -> list[list[Group]]:
    """Draws it from left to right; returns the groups of every set, from above.

    Two groups are connected where ribbons lead from one to the other through a block: exactly the
    pairs of nodes that share a cluster.
    """
    chain = [structure.sets[layer.inputs] for layer in structure.layers]
    chain.append(structure.sets[structure.layers[-1].outputs])
    columns = [_stacked(nodes, frame, gap) for nodes in chain]
    step = (frame.wide - WIDE) / (len(columns) - 1)
    for number, (left, right) in enumerate(pairwise(columns)):
        x = frame.x + number * step
        _connect(axes, (x + WIDE, left), (x + step, right), frame)
    for number, groups in enumerate(columns):
        for group in groups:
            boxes.node_box(axes, frame.x + number * step, group.low, WIDE, group.high - group.low,
                           group.code)  # fmt: skip
    return columns


def _stacked(nodes: NodeSet, frame: Frame, gap: float) -> list[Group]:
    """Codes from above in their order, as high as they have nodes."""
    order = order_by_code(nodes.assignments.numpy().astype(float)).tolist()
    codes = list(dict.fromkeys(nodes.codes[node] for node in order))
    counts = {code: len(nodes.nodes_by_code[code]) for code in codes}
    codes = [code for code in codes if counts[code] >= RAREST * nodes.nodes]
    shown = sum(counts[code] for code in codes)
    height = (frame.high - gap * (len(codes) - 1)) / shown
    groups, top = [], frame.y + frame.high
    for code in codes:
        low = top - height * counts[code]
        groups.append(Group(code, nodes.nodes_by_code[code], low, top))
        top = low - gap
    return groups


def _connect(
    axes: Axes, left: tuple[float, list[Group]], right: tuple[float, list[Group]], frame: Frame
) -> None:
    """Ribbons of every cluster into its block and out of it."""
    (x0, before), (x1, after) = left, right
    clusters = sorted({c for g in before for c in g.code} & {c for g in after for c in g.code})
    size = min(0.16, 0.4 * (x1 - x0), 0.8 * frame.high / max(len(clusters), 1))
    middles = _spread(
        {c: _mean([g.middle for g in (*before, *after) if c in g.code]) for c in clusters},
        size + 0.03, frame,
    )  # fmt: skip
    x = (x0 + x1 - size) / 2
    for cluster, middle in middles.items():
        colour = cluster_colour(cluster)
        for groups, edge, inner in ((before, x0, x), (after, x1, x + size)):
            own = [group for group in groups if cluster in group.code]
            _fan(axes, own, edge, (inner, middle, size), colour)
        boxes.box(axes, x, middle - size / 2, size, size, facecolor=colour, linewidth=0.5)


def _fan(
    axes: Axes, groups: Sequence[Group], edge: float, hub: tuple[float, float, float], colour: str
) -> None:
    """The groups share the side of the block in their order and by their size."""
    x, middle, size = hub
    total = sum(group.high - group.low for group in groups)
    top = middle + size / 2
    for group in groups:
        low = top - size * (group.high - group.low) / total
        boxes.ribbon(axes, (edge, group.low, group.high), (x, low, top), colour)
        top = low


def _spread(middles: dict[int, float], least: float, frame: Frame) -> dict[int, float]:
    """The same order with ``least`` between neighbours, inside the frame."""
    order = sorted(middles, key=lambda c: -middles[c])
    placed: dict[int, float] = {}
    top = frame.y + frame.high + least / 2
    for number, cluster in enumerate(order):
        room = frame.y + least * (len(order) - number - 0.5)  # for those that are still to come
        top = max(min(middles[cluster], top - least), room)
        placed[cluster] = top
    return placed


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
