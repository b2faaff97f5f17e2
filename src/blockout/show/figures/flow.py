"""A structure as a flow: boxes of nodes, and every cluster as a dense block between them."""

from dataclasses import dataclass
from itertools import pairwise

from blockout.show.boxes import Box, blocks_of, boxes_of
from blockout.show.colours import cluster_colour
from blockout.show.figures.sheet import MERGED, Edge, Sheet
from blockout.structure import Structure

WIDE = 0.13


@dataclass(frozen=True)
class Frame:
    """A place on the sheet, in inches."""

    x: float
    y: float
    wide: float
    high: float

    def column(self, number: int, columns: int) -> float:
        """The left edge of a column of boxes."""
        return self.x + number * (self.wide - WIDE) / (columns - 1)

    def at(self, height: float) -> float:
        """Where on the sheet a height from 0 to 1 is."""
        return self.y + self.high * height


def flow(sheet: Sheet, structure: Structure, frame: Frame, gap: float = 0.035) -> list[list[Box]]:
    """Draws a chain of layers from left to right; returns the boxes of each set, from the top.

    Two boxes are connected where ribbons lead from one through a block to the other: their nodes
    share that cluster. Boxes of rare codes are grey, and their ribbons are as wide as the share of
    their nodes that belong to the cluster.
    """
    names = [structure.layers[0].inputs, *(layer.outputs for layer in structure.layers)]
    columns = [boxes_of(structure.sets[name], gap / frame.high) for name in names]
    places = [frame.column(number, len(columns)) for number in range(len(columns))]
    for (x0, before), (x1, after) in pairwise(zip(places, columns, strict=True)):
        _connect(sheet, (x0 + WIDE, before), (x1, after), frame)
    for x, boxes in zip(places, columns, strict=True):
        for box in boxes:
            where = x, frame.at(box.bottom), WIDE, frame.high * box.height
            if box.merged:
                sheet.box(*where, facecolor=MERGED, linewidth=0.5)
            else:
                sheet.nodes(*where, box.code)
    return columns


def _connect(
    sheet: Sheet, left: tuple[float, list[Box]], right: tuple[float, list[Box]], frame: Frame
) -> None:
    """Ribbons into the block of every cluster and out of it."""
    (x0, before), (x1, after) = left, right
    blocks = {block.cluster: block for block in blocks_of(before, after)}
    size = min(0.16, 0.4 * (x1 - x0), 0.8 * frame.high / max(len(blocks), 1))
    x = (x0 + x1 - size) / 2
    wanted = {cluster: frame.at(block.middle) for cluster, block in blocks.items()}
    for cluster, middle in _spread(wanted, size + 0.03, frame).items():
        colour, low, block = cluster_colour(cluster), middle - size / 2, blocks[cluster]
        for strands, edge, inner in ((block.enters, x0, x), (block.leaves, x1, x + size)):
            for strand in strands:
                (a, b), (c, d) = strand.at_box, strand.at_block
                outer: Edge = edge, frame.at(a), frame.at(b)
                sheet.ribbon(outer, (inner, low + size * c, low + size * d), colour)
        sheet.box(x, low, size, size, facecolor=colour, linewidth=0.5)


def _spread(middles: dict[int, float], least: float, frame: Frame) -> dict[int, float]:
    """The same order with ``least`` between neighbours, inside the frame."""
    order = sorted(middles, key=lambda c: -middles[c])
    placed: dict[int, float] = {}
    top = frame.y + frame.high + least / 2
    for number, cluster in enumerate(order):
        room = frame.y + least * (len(order) - number - 0.5)  # for the clusters still to come
        top = max(min(middles[cluster], top - least), room)
        placed[cluster] = top
    return placed
