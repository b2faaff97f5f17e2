import re

import numpy as np

from blockout.show.page.accuracy import section
from blockout.show.page.drawing import to_class

from ..made import layout, made_run, traces

COUNTS = [[6, 3, 1, 0], [1, 8, 0, 1], [0, 0, 9, 1], [0, 2, 2, 6]]


def test_the_weakest_class_is_on_top_with_its_name_and_what_it_is_taken_for():
    run = made_run(None, confusion=COUNTS)
    (figure,) = section([run]).figures
    (points,) = traces(figure)
    assert points["x"].tolist() == [60, 80, 90, 60] and points["y"] == [3, 1, 0, 2]
    assert points["text"][0] == "<b>cat</b>: 60 % of 10 right<br>mostly taken for dog"
    rows = layout(figure)["yaxis"]["ticktext"][::-1]
    assert rows == [to_class(run, c, 28) for c in (0, 3, 1, 2)]
    labels = [b["label"] for b in layout(figure)["updatemenus"][0]["buttons"]]
    assert labels == ["weakest first", "by name"]


def test_a_class_without_test_images_is_said_so_and_comes_last():
    run = made_run(None, confusion=[[0, 0, 0, 0], *COUNTS[1:]])
    (figure,) = section([run]).figures
    (points,) = traces(figure)
    assert points["text"][0] == "<b>cat</b>: no test images" and np.isnan(points["x"][0])
    assert re.sub("<.*?>", "", layout(figure)["yaxis"]["ticktext"][0]) == "cat"


def test_runs_of_any_method_on_the_same_classes_share_the_figure(tmp_path):
    blockout = made_run(folder=tmp_path / "blockout")
    other = made_run(None, classes=("a", "b", "c", "d"), folder=tmp_path / "other")
    found = section([made_run(None), blockout, other])
    assert [trace["name"] for trace in traces(found.figures[0])] == ["made", "blockout"]
    assert "because their classes differ: other." in found.lead
