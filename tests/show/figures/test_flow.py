"""A structure as a flow of boxes, ribbons and blocks."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch, Rectangle

from blockout.show.colours import cluster_colour
from blockout.show.figures.architectures import layered
from blockout.show.figures.flow import WIDE, Frame, flow
from blockout.show.figures.sheet import MERGED, Sheet

FRAME = Frame(0.5, 0.25, 2.0, 1.5)


def colours(sheet, kind):
    return [to_hex(p.get_facecolor()) for p in sheet.axes.patches if isinstance(p, kind)]


def rare_codes(nodes=512, clusters=6):
    """Three frequent codes and many that few nodes have, some nodes without any."""
    chance = np.random.default_rng(0)
    bits = chance.random((nodes // 4, clusters)) < 0.4
    rare = [tuple(np.flatnonzero(row).tolist()) for row in bits]
    return rare + [(int(c),) for c in chance.integers(0, 3, nodes - len(rare))]


def test_every_node_is_in_exactly_one_box_also_those_of_rare_codes():
    columns = flow(Sheet(2.0), layered(rare_codes(), [(0,), (1,), (5,)]), FRAME)
    shown = [node for box in columns[0] for node in box.nodes]
    assert sorted(shown) == list(range(512))


def test_boxes_of_merged_codes_are_grey_and_all_boxes_fill_the_frame():
    sheet = Sheet(2.0)
    (boxes, _) = flow(sheet, layered(rare_codes(), [(0,), (1,), (5,)]), FRAME, gap=0.02)
    merged = [box for box in boxes if box.merged]
    assert merged and colours(sheet, Rectangle).count(MERGED) == len(merged)
    outlines = [
        p for p in sheet.axes.patches
        if isinstance(p, Rectangle) and p.get_x() == FRAME.x and p.get_width() == WIDE
        and p.get_linewidth() > 0
    ]  # fmt: skip
    heights = sum(outline.get_height() for outline in outlines)
    assert heights == pytest.approx(FRAME.high - 0.02 * (len(boxes) - 1))


def test_ribbons_lead_exactly_through_the_blocks_of_shared_clusters():
    sheet = Sheet(2.0)
    flow(sheet, layered([(0,), (0,), (1,), (2,)], [(0, 1), (1,), ()]), FRAME)
    first, second = cluster_colour(0).lower(), cluster_colour(1).lower()
    # cluster 0: one box in, one out; cluster 1: one in, two out; cluster 2 has no outputs
    assert sorted(colours(sheet, PathPatch)) == sorted([first] * 2 + [second] * 3)


def test_a_ribbon_of_merged_codes_is_as_high_as_their_share_in_the_cluster():
    sheet = Sheet(2.0)
    codes = [(0, 1)] * 2 + [(0, 2)] + [(3,)] * 397
    (boxes, _) = flow(sheet, layered(codes, [(0,), (1,), (2,), (3,)]), FRAME)
    (merged,) = (box for box in boxes if box.merged)
    assert [merged.share_in(c) for c in range(4)] == pytest.approx([1, 2 / 3, 1 / 3, 0])
    heights = {}
    for patch in sheet.axes.patches:
        if isinstance(patch, PathPatch):
            (x, low), (_, high) = patch.get_path().vertices[[0, 7]]
            if x == pytest.approx(FRAME.x + WIDE):
                heights[to_hex(patch.get_facecolor())] = high - low
    whole = FRAME.high * merged.height
    found = [heights[cluster_colour(c).lower()] for c in range(3)]
    assert found == pytest.approx([whole, whole * 2 / 3, whole / 3])
