import re

import numpy as np
import pytest

from blockout.show.page.classes import section
from blockout.show.page.drawing import shows_classes

from ..made import layout, made_run, traces


@pytest.mark.parametrize(
    ("clusters", "words"),
    [
        (range(20), "Harder classes have more branches</strong>, as the paper guesses"),
        (range(20, 0, -1), "Harder classes have fewer branches</strong>, the opposite"),
        ([10] * 19 + [11], "Most classes have 10 branches, the others up to 11."),
        ([10, 11] * 10, "neither clearly more nor clearly fewer"),
    ],
)
def test_the_guess_of_the_paper_is_answered_in_words(clusters, words):
    """Class 0 is always right, class 19 in 5 % of cases."""
    p = np.array([[float(i < count) for i in range(20)] for count in clusters])
    counts = np.zeros((20, 20), dtype=int)
    for c in range(20):
        counts[c, c], counts[c, c - 1] = 20 - c, c
    run = made_run(p, classes=[f"class {c}" for c in range(20)], confusion=counts)
    assert words in section([run]).body


def test_rows_show_branches_and_accuracy_and_can_be_sorted():
    run = made_run([[1, 1], [1, 0], [0.5, 0], [1, 0.5]])
    ranking = section([run]).figures[0]
    branches, accuracy = traces(ranking)
    assert branches["x"].tolist() == [2, 1, 0.5, 1.5]
    assert accuracy["x"].tolist() == [60, 80, 90, 60]
    assert layout(ranking)["xaxis2"]["range"] == [47, 103]  # from the ten below the lowest
    buttons = layout(ranking)["updatemenus"][0]["buttons"]
    orders = {b["label"]: b["args"][1]["yaxis.ticktext"][::-1] for b in buttons}  # from the top
    assert {
        label: [re.sub("<.*?>", "", text) for text in texts] for label, texts in orders.items()
    } == {
        "sort by branches": ["cat", "fir", "dog", "oak"],
        "by accuracy": ["cat", "fir", "dog", "oak"],
        "by name": ["cat", "dog", "fir", "oak"],
    }
    rows = buttons[2]["args"][0]["y"]
    assert rows == [[3, 2, 0, 1]] * 2  # cat at the top
    assert branches["meta"] == shows_classes(run)
    assert branches["customdata"] == [[0], [1], [2], [3]]


def test_lines_stand_at_median_and_quartiles():
    run = made_run([[1, 1], [1, 0], [0.5, 0], [1, 0.5]])
    lines = layout(section([run]).figures[0])["shapes"]
    assert [line["x0"] for line in lines] == [0.875, 1.25, 1.625]
    assert [line["line"]["dash"] for line in lines] == ["dot", "solid", "dot"]


def test_a_thousand_classes_have_no_names_on_the_axis():
    p, counts = np.random.default_rng(0).random((1000, 4)), np.eye(1000, dtype=int)
    run = made_run(p, classes=[f"class {c}" for c in range(1000)], confusion=counts)
    drawn = layout(section([run]).figures[0])
    assert drawn["yaxis"]["ticktext"] == [] and drawn["height"] < 2000


def test_only_runs_on_the_same_classes_are_shown_together(tmp_path):
    p = [[1, 1], [1, 0], [0.5, 0], [1, 0.5]]
    other = made_run(p, classes=("a", "b", "c", "d"), folder=tmp_path / "other")
    again = made_run(p, folder=tmp_path / "again")
    found = section([made_run(p), other, again])
    assert "because their classes differ: other." in found.lead
    ranking = found.figures[0]
    assert {trace["name"] for trace in traces(ranking)} == {"made", "again"}
    assert section([made_run(None)]) is None


def test_where_no_class_has_more_branches_nothing_is_shown(tmp_path):
    assert section([made_run()]) is None
    varied = made_run([[1, 1], [1, 0], [0.5, 0], [1, 0.5]], folder=tmp_path / "varied")
    found = section([made_run(), varied])
    assert {trace["name"] for trace in traces(found.figures[0])} == {"varied"}
    assert "1.00 to 1.00" not in found.body
