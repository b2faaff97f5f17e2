"""Cost and accuracy through training, from what was logged."""

from dataclasses import replace

from msgspec.structs import replace as changed

from blockout.runs import Run
from blockout.runs.documents import EpochEntry, StepEntry
from blockout.show.colours import PALETTE
from blockout.show.page.convergence import section

from ..made import bare_run, traces

STEPS = (
    StepEntry(50, 0.5, 4.0, 5.0, 0.1),
    StepEntry(100, 1.0, 3.0, 9.0, 0.1),
    StepEntry(150, 1.5, 2.5, 20.0, 0.1),
)
EPOCHS = (
    EpochEntry(100, 1, 3.5, 9.0, holdout_accuracy=14.0, test_accuracy=15.5),
    EpochEntry(200, 2, 2.4, 22.0, holdout_accuracy=30.0, test_accuracy=31.5),
)


def view(name: str = "one", **flags) -> Run:
    return replace(bare_run(name, **flags), steps=STEPS, epochs=EPOCHS)


def figures(*views: Run) -> dict:
    made = section(views)
    assert made is not None
    return {figure.id: figure for figure in made.figures}


def test_one_run_shows_its_cost_by_step_and_by_epoch():
    by_step, by_epoch = traces(figures(view())["convergence-cost"])
    assert (by_step["x"], by_step["y"]) == ([0.25, 0.75, 1.25], [4.0, 3.0, 2.5])
    assert by_step["customdata"] == [50, 100, 150]
    assert (by_epoch["x"], by_epoch["y"]) == ([0.5, 1.5], [3.5, 2.4])  # in the middle of its epoch
    assert (by_step["name"], by_epoch["name"]) == ("mean of 50 steps", "mean of an epoch")


def test_one_run_shows_its_three_accuracies_together():
    found = {trace["name"]: trace for trace in traces(figures(view())["convergence-accuracy"])}
    assert {name: trace["y"] for name, trace in found.items()} == {
        "test images": [15.5, 31.5],
        "hold-out images": [14.0, 30.0],
        "training images": [9.0, 22.0],
    }
    assert all(trace["x"] == [1, 2] for trace in found.values())


def test_without_a_holdout_nothing_is_said_of_one():
    less = tuple(changed(entry, holdout_accuracy=None) for entry in EPOCHS)
    without = replace(view(), epochs=less)
    names = [trace["name"] for trace in traces(figures(without)["convergence-accuracy"])]
    assert names == ["test images", "training images"]
    several = figures(without, replace(without, name="two"))["convergence-test"]
    assert len(traces(several)) == 2
    assert several.note == ""


def test_several_runs_have_the_colour_of_their_method_and_one_entry_each_in_the_legend():
    runs = view("a"), view("b", seed=1), view("c", method="dropout")
    for figure in figures(*runs).values():
        colours = [(t.get("line") or t["marker"])["color"] for t in traces(figure)]
        assert set(colours) == set(PALETTE[:2])
        assert [t["name"] for t in traces(figure) if t["showlegend"]] == [
            "Blockout, paper's rule, 512 nodes",
            "Dropout, 512 nodes",
        ]
    tests = traces(figures(*runs)["convergence-test"])
    assert [t["line"]["dash"] for t in tests] == ["dash"] * 3 + ["solid"] * 3
    assert tests[3]["y"] == [15.5, 31.5]
    training = traces(figures(*runs)["convergence-training"])
    assert [t["y"] for t in training] == [[9.0, 22.0]] * 3


def test_a_long_history_is_thinned_to_its_ends():
    lines = tuple(changed(STEPS[0], step=i, loss=float(i)) for i in range(1, 5001))
    by_step = traces(figures(replace(view(), steps=lines))["convergence-cost"])[0]
    assert len(by_step["y"]) == 200
    assert (by_step["y"][0], by_step["y"][-1]) == (1.0, 5000.0)


def test_what_has_not_finished_is_said_and_what_has_not_begun_is_left_out():
    half = replace(view("<b>half"), result=None)
    made = section([half])
    assert made is not None
    assert "<bdi>&lt;b&gt;half</bdi> has not finished: 2 of 10 epochs so far." in made.body
    begun = replace(half, steps=(), epochs=())
    assert section([begun]) is None
    first = section([replace(half, epochs=())])
    assert first is not None
    assert [figure.id for figure in first.figures] == ["convergence-cost"]
    assert "0 of 10 epochs" in first.body


def test_names_of_runs_are_text_in_figures():
    trace = traces(figures(view("<b>x</b>"))["convergence-cost"])[0]
    assert trace["hovertemplate"].endswith("<extra>&lt;b&gt;x&lt;/b&gt;</extra>")


def test_a_real_run_is_drawn_as_it_was_logged(run):
    real = Run.open(run)
    cost, accuracy = section([real]).figures
    assert traces(cost)[0]["y"] == [entry.loss for entry in real.steps]
    assert traces(accuracy)[0]["y"][-1] == real.result.test.accuracy
