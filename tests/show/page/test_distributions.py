"""The figures that show what became of memberships."""

from dataclasses import replace

import numpy as np
import pytest

from blockout.runs import Run
from blockout.runs.documents import BINS
from blockout.runs.run import Distributions
from blockout.show.page.distributions import section

from ..made import bare_run, histogram, layout, result, traces


def logged() -> Distributions:
    """P at two times: half of them go down, half stay."""
    later = histogram((500, 0.001, 0.001), (500, 0.501, 0.501))
    return Distributions(
        np.array([50, 100]),
        np.stack([histogram((1000, 0.501, 0.501)), later]),
        np.array([[0.5, 0.5, 0.5], [0.001, 0.25, 0.501]]),
    )


def view(name: str = "one", **memberships: np.ndarray) -> Run:
    sets = dict.fromkeys(("P_0", "P_1", "P_2"), logged())
    run = bare_run(name)
    return replace(run, result=result(steps=120), distributions=sets, memberships=memberships)


def test_the_heatmap_holds_shares_in_logarithms():
    made = section([view()])
    assert made is not None
    heat = traces(made.figures[0])[0]
    assert heat["x"].tolist() == [50, 100]
    assert heat["z"].shape == (BINS, 2)
    assert heat["z"][25].tolist() == pytest.approx([2.0, np.log10(50)])  # all, then half
    assert heat["customdata"][0].tolist() == [0.0, 50.0]
    assert np.isnan(heat["z"][0, 0]) and heat["z"][0, 1] == pytest.approx(np.log10(50))
    assert np.isnan(heat["z"]).sum() == 2 * BINS - 3
    upper, median, lower = (traces(made.figures[0])[i]["y"].tolist() for i in (1, 2, 3))
    assert [round(line[-1], 3) for line in (upper, median, lower)] == [0.501, 0.25, 0.001]


def test_the_slider_sets_the_histogram_and_its_time():
    figure = section([view()]).figures[1]
    now, bars = traces(figure)[4], traces(figure)[5]
    assert now["x"] == [100, 100]
    assert bars["x"][0] == bars["x"][25] == 50.0 and sum(bars["x"]) == 100.0
    slider = layout(figure)["sliders"][0]
    assert slider["active"] == 1
    first, last = slider["steps"]
    assert (first["label"], first["method"]) == ("50", "restyle")
    change, changed = first["args"]
    assert changed == [4, 5]
    assert change["x"][0] == [50, 50]
    assert change["x"][1][25] == 100.0 and sum(change["x"][1]) == 100.0
    assert last["args"][0]["x"] == [now["x"], bars["x"]]


def test_memberships_in_the_end_come_last():
    p = np.array([[0.001, 0.999], [0.001, 0.501]], dtype=np.float32)
    figure = section([view(P_2=p)]).figures[2]
    assert traces(figure)[0]["x"].tolist() == [50, 100, 120]
    note = figure.note
    assert "At step 120, 50% of its P are below 0.2 and 25% above 0.8; the median is 0.25" in note
    assert "On average, the P of a node add up to 0.8 of 2." in note


def test_long_histories_are_thinned():
    one = view()
    many = Distributions(
        np.arange(1, 1001),
        np.repeat(logged().histograms, 500, 0),
        np.repeat(logged().quartiles, 500, 0),
    )
    figure = section([replace(one, distributions={"P_0": many})]).figures[0]
    assert traces(figure)[0]["z"].shape == (BINS, 200)
    assert len(layout(figure)["sliders"][0]["steps"]) == 100
    assert traces(figure)[0]["x"][[0, -1]].tolist() == [1, 1000]


def test_each_figure_says_which_nodes_and_what_became_of_them():
    figures = section([view()]).figures
    assert [f.title for f in figures] == [
        "P_0: outputs of FC1", "P_1: outputs of FC2", "P_2: the classes",
    ]  # fmt: skip
    assert figures[0].note.startswith("P_0 spread out, but not into branches: nodes lean")


def test_of_several_runs_the_first_is_drawn_and_all_are_told():
    fixed = view("b & c")
    stay = {
        name: replace(seen, histograms=seen.histograms[[0, 0]])
        for name, seen in fixed.distributions.items()
    }
    made = section([view("a"), replace(fixed, distributions=stay)])
    assert "The figures show <bdi>a</bdi>" in made.body
    assert "<bdi>b &amp; c</bdi></th><td>stayed as it was</td>" in made.body
    assert "<bdi>a</bdi></th><td>spread out, but not into branches</td>" in made.body
    assert len(made.figures) == 3


def test_without_blockout_there_is_nothing_to_show(baseline):
    assert section([Run.open(baseline)]) is None


def test_a_real_run_has_a_figure_for_each_set(run, unfinished):
    for folder in (run, unfinished):
        real = Run.open(folder)
        figures = section([real]).figures
        assert [figure.id for figure in figures] == [f"distributions-P_{j}" for j in range(3)]
        bars = traces(figures[0])[5]["x"]
        assert sum(bars) == pytest.approx(100, abs=BINS * 0.005)  # each is rounded to 0.01
