import numpy as np

from blockout.show.page.confusion import section
from blockout.show.page.drawing import shows_classes, to_class

from ..made import CONFUSION, layout, made_run, traces

CROSSED = [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_rows_are_per_cent_in_the_order_of_the_groups():
    (figure,) = section([made_run(CROSSED)]).figures
    cells = traces(figure)[0]
    order = [name.rstrip("\u200b") for name in cells["y"]]
    assert set(order[:2]) in ({"cat", "oak"}, {"dog", "fir"})
    place = [("cat", "dog", "oak", "fir").index(name) for name in order]
    expected = 10 * np.array(CONFUSION)[np.ix_(place, place)]
    assert cells["z"].tolist() == expected.tolist()


def test_what_is_right_has_colours_of_its_own():
    (figure,) = section([made_run(CROSSED)]).figures
    cells, right = traces(figure)[:2]
    assert right["z"].diagonal().tolist() == (100 + cells["z"].diagonal()).tolist()
    assert right["z"].sum() == np.trace(right["z"]) and right["hoverinfo"] == "skip"
    assert {colour for at, colour in right["colorscale"] if at < 0.5} == {"rgba(0,0,0,0)"}


def test_each_of_a_hundred_classes_has_its_name_on_both_axes_and_room_for_it():
    n = 100
    names = [f"a rather long name of class {c}" for c in range(n)]
    run = made_run(None, classes=names, confusion=np.eye(n, dtype=int))
    drawn = layout(section([run]).figures[0])
    for axis in ("xaxis", "yaxis"):
        assert drawn[axis]["ticktext"] == [to_class(run, c, 26) for c in range(n)]
        assert drawn[axis]["tickvals"] == list(range(n))
        assert drawn[axis]["tickfont"]["size"] >= 8.5
    margin = drawn["margin"]
    assert drawn["height"] - margin["t"] - margin["b"] >= 8.5 * n
    assert drawn["meta"]["least_width"] - margin["l"] - margin["r"] >= 8.5 * n
    assert margin["l"] > 26 * 5.5


def test_squares_stand_around_the_groups():
    (figure,) = section([made_run(CROSSED)]).figures
    ends = [(s["x0"], s["x1"], s["y0"], s["y1"]) for s in layout(figure)["shapes"]]
    assert ends == [(-0.5, 1.5, -0.5, 1.5), (1.5, 3.5, 1.5, 3.5)]
    assert "groups that were learned" in figure.note


def test_without_blockout_the_order_is_that_of_the_known_groups():
    (figure,) = section([made_run(None, groups=(1, 0, 1, 0))]).figures
    assert [name.rstrip("\u200b") for name in traces(figure)[0]["x"]] == [
        "dog",
        "fir",
        "cat",
        "oak",
    ]
    assert "groups that the data knows" in figure.note


def test_names_that_are_alike_or_numbers_stay_apart():
    run = made_run(classes=("7", "7", "<b>", "0"))
    (figure,) = section([run]).figures
    labels = traces(figure)[0]["x"]
    assert len(set(labels)) == 4
    assert not any(label.isdigit() for label in labels)
    assert "<b>" not in labels[2]


def test_every_class_can_be_marked_on_the_diagonal():
    run = made_run(CROSSED)
    (figure,) = section([run]).figures
    points = traces(figure)[2]
    assert points["meta"] == shows_classes(run)
    assert points["x"] == points["y"] == traces(figure)[0]["x"]
    names = [("cat", "dog", "oak", "fir")[c] for (c,) in points["customdata"]]
    assert names == [label.rstrip("\u200b") for label in points["x"]]


def test_names_of_many_small_groups_do_not_lie_over_each_other():
    n = 400
    groups = np.repeat(np.arange(200), 2).tolist()
    run = made_run(None, classes=list(map(str, range(n))), confusion=np.eye(n, dtype=int),
                   groups=groups)  # fmt: skip
    (figure,) = section([run]).figures
    ticks = sorted(layout(figure)["xaxis"]["tickvals"])
    assert 10 < len(ticks) <= 51 and np.diff(ticks).min() >= 6
