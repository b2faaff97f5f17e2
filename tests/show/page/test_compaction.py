"""What compaction gives, as it was measured."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from blockout.runs import Run
from blockout.runs import folder as files
from blockout.runs.documents import (
    CompactionCurve,
    CompactionPoint,
    Machine,
    NetworkTimes,
    WholeNetwork,
    as_json,
)
from blockout.show.page import summary
from blockout.show.page.compaction import section

from ..made import layout, traces

CURVE = CompactionCurve(
    points=(
        CompactionPoint(0.0, 1.0, 1.0, 4.0, 4.1, 60.0),
        CompactionPoint(0.5, 0.4, 0.5, 4.2, 2.1, 59.5),
        CompactionPoint(0.9, 0.1, 0.1, 4.1, 1.0, 30.0),
    ),
    images="hold-out",
    count=2500,
    batch_size=256,
    machine=Machine(processor="a <fast> one", threads=2),
    network=WholeNetwork(
        (20_000_000, 15_000_000, 14_000_000),
        (
            NetworkTimes(8, 100.0, 93.0, 90.0, 10.0, 2.0),
            NetworkTimes(8, 50.0, 46.5, 40.0, 10.0, 2.0, folded=True),
        ),
    ),
)


@pytest.fixture
def view(run, tmp_path) -> Run:
    return Run.open(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def measured(view) -> Run:
    files.write_json(view.folder / files.COMPACTION, as_json(CURVE))
    return view


def test_what_stood_in_the_way_of_measuring_is_shown(view):
    curve = CompactionCurve(reason="there are no <images>")
    files.write_json(view.folder / files.COMPACTION, as_json(curve))
    found = section([view])
    assert (
        "could not be measured (there are no &lt;images&gt;); <code>blockout report " in found.body
    )
    assert found.figures == ()


def test_a_damaged_file_is_named(view):
    (view.folder / files.COMPACTION).write_text("{")
    assert "compaction.json is damaged" in section([view]).body


def test_drawing_measures_nothing_and_writes_nothing(view):
    before = sorted(path.name for path in view.folder.iterdir())
    section([view])
    assert sorted(path.name for path in view.folder.iterdir()) == before


def test_only_blockout_runs_that_learn_are_shown(baseline, fixed, unfinished):
    assert section([Run.open(baseline), Run.open(fixed)]) is None
    assert "will be measured once it has finished" in section([Run.open(unfinished)]).body


def test_what_was_not_measured_says_the_command(view):
    body = section([view]).body
    assert f"has not been measured yet; <code>blockout report {view.folder}</code>" in body


def test_accuracy_stands_against_work_and_against_time(measured):
    work, time = section([measured]).figures
    (trace,) = traces(work)
    assert (trace["x"], trace["y"]) == ([100.0, 40.0, 10.0], [60.0, 59.5, 30.0])
    assert trace["marker"]["symbol"] == ["circle", "star", "circle"]
    assert trace["customdata"][1] == [0.5, 40.0, 50.0, 2.1, 4.2, 2.0]
    compact, dense = traces(time)
    assert compact["x"] == pytest.approx([1.0, 4.1 / 2, 4.1 * 4.1 / 4])  # in the same turns
    assert (dense["x"], dense["y"]) == ([4.1], [60.0])  # the median of the dense times
    assert layout(work)["yaxis"]["title"]["text"] == "Hold-out images correct (%)"


def test_the_usual_threshold_is_told_in_words(measured):
    body = section([measured]).body
    assert (
        "head alone at a threshold of 0.5: 40% of the multiply-adds are needed and 50% car" in body
    )
    assert "2.10 ms instead of 4.20 ms (2.00 times as fast, a &lt;fast&gt; one, threads: 2)" in body
    assert "59.50 % of the 2,500 hold-out images are right, 60.00 % with all" in body


def test_where_all_is_carried_out_chance_is_not_called_a_gain(view):
    points = (CURVE.points[0], CompactionPoint(0.5, 0.4, 1.0, 4.2, 3.1, 59.5))
    alike = structs.replace(CURVE, points=points)
    files.write_json(view.folder / files.COMPACTION, as_json(alike))
    body = section([view]).body
    assert (
        "40% of the head&#39;s multiply-adds are needed" in body and "all are carried out" in body
    )
    assert "times as fast, a &lt;" not in body
    told, steps = summary.section([view]).body, summary._next_steps(view)
    assert "stays as it is" in told and "instead of" not in told
    assert not any("compact" in command for _, command in steps)


def test_the_whole_network_stands_beside_a_linear_classifier_with_what_that_means(measured):
    body = section([measured]).body
    for name, size, time in (
        ("dense", "20.0 MB", "100.00 ms"),
        ("compact", "15.0 MB", "93.00 ms"),
        ("linear classifier", "14.0 MB", "90.00 ms"),
        ("compact, folded", "15.0 MB", "46.50 ms"),
    ):
        assert f"<bdi>{name}</bdi></th><td>{size}</td><td>{time}</td>" in body
    assert "The head takes 10 % of the whole network&#39;s time for 8 images" in body
    assert "makes the whole 1.09 times as fast, at 75% of its size" in body  # 100 / (100 - 10 + 2)
    assert "convolutions: 2.00 times as fast in torch" in body


def test_a_run_that_was_measured_before_whole_networks_were_says_how_to_measure_again(measured):
    old = {k: v for k, v in as_json(CURVE).items() if k != "network"}
    files.write_json(measured.folder / files.COMPACTION, old)
    body = section([measured]).body
    assert "at a threshold of 0.5: 40%" in body and "to measure again" in body
    assert "<table" not in body


def test_several_runs_lie_over_each_other_by_method(measured, tmp_path):
    again = Path(shutil.copytree(measured.folder, tmp_path / "again"))
    config = json.loads((again / files.CONFIG).read_text()) | {"seed": 1}
    files.write_json(again / files.CONFIG, config)
    work, time = section([measured, Run.open(again)]).figures
    assert [t["showlegend"] for t in traces(work)] == [True, False]
    assert traces(work)[0]["line"]["color"] == traces(work)[1]["line"]["color"]
    assert len(traces(time)) == 4
