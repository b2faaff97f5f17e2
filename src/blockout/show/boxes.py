"""The boxes of Fig. 1: the nodes of a set by their clusters, and what connects two sets.

The page draws a band for every two boxes that share a cluster, the figure a block per cluster.

Every node of a set is in exactly one box. ``structure.diagrams`` draws other boxes for Graphviz
and Mermaid, in which a node of several clusters may appear several times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from blockout.structure.diagrams import connected_share
from blockout.structure.nodes import Code, NodeSet

MOST = 12
"""Codes per set that get a box of their own; the others are merged by their number of clusters."""
RAREST = 0.01
"""Codes of a smaller share of the nodes are merged too."""
GAP = 0.012
"""Between two boxes of a set, as a share of the height of all."""


@dataclass(frozen=True)
class Box:
    """Nodes of one set that are drawn as one, from ``bottom`` to ``top``; a set is 1 high."""

    label: str
    nodes: tuple[int, ...]
    codes: dict[Code, int]
    """How many nodes have each code."""
    bottom: float = 0.0
    top: float = 0.0

    @property
    def count(self) -> int:
        return len(self.nodes)

    @property
    def code(self) -> Code:
        """The clusters that all its nodes belong to; empty for merged codes."""
        return next(iter(self.codes)) if len(self.codes) == 1 else ()

    @property
    def without_cluster(self) -> bool:
        """Whether its nodes belong to no cluster."""
        return set(self.codes) == {()}

    @property
    def merged(self) -> bool:
        """Whether its nodes have different codes."""
        return len(self.codes) > 1

    def share_in(self, cluster: int) -> float:
        """The share of its nodes that belong to a cluster."""
        return sum(n for code, n in self.codes.items() if cluster in code) / self.count

    @property
    def height(self) -> float:
        return self.top - self.bottom

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def boxes_of(nodes: NodeSet, gap: float = GAP) -> list[Box]:
    """From the top: a box per frequent code, then merged codes, then nodes without a cluster.

    Frequent codes follow each other in Gray's order, so that neighbours share clusters. Heights are
    proportional to the number of nodes; with the gaps they add up to 1.

    >>> rows = ((1., 0.), (1., 0.), (1., 0.), (0., 1.), (0., 0.))
    >>> [(box.label, box.count) for box in boxes_of(NodeSet("P_1", rows, .5))]
    [('0', 3), ('1', 1), ('no branch', 1)]
    """
    by_code = {code: own for code, own in nodes.nodes_by_code.items() if code}
    frequent = [code for code, own in by_code.items() if len(own) >= RAREST * nodes.nodes][:MOST]
    boxes = [
        Box(" + ".join(map(str, code)), by_code[code], {code: len(by_code[code])})
        for code in sorted(frequent, key=lambda code: _gray_rank(code, nodes.clusters))
    ]
    rare = {code: own for code, own in by_code.items() if code not in frequent}
    for size in sorted({len(code) for code in rare}):
        merged = {code: own for code, own in rare.items() if len(code) == size}
        members = tuple(node for own in merged.values() for node in own)
        label = f"others in {size}" if size > 1 else "others"
        boxes.append(Box(label, members, {code: len(own) for code, own in merged.items()}))
    if nodes.without_cluster:
        boxes.append(Box("no branch", nodes.without_cluster, {(): len(nodes.without_cluster)}))
    return _stacked(boxes, nodes.nodes, gap)


def _gray_rank(code: Code, clusters: int) -> tuple[bool, ...]:
    """The place of a code in Gray's order, in which neighbours differ by one cluster.

    >>> sorted([(1,), (0, 1), (0,)], key=lambda code: _gray_rank(code, 2))
    [(0,), (0, 1), (1,)]
    """
    bits = np.isin(np.arange(clusters), code)
    return tuple((~np.bitwise_xor.accumulate(bits)).tolist())


def _stacked(boxes: Sequence[Box], nodes: int, gap: float) -> list[Box]:
    room = 1 - gap * (len(boxes) - 1)
    top, placed = 1.0, []
    for box in boxes:
        placed.append(replace(box, bottom=top - room * box.count / nodes, top=top))
        top = placed[-1].bottom - gap
    return placed


@dataclass(frozen=True)
class Band:
    """A connection of two boxes: where it leaves and where it arrives, from bottom to top."""

    start: Box
    end: Box
    share: float
    """Of the pairs of their nodes that are connected."""
    leaves: tuple[float, float]
    arrives: tuple[float, float]

    @property
    def clusters(self) -> Code:
        """That both boxes share as a whole; empty if one of them is merged."""
        return tuple(sorted(set(self.start.code) & set(self.end.code)))


def bands_of(inputs: Sequence[Box], outputs: Sequence[Box]) -> list[Band]:
    """A band for every two boxes that share a cluster.

    At either end a band takes the part of the box that its connections are of all connections of
    that box: bands fill the boxes.
    """
    pairs = np.array(
        [[a.count * b.count * connected_share(a.codes, b.codes) for b in outputs] for a in inputs]
    )
    leaves, arrives = _portions(inputs, pairs), _portions(outputs, pairs.T)
    return [
        Band(a, b, pairs[i, j] / (a.count * b.count), leaves[i][j], arrives[j][i])
        for i, a in enumerate(inputs)
        for j, b in enumerate(outputs)
        if pairs[i, j]
    ]


def _portions(boxes: Sequence[Box], pairs: np.ndarray) -> list[list[tuple[float, float]]]:
    """The height of each box divided among its partners, from the top down."""
    found = []
    for box, row in zip(boxes, pairs, strict=True):
        edges = box.top - box.height * np.append(0, np.cumsum(row)) / max(row.sum(), 1)
        found.append(list(zip(edges[1:].tolist(), edges[:-1].tolist(), strict=True)))
    return found


@dataclass(frozen=True)
class Strand:
    """The nodes of a box in a cluster: their part of the box, and of the cluster's block.

    Both from bottom to top; a set is 1 high, and so is the side of a block.
    """

    at_box: tuple[float, float]
    at_block: tuple[float, float]


@dataclass(frozen=True)
class Block:
    """A cluster between two sets: all of its inputs are connected to all of its outputs."""

    cluster: int
    middle: float
    """The mean height of its boxes on either side."""
    enters: tuple[Strand, ...]
    leaves: tuple[Strand, ...]


def blocks_of(inputs: Sequence[Box], outputs: Sequence[Box]) -> list[Block]:
    """A block for every cluster that has nodes in both sets."""
    return [
        Block(cluster, _mean_height(cluster, [*inputs, *outputs]), enters, leaves)
        for cluster in sorted({c for box in inputs for code in box.codes for c in code})
        if (enters := _strands(cluster, inputs)) and (leaves := _strands(cluster, outputs))
    ]


def _mean_height(cluster: int, boxes: Sequence[Box]) -> float:
    own = [box.middle for box in boxes if box.share_in(cluster)]
    return sum(own) / len(own)


def _strands(cluster: int, boxes: Sequence[Box]) -> tuple[Strand, ...]:
    """Boxes divide the side of a block in their order, by how many of their nodes are in it."""
    heights = [box.height * box.share_in(cluster) for box in boxes]
    top, found = 1.0, []
    for box, height in zip(boxes, heights, strict=True):
        if height:
            bottom = top - height / sum(heights)
            at_box = box.middle - height / 2, box.middle + height / 2
            found.append(Strand(at_box, (bottom, top)))
            top = bottom
    return tuple(found)
