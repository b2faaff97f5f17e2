"""Cost and accuracy through training, from what was logged."""

from dataclasses import replace
from pathlib import Path

from blockout.report.convergence import section
from blockout.report.section import PALETTE
from blockout.report.view import RunView
from blockout.training import TrainConfig

STEPS = [
    {"step": 50, "epoch": 0.5, "loss": 4.0, "train_accuracy": 5.0, "lr": 0.1},
    {"step": 60, "warning": "nearly all of P_0 is near one"},
    {"step": 100, "epoch": 1.0, "loss": 3.0, "train_accuracy": 9.0, "lr": 0.1},
    {"step": 150, "epoch": 1.5, "loss": 2.5, "train_accuracy": 20.0, "lr": 0.1},
]
EPOCHS = [
    {"step": 100, "epoch": 1, "epoch_loss": 3.5, "train_accuracy": 9.0, "holdout_accuracy": 14.0,
     "test_accuracy": 15.5},
    {"step": 200, "epoch": 2, "epoch_loss": 2.4, "train_accuracy": 22.0, "holdout_accuracy": 30.0,
     "test_accuracy": 31.5},
]  # fmt: skip


def view(name: str = "one", **config) -> RunView:
    flat = TrainConfig().flat() | {"data": "cifar100"} | config
    return RunView(Path(name), name, flat, {}, {"steps": 200}, {}, STEPS, EPOCHS, {}, {})


def figures(*views: RunView) -> dict:
    made = section(views)
    assert made is not None
    return {figure.id: figure for figure in made.figures}


def test_one_run_shows_its_cost_by_step_and_by_epoch():
    by_step, by_epoch = figures(view())["convergence-cost"].data
    assert (by_step["x"], by_step["y"]) == ([0.25, 0.75, 1.25], [4.0, 3.0, 2.5])
    assert by_step["customdata"] == [50, 100, 150]
    assert (by_epoch["x"], by_epoch["y"]) == ([0.5, 1.5], [3.5, 2.4])  # in the middle of its epoch
    assert (by_step["name"], by_epoch["name"]) == ("mean of 50 steps", "mean of an epoch")


def test_one_run_shows_its_three_accuracies_together():
    found = {trace["name"]: trace for trace in figures(view())["convergence-accuracy"].data}
    assert {name: trace["y"] for name, trace in found.items()} == {
        "test images": [15.5, 31.5],
        "hold-out images": [14.0, 30.0],
        "training images": [9.0, 22.0],
    }
    assert all(trace["x"] == [1, 2] for trace in found.values())


def test_without_a_holdout_nothing_is_said_of_one():
    less = [{k: v for k, v in line.items() if k != "holdout_accuracy"} for line in EPOCHS]
    without = replace(view(), epochs=less)
    names = [trace["name"] for trace in figures(without)["convergence-accuracy"].data]
    assert names == ["test images", "training images"]
    several = figures(without, replace(without, name="two"))["convergence-test"]
    assert len(several.data) == 2
    assert several.note == ""


def test_several_runs_have_the_colour_of_their_method_and_one_entry_each_in_the_legend():
    runs = view("a"), view("b", seed=1), view("c", method="dropout")
    for figure in figures(*runs).values():
        colours = [(t.get("line") or t["marker"])["color"] for t in figure.data]
        assert set(colours) == set(PALETTE[:2])
        assert [t["name"] for t in figure.data if t["showlegend"]] == [
            "Blockout, paper's rule, 512 nodes",
            "Dropout, 512 nodes",
        ]
    tests = figures(*runs)["convergence-test"].data
    assert [t["line"]["dash"] for t in tests] == ["dash"] * 3 + ["solid"] * 3
    assert tests[3]["y"] == [15.5, 31.5]
    training = figures(*runs)["convergence-training"].data
    assert [t["y"] for t in training] == [[9.0, 22.0]] * 3


def test_a_long_history_is_thinned_to_its_ends():
    lines = [STEPS[0] | {"step": i, "loss": float(i)} for i in range(1, 5001)]
    by_step = figures(replace(view(), steps=lines))["convergence-cost"].data[0]
    assert len(by_step["y"]) == 200
    assert (by_step["y"][0], by_step["y"][-1]) == (1.0, 5000.0)


def test_what_has_not_finished_is_said_and_what_has_not_begun_is_left_out():
    half = replace(view("<b>half"), result={})
    made = section([half])
    assert made is not None
    assert "<bdi>&lt;b&gt;half</bdi> has not finished: 2 of 10 epochs so far." in made.body
    begun = replace(half, steps=[], epochs=[])
    assert section([begun]) is None
    first = section([replace(half, epochs=[])])
    assert first is not None
    assert [figure.id for figure in first.figures] == ["convergence-cost"]
    assert "0 of 10 epochs" in first.body


def test_names_of_runs_are_text_in_figures():
    trace = figures(view("<b>x</b>"))["convergence-cost"].data[0]
    assert trace["hovertemplate"].endswith("<extra>&lt;b&gt;x&lt;/b&gt;</extra>")


def test_a_real_run_is_drawn_as_it_was_logged(run):
    real = RunView.load(run)
    cost, accuracy = section([real]).figures
    assert cost.data[0]["y"] == [line["loss"] for line in real.steps if "loss" in line]
    assert accuracy.data[0]["y"][-1] == real.result["test"]["accuracy"]
