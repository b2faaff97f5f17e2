"""Measuring what compaction gives, keeping it, and showing it."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from blockout.data import MemorySplit
from blockout.report import compaction
from blockout.report.compaction import measure_if_missing, section
from blockout.report.view import RunView
from blockout.training import files
from blockout.training.compaction import CURVE, CompactionPoint, read_curve, write_curve

from .conftest import HALF, NAMES, tinted_images

POINTS = [
    CompactionPoint(0.0, 1.0, 1.0, 4.0, 4.1, 60.0),
    CompactionPoint(0.5, 0.4, 0.5, 4.2, 2.1, 59.5),
    CompactionPoint(0.9, 0.1, 0.1, 4.1, 1.0, 30.0),
]
ABOUT = {
    "images": "hold-out", "count": 2500, "batch_size": 256,
    "machine": {"processor": "a <fast> one", "threads": 2},
}  # fmt: skip


@pytest.fixture
def view(run, tmp_path) -> RunView:
    return RunView.load(shutil.copytree(run, tmp_path / "run"))


def data():
    return tinted_images(NAMES, (0, 0, 1, 1, 2, 2))


def test_a_run_is_measured_once_on_its_holdout(view, monkeypatch):
    monkeypatch.setattr(compaction, "load_images", lambda _: data())
    measure_if_missing(view)
    points, about = read_curve(view.folder)
    assert (about["images"], about["count"]) == ("hold-out", 24)
    assert points[0].accuracy == pytest.approx(view.result["holdout"]["accuracy"])
    assert points[0].needed == 1.0
    assert [p.threshold for p in points] == sorted({p.threshold for p in points})
    assert len(points) <= 8
    before = (view.folder / CURVE).read_text()
    monkeypatch.setattr(compaction, "load_images", lambda _: pytest.fail("measured again"))
    measure_if_missing(view)
    assert (view.folder / CURVE).read_text() == before


def test_without_a_holdout_test_images_tell(view, monkeypatch):
    made = data()
    none = MemorySplit(
        torch.zeros(0, 16, 16, 3), made.test.labels[:0], made.test.labels[:0], HALF, HALF
    )
    empty = dataclasses.replace(made, holdout=none)
    about = files.read_json(view.folder / files.MODEL) | {"images": empty.fingerprint()}
    files.write_json(view.folder / files.MODEL, about)
    monkeypatch.setattr(compaction, "load_images", lambda _: empty)
    measure_if_missing(view)
    points, said = read_curve(view.folder)
    assert (said["images"], said["count"]) == ("test", 48)
    assert points[0].accuracy == pytest.approx(view.result["test"]["accuracy"])


def test_what_stands_in_the_way_is_shown_and_tried_again(view, monkeypatch):
    measure_if_missing(view)  # there are no such images
    points, about = read_curve(view.folder)
    assert points == []
    assert "tinted noise" in about["reason"]
    body = section([view]).body
    assert "could not be measured (" in body and "<code>blockout report " in body
    assert section([view]).figures == ()
    other = dataclasses.replace(data(), classes=(*NAMES[:-1], "renamed"))
    monkeypatch.setattr(compaction, "load_images", lambda _: other)
    measure_if_missing(view)
    assert "images of the run have changed" in section([view]).body
    monkeypatch.setattr(compaction, "load_images", lambda _: data())
    measure_if_missing(view)
    assert len(section([view]).figures) == 2


def test_a_damaged_file_is_named_and_measured_anew(view, monkeypatch):
    (view.folder / CURVE).write_text("{")
    assert "compaction.json is damaged" in section([view]).body
    monkeypatch.setattr(compaction, "load_images", lambda _: data())
    measure_if_missing(view)
    assert len(section([view]).figures) == 2


def test_other_methods_and_unfinished_runs_are_not_measured(baseline, unfinished, tmp_path):
    for folder in (baseline, unfinished):
        measure_if_missing(RunView.load(folder))
        assert not (folder / CURVE).exists()
    assert section([RunView.load(baseline)]) is None
    assert "is measured once it has finished" in section([RunView.load(unfinished)]).body


def test_what_was_not_measured_says_the_command(view):
    body = section([view]).body
    assert f"has not been measured yet; <code>blockout report {view.folder}</code>" in body


def test_accuracy_stands_against_work_and_against_time(view):
    write_curve(view.folder, POINTS, **ABOUT)
    work, time = section([view]).figures
    (trace,) = work.data
    assert (trace["x"], trace["y"]) == ([100.0, 40.0, 10.0], [60.0, 59.5, 30.0])
    assert trace["marker"]["symbol"] == ["circle", "star", "circle"]
    assert trace["customdata"][1] == [0.5, 40.0, 50.0, 2.1, 4.2, 2.0]
    compact, dense = time.data
    assert compact["x"] == pytest.approx([1.0, 4.1 / 2, 4.1 * 4.1 / 4])  # in the same turns
    assert (dense["x"], dense["y"]) == ([4.1], [60.0])  # the median of the dense times
    assert work.layout["yaxis"]["title"]["text"] == "Hold-out images correct (%)"


def test_the_usual_threshold_is_told_in_words(view):
    write_curve(view.folder, POINTS, **ABOUT)
    body = section([view]).body
    assert "at a threshold of 0.5: 40% of the multiply-adds are needed and 50% carried" in body
    assert (
        "2.10 ms in place of 4.20 ms (2.00 times as fast, a &lt;fast&gt; one, threads: 2)" in body
    )
    assert "59.50 % of the 2,500 hold-out images are right, 60.00 % with all" in body


def test_several_runs_lie_over_each_other_by_method(view, tmp_path):
    write_curve(view.folder, POINTS, **ABOUT)
    again = Path(shutil.copytree(view.folder, tmp_path / "again"))
    config = json.loads((again / files.CONFIG).read_text()) | {"seed": 1}
    files.write_json(again / files.CONFIG, config)
    work, time = section([view, RunView.load(again)]).figures
    assert [t["showlegend"] for t in work.data] == [True, False]
    assert work.data[0]["line"]["color"] == work.data[1]["line"]["color"]
    assert len(time.data) == 4
