"""What became of memberships, and the figures that show it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockout.report.distributions import Outcome, ends, outcome, section, through_training
from blockout.report.view import BINS, Distributions, RunView
from blockout.training import TrainConfig


def histogram(*pieces: tuple[int, float, float]) -> np.ndarray:
    """So many memberships evenly between two values of P, and so on."""
    p = np.concatenate([np.linspace(low, high, count) for count, low, high in pieces])
    return np.histogram(p, BINS, (0, 1))[0]


HALF = histogram((1000, 0.48, 0.52))
PAPER_P0 = [0] * 7 + [2, 13, 34, 97, 176, 248, 341, 434, 492, 524, 542, 587, 572, 557, 533, 530,
            502, 504, 514, 459, 447, 427, 384, 380, 321, 314, 316, 313, 278, 251, 238, 244, 188,
            153, 134, 92, 81, 42, 17, 7, 0, 0, 0]  # fmt: skip
PAPER_P1 = [0, 0, 6, 26, 101, 216, 407, 590, 640, 661, 657, 534, 493, 452, 398, 299, 273, 227, 199,
            182, 175, 165, 150, 156, 117, 112, 126, 96, 124, 106, 105, 96, 74, 111, 120, 97, 130,
            113, 134, 140, 150, 161, 178, 218, 281, 413, 495, 639, 718, 227]  # fmt: skip
"""Of the 10 epochs on CIFAR-100 with 2048 nodes by the paper's rule."""


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (HALF, HALF, Outcome.STAYED),
        (HALF, histogram((1000, 0.44, 0.6)), Outcome.STAYED),  # moved by 0.04 on average
        (HALF, histogram((700, 0.0, 0.05), (300, 0.95, 1.0)), Outcome.DIVERGED),
        (HALF, histogram((980, 0.0, 0.01), (20, 0.99, 1.0)), Outcome.DIVERGED),  # 1 of 50
        (HALF, histogram((995, 0.0, 0.01), (5, 0.99, 1.0)), Outcome.FELL),
        (HALF, histogram((1000, 0.9, 1.0)), Outcome.ROSE),
        (HALF, histogram((600, 0.8, 1.0), (380, 0.5, 0.8), (20, 0.0, 0.2)), Outcome.ROSE),
        (HALF, histogram((1000, 0.0, 0.3)), Outcome.FELL),
        (HALF, histogram((1000, 0.0, 1.0)), Outcome.SPREAD),  # evenly: no valley between the ends
        (histogram((1000, 0.0, 1.0)), HALF, Outcome.NARROWED),
        (HALF, np.array(PAPER_P0), Outcome.SPREAD),
        (HALF, np.array(PAPER_P1), Outcome.DIVERGED),
    ],
)
def test_the_outcome_is_what_one_sees(first, last, expected):
    assert outcome(first, last) is expected


def test_a_structure_that_was_there_before_has_stayed():
    settled = histogram((700, 0.0, 0.01), (300, 0.99, 1.0))
    assert outcome(settled, settled) is Outcome.STAYED


def test_the_ends_are_up_to_a_fifth():
    assert ends(histogram((30, 0.0, 0.19), (50, 0.25, 0.75), (20, 0.81, 1.0))) == (0.3, 0.2)


def view(name: str = "one", **memberships: np.ndarray) -> RunView:
    """Three of P logged at two times: half of them go down, half stay."""
    later = histogram((500, 0.001, 0.001), (500, 0.501, 0.501))
    logged = Distributions(
        np.array([50, 100]),
        np.stack([histogram((1000, 0.501, 0.501)), later]),
        np.array([[0.5, 0.5, 0.5], [0.001, 0.25, 0.501]]),
    )
    flat = TrainConfig().flat() | {"data": "cifar100"}
    sets = dict.fromkeys(("P_0", "P_1", "P_2"), logged)
    return RunView(Path(name), name, flat, {}, {"steps": 120}, {}, [], [], sets, memberships)


def test_the_heatmap_holds_shares_in_logarithms():
    made = section([view()])
    assert made is not None
    heat = made.figures[0].data[0]
    assert heat["x"].tolist() == [50, 100]
    assert heat["z"].shape == (BINS, 2)
    assert heat["z"][25].tolist() == pytest.approx([2.0, np.log10(50)])  # all, then half
    assert heat["customdata"][0].tolist() == [0.0, 50.0]
    assert np.isnan(heat["z"][0, 0]) and heat["z"][0, 1] == pytest.approx(np.log10(50))
    assert np.isnan(heat["z"]).sum() == 2 * BINS - 3
    upper, median, lower = (made.figures[0].data[i]["y"].tolist() for i in (1, 2, 3))
    assert [round(line[-1], 3) for line in (upper, median, lower)] == [0.501, 0.25, 0.001]


def test_the_slider_sets_the_histogram_and_its_time():
    figure = section([view()]).figures[1]
    now, bars = figure.data[4], figure.data[5]
    assert now["x"] == [100, 100]
    assert bars["x"][0] == bars["x"][25] == 50.0 and sum(bars["x"]) == 100.0
    slider = figure.layout["sliders"][0]
    assert slider["active"] == 1
    first, last = slider["steps"]
    assert (first["label"], first["method"]) == ("50", "restyle")
    change, traces = first["args"]
    assert traces == [4, 5]
    assert change["x"][0] == [50, 50]
    assert change["x"][1][25] == 100.0 and sum(change["x"][1]) == 100.0
    assert last["args"][0]["x"] == [now["x"], bars["x"]]


def test_memberships_in_the_end_come_last():
    p = np.array([[0.001, 0.999], [0.001, 0.501]], dtype=np.float32)
    ended = view(P_2=p)
    sets = through_training(ended)
    assert sets["P_0"].steps.tolist() == [50, 100]
    assert sets["P_2"].steps.tolist() == [50, 100, 120]
    assert sets["P_2"].histograms[-1][[0, 25, 49]].tolist() == [2, 1, 1]
    assert sets["P_2"].quartiles[-1].tolist() == pytest.approx([0.001, 0.251, 0.6255])
    note = section([ended]).figures[2].note
    assert "50% of its P lie below 0.2 and 25% above 0.8; the median is 0.25" in note
    assert "The P of a node add up to 0.8 of 2 on average." in note


def test_long_histories_are_thinned():
    one = view()
    logged = one.distributions["P_0"]
    many = Distributions(
        np.arange(1, 1001),
        np.repeat(logged.histograms, 500, 0),
        np.repeat(logged.quartiles, 500, 0),
    )
    figure = section([replace(one, distributions={"P_0": many})]).figures[0]
    assert figure.data[0]["z"].shape == (BINS, 200)
    assert len(figure.layout["sliders"][0]["steps"]) == 100
    assert figure.data[0]["x"][[0, -1]].tolist() == [1, 1000]


def test_each_figure_says_which_nodes_and_what_became_of_them():
    figures = section([view()]).figures
    assert [f.title for f in figures] == [
        "P_0: outputs of FC1", "P_1: outputs of FC2", "P_2: the classes",
    ]  # fmt: skip
    assert figures[0].note.startswith("P_0 spread out, but not into branches: nodes lean")


def test_of_several_runs_the_first_is_drawn_and_all_are_told():
    fixed = view("b & c")
    stay = {
        name: replace(logged, histograms=logged.histograms[[0, 0]])
        for name, logged in fixed.distributions.items()
    }
    made = section([view("a"), replace(fixed, distributions=stay)])
    assert "The figures show <bdi>a</bdi>" in made.body
    assert "<bdi>b &amp; c</bdi></th><td>stayed as it was</td>" in made.body
    assert "<bdi>a</bdi></th><td>spread out, but not into branches</td>" in made.body
    assert len(made.figures) == 3


def test_without_blockout_there_is_nothing_to_show(baseline):
    assert section([RunView.load(baseline)]) is None


def test_a_real_run_has_a_figure_for_each_set(run, unfinished):
    for folder in (run, unfinished):
        real = RunView.load(folder)
        figures = section([real]).figures
        assert [figure.id for figure in figures] == [f"distributions-P_{j}" for j in range(3)]
        bars = figures[0].data[5]["x"]
        assert sum(bars) == pytest.approx(100, abs=BINS * 0.005)  # each is rounded to 0.01
