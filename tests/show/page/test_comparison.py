"""Methods side by side, and whether runs found the same groups."""

from dataclasses import replace

import numpy as np
import pytest

from blockout.runs import Run
from blockout.show.colours import PALETTE
from blockout.show.page.comparison import agreements, same_classes, scores, section
from blockout.structure.groups import consistency

from ..made import bare_run, description, layout, result, traces

P = np.array([[0.9, 0.1, 0.1], [0.8, 0.2, 0.0], [0.1, 0.9, 0.3], [0.2, 0.1, 0.9]])
OTHER = np.array([[0.9, 0.1, 0.1], [0.1, 0.9, 0.2], [0.9, 0.2, 0.1], [0.1, 0.8, 0.1]])


def view(name: str, accuracy: float | None = None, p: np.ndarray | None = None, **flags) -> Run:
    names = ["ash", "elm", "oak", "fir", *map(str, range(4, 4 if p is None else len(p)))]
    return replace(
        bare_run(name, **flags),
        description=description(names, flags.get("data", "cifar100")),
        result=None if accuracy is None else result(accuracy),
        memberships={} if p is None else {"P_0": np.zeros((7, 3)), "P_1": p},
    )


SEEDS = [view("a", 50.0), view("b", 52.0, seed=1), view("c", 57.0, seed=2)]


def test_a_method_has_the_mean_and_the_standard_deviation_of_its_seeds():
    blockout, dropout = scores([*SEEDS, view("d", 51.5, method="dropout")])
    assert blockout.values == (50.0, 52.0, 57.0)
    assert blockout.mean == 53.0
    assert blockout.spread == pytest.approx(13**0.5)  # (9 + 1 + 16) / 2
    assert (dropout.mean, dropout.spread) == (51.5, None)


def test_the_table_says_mean_spread_runs_and_seeds():
    body = section([*SEEDS, view("d", 51.5, method="dropout")]).body
    row = "<bdi>Blockout, paper&#39;s rule, 512 nodes</bdi></th><td>53.00</td><td>3.61</td>"
    assert f"{row}<td>3</td><td>0, 1, 2</td>" in body
    assert "<bdi>Dropout, 512 nodes</bdi></th><td>51.50</td><td>–</td><td>1</td><td>0</td>" in body


def test_the_figure_shows_each_run_and_the_mean_of_several():
    figure = section([*SEEDS, view("<d>", 51.5, method="dropout")]).figures[0]
    runs, mean, single = traces(figure)
    assert (runs["x"], runs["y"]) == ([50.0, 52.0, 57.0], [0, 0, 0])
    assert [row[0] for row in runs["customdata"]] == ["a", "b", "c"]
    assert mean["x"] == [53.0]
    assert mean["error_x"]["array"] == pytest.approx([13**0.5])
    assert (single["x"], single["y"]) == ([51.5], [1])
    assert single["customdata"] == [["&lt;d&gt;", 0]]
    assert runs["marker"]["color"] == mean["marker"]["color"] == PALETTE[0]
    assert single["marker"]["color"] == PALETTE[1]
    assert layout(figure)["yaxis"]["ticktext"] == [
        "Blockout, paper's rule,<br>512 nodes", "Dropout, 512 nodes",
    ]  # fmt: skip


def test_runs_of_different_length_are_not_averaged():
    found = scores([view("a", 50.0), view("b", 60.0, seed=1, epochs=20)])
    assert [score.values for score in found] == [(50.0,), (60.0,)]


def test_accuracy_on_different_images_stands_in_different_figures():
    figures = section([view("a", 50.0), view("b", 90.0, data="birds")]).figures
    assert [f.title for f in figures] == [
        "Test accuracy on cifar100", "Test accuracy on birds",
    ]  # fmt: skip
    assert [traces(f)[0]["x"] for f in figures] == [[50.0], [90.0]]


def test_one_run_is_not_compared_and_one_that_trains_is_named():
    assert section(SEEDS[:1]) is None
    made = section([SEEDS[0], view("<later>")])
    assert "Still training and so not compared: <bdi>&lt;later&gt;</bdi>." in made.body
    assert traces(made.figures[0])[0]["x"] == [50.0]
    none = section([view("x"), view("y")])
    assert none.figures == ()


def test_agreement_is_that_of_the_analysis_whatever_the_order_of_clusters():
    views = [view("a", 50.0, P), view("b", 52.0, P[:, [2, 0, 1]]), view("c", 51.0, OTHER)]
    found = agreements(views)
    assert found[0, 1].correlation == pytest.approx(1.0)
    assert found[0, 2] == consistency(P, OTHER)
    matrix = traces(section(views).figures[-1])[0]["z"]
    expected = consistency(P, OTHER).correlation
    assert matrix == pytest.approx(
        np.array([[1, 1, expected], [1, 1, expected], [expected, expected, 1]]), abs=1e-4
    )
    assert "Do they find the same groups?" in section(views).body


def test_pairs_that_agree_better_than_chance_are_counted():
    rng = np.random.default_rng(1)
    one, two = rng.random((2, 12, 3))
    same = [view(name, 50.0, one) for name in "ab"]
    some = section([*same, view("c", 51.0, two)]).body
    assert "1 of the 3 pairs agrees better than chance (p at most 0.05)" in some
    assert "3 of the 3 pairs agree better" in section([*same, view("c", 51.0, one)]).body
    others = [view(name, 50.0, p) for name, p in zip("ab", rng.random((2, 12, 3)), strict=True)]
    assert "none of the 3 pairs agree better" in section([*others, same[0]]).body


def test_two_runs_agree_in_words_and_only_on_the_same_classes():
    one, two = view("a", 50.0, P), view("b", 52.0, P)
    made = section([one, two])
    assert "put them together with correlation 1.00 (p = " in made.body
    assert [figure.id for figure in made.figures] == ["comparison-accuracy-0"]
    renamed = replace(two, description=description(["ash", "elm", "oak", "yew"]))
    assert same_classes([one, renamed, view("c", 50.0)]) == []
    assert "same groups" not in section([one, renamed]).body


def test_real_runs_with_and_without_blockout_are_compared(run, baseline, unfinished):
    views = [Run.open(folder) for folder in (run, baseline, unfinished)]
    figure = section(views).figures[0]
    assert [trace["x"] for trace in traces(figure)] == [
        [pytest.approx(view.result.test.accuracy, abs=1e-6)] for view in views[:2]
    ]


def test_the_mean_of_equal_accuracies_stands_exactly_on_them():
    """Or the axis would span the rounding of one number, which Plotly cannot draw."""
    runs = [view(name, 85.41666666666666, seed=seed) for seed, name in enumerate("abc")]
    dots, mean = traces(section(runs).figures[0])
    assert set(dots["x"]) == set(mean["x"])
