from itertools import pairwise

import numpy as np
import pytest

from blockout.show.boxes import GAP, MOST, bands_of, blocks_of, boxes_of
from blockout.structure.nodes import NodeSet


def nodes(*rows: tuple[float, ...]) -> NodeSet:
    return NodeSet("P_1", rows, 0.5)


def test_boxes_are_as_high_as_there_are_many_nodes():
    boxes = boxes_of(nodes((1, 0), (1, 0), (1, 0), (1, 1), (0, 0)))
    assert [(box.label, box.count) for box in boxes] == [("0", 3), ("0 + 1", 1), ("no branch", 1)]
    room = 1 - 2 * GAP
    assert [box.height for box in boxes] == pytest.approx([0.6 * room, 0.2 * room, 0.2 * room])
    assert boxes[0].top == 1 and boxes[-1].bottom == pytest.approx(0)
    assert boxes[0].bottom - boxes[1].top == pytest.approx(GAP)


def test_rare_codes_are_merged_by_their_number_of_branches():
    rows = np.array([[i >> b & 1 for b in range(6)] for i in range(64)], dtype=float)
    boxes = boxes_of(NodeSet("P_0", tuple(map(tuple, np.repeat(rows, 3, axis=0))), 0.5))
    merged = [(box.label, box.count) for box in boxes if not box.code]
    assert len(boxes) - len(merged) == MOST
    assert sum(box.count for box in boxes) == 192
    assert merged[-1] == ("no branch", 3)
    assert all(label.startswith("others") for label, _ in merged[:-1])


def test_bands_fill_the_boxes_in_proportion_to_connections():
    inputs = boxes_of(nodes((1, 0), (1, 0), (1, 0), (0, 1)))
    outputs = boxes_of(nodes((1, 0), (1, 1)))
    bands = {(band.start.label, band.end.label): band for band in bands_of(inputs, outputs)}
    assert set(bands) == {("0", "0"), ("0", "0 + 1"), ("1", "0 + 1")}

    def size(ends: tuple[float, float]) -> float:
        return ends[1] - ends[0]

    first = bands["0", "0 + 1"]
    assert size(first.leaves) == pytest.approx(inputs[0].height / 2)  # 3 of its 6 connections
    assert size(first.arrives) == pytest.approx(outputs[1].height * 3 / 4)
    assert size(bands["1", "0 + 1"].leaves) == pytest.approx(inputs[1].height)
    assert size(bands["1", "0 + 1"].arrives) == pytest.approx(outputs[1].height / 4)
    assert bands["0", "0"].share == 1


def test_a_block_joins_what_bands_join_and_its_sides_are_filled():
    inputs = boxes_of(nodes((1, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)))
    outputs = boxes_of(nodes((1, 0, 0), (1, 1, 0), (0, 0, 0)))
    blocks = blocks_of(inputs, outputs)
    assert [(b.cluster, len(b.enters), len(b.leaves)) for b in blocks] == [(0, 1, 2), (1, 1, 1)]
    assert sum(len(b.enters) * len(b.leaves) for b in blocks) == len(bands_of(inputs, outputs))
    for block in blocks:
        for side in (block.enters, block.leaves):
            edges = [edge for strand in side for edge in reversed(strand.at_block)]
            assert edges[0] == 1 and edges[-1] == pytest.approx(0)
            assert edges[1:-1:2] == edges[2::2]
    assert blocks[1].middle == pytest.approx((inputs[1].middle + outputs[1].middle) / 2)


def test_a_strand_is_as_high_as_the_share_of_its_box_in_the_cluster():
    rows = [(1, 1, 0, 0)] * 2 + [(1, 0, 1, 0)] + [(0, 0, 0, 1)] * 397
    boxes = boxes_of(nodes(*rows))
    (merged,) = (box for box in boxes if box.merged)
    found = {b.cluster: b.enters[0].at_box for b in blocks_of(boxes, boxes)}
    heights = [found[c][1] - found[c][0] for c in range(3)]
    assert heights == pytest.approx([merged.height, merged.height * 2 / 3, merged.height / 3])


def test_every_node_is_in_exactly_one_box():
    """512 nodes, of which 57 have codes too rare for a box of their own."""
    rng = np.random.default_rng(0)
    common = np.repeat(np.eye(6), 75, axis=0)[:440]
    rare = rng.permutation([[i >> b & 1 for b in range(6)] for i in range(64)])[:57]
    rows = np.concatenate([common, rare, np.zeros((15, 6))])
    boxes = boxes_of(NodeSet("P_0", tuple(map(tuple, rows)), 0.5))
    assert sorted(node for box in boxes for node in box.nodes) == list(range(512))
    assert all(sum(box.codes.values()) == box.count for box in boxes)
    assert sum(box.height for box in boxes) + GAP * (len(boxes) - 1) == pytest.approx(1)
    assert [box.without_cluster for box in boxes] == [False] * (len(boxes) - 1) + [True]


def test_neighbouring_codes_differ_by_one_branch():
    rows = [(1, 0, 0), (1, 1, 0), (1, 1, 1), (0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 1)]
    codes = [set(box.code) for box in boxes_of(nodes(*rows))]
    assert [len(a ^ b) for a, b in pairwise(codes)] == [1] * 6
