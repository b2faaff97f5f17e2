import numpy as np
import pytest

from blockout.nodesets import NodeSet
from blockout.report.flow import GAP, bands_of, boxes_of, section

from .made import made_run


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
    merged = [(box.label, box.count) for box in boxes if not box.clusters]
    assert len(boxes) - len(merged) == 12
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


def test_the_flow_runs_from_the_first_nodes_to_the_classes():
    run = made_run(p_0=[[1, 1], [1, 0]], p_1=[[1, 0], [0, 1], [0, 1]])
    (figure,) = section([run]).figures
    headings = [a["text"] for a in figure.layout["annotations"][:3]]
    assert headings == ["<b>P_0</b><br>2 nodes", "<b>P_1</b><br>3 nodes", "<b>P_2</b><br>4 classes"]
    said = [trace["text"] for trace in figure.data if trace.get("fill") == "toself"]
    assert "branch 0 + 1 → branch 1: all of the connections" in said
    assert len(said) == 3 + 2
    (classes,) = [trace for trace in figure.data if trace.get("meta")]
    assert sorted(c for (c,) in classes["customdata"]) == [0, 1, 2, 3]


def test_names_are_text_and_runs_without_blockout_have_no_flow():
    run = made_run(classes=("<i>x</i>", "b", "c", "d"))
    (figure,) = section([run]).figures
    assert "<i>" not in repr(figure)
    assert section([made_run(None)]) is None
