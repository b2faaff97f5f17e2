"""How training went (Fig. 8): its cost, and accuracy on images it learns from and on others."""

import html
from collections.abc import Sequence
from typing import Any

from blockout.report.history import layout, thinned
from blockout.report.methods import Group, by_method
from blockout.report.section import PALETTE, Figure, Section, plain
from blockout.report.view import RunView
from blockout.training.config import TrainConfig

LEAD = (
    "Training cost is the error that training makes smaller: it should fall. Accuracy is the share "
    "of images that the network classifies correctly: it should rise, on training images and on "
    "those it has never learned from (hold-out, test). An epoch is one pass over all training "
    "images."
)
ALONG_THE_WAY = (
    "Training accuracy is counted while the network still learns, on altered images and with nodes "
    "left out at random; so it can lie below the accuracy on other images."
)
SPLITS = {
    "test": ("test images", "solid", PALETTE[0]),
    "holdout": ("hold-out images", "dash", PALETTE[2]),
    "train": ("training images", "dot", PALETTE[1]),
}
"""Key of the metrics, name, dash and, for a single run, colour."""
EPOCH, RIGHT = "Epoch", "Images classified correctly (%)"


def section(runs: Sequence[RunView]) -> Section | None:
    """Several runs lie over each other, in the colour of their method."""
    groups = by_method(runs)
    if not any(_steps(view) or view.epochs for view in runs):
        return None
    figures = [_cost(groups)]
    if not any(view.epochs for view in runs):
        pass
    elif len(runs) == 1:
        figures.append(_accuracy_of_one(runs[0]))
    else:
        figures += [_training_accuracy(groups), _unseen_accuracy(groups)]
    return Section("convergence", "How training went", LEAD, _progress(runs), tuple(figures))


def _cost(groups: list[Group]) -> Figure:
    alone = sum(len(group.runs) for group in groups) == 1
    entries = 2 if alone else len(groups)
    made = layout(EPOCH, "Training cost (cross-entropy)", entries)
    made["xaxis"] |= {"rangemode": "tozero"}
    made["yaxis"] |= {"rangemode": "tozero"}
    if alone:
        traces = _cost_of_one(groups[0].runs[0], groups[0])
        return Figure("convergence-cost", traces, made, title="Training cost")
    traces = []
    for group in groups:
        for i, view in enumerate(group.runs):
            legend = {"legendgroup": group.label, "showlegend": i == 0}
            traces.append(_cost_by_step(view, group) | legend)
            traces.append(_cost_by_epoch(view, group) | legend | {"showlegend": False})
    note = "Thin lines: along the steps. Dots: the mean of each epoch."
    return Figure("convergence-cost", traces, made, note, "Training cost")


def _cost_of_one(view: RunView, group: Group) -> list[dict[str, Any]]:
    lines = _steps(view)
    between = lines[0]["step"] if lines else 0
    every = f"mean of {between} steps" if between > 1 else "each step"
    return [
        _cost_by_step(view, group) | {"name": every},
        _cost_by_epoch(view, group) | {"name": "mean of an epoch"},
    ]


def _cost_by_step(view: RunView, group: Group) -> dict[str, Any]:
    """In the middle of the steps that each is the mean of."""
    lines = _steps(view)
    starts = [0, *(at["step"] for at in lines[:-1])] if lines else []
    middle = [
        at["epoch"] * (1 + start / at["step"]) / 2 for start, at in zip(starts, lines, strict=True)
    ]
    chosen = thinned(len(lines))
    lines, middle = [lines[i] for i in chosen], [middle[i] for i in chosen]
    return _line(view, group, middle, [at["loss"] for at in lines]) | {
        "customdata": [at["step"] for at in lines],
        "mode": "lines" if len(lines) > 1 else "markers",
        "line": {"color": group.colour, "width": 1.5},
        "hovertemplate": "until step %{customdata:,}<br>cost %{y:.3f}" + _extra(view),
    }


def _cost_by_epoch(view: RunView, group: Group) -> dict[str, Any]:
    """In the middle of each epoch, which it is the mean of."""
    lines = [view.epochs[i] for i in thinned(len(view.epochs))]
    middle = [at["epoch"] - 0.5 for at in lines]
    return _line(view, group, middle, [at["epoch_loss"] for at in lines]) | {
        "customdata": [at["epoch"] for at in lines],
        "mode": "markers",
        "marker": {"color": group.colour, "symbol": group.symbol, "size": 7},
        "hovertemplate": "mean of epoch %{customdata}<br>cost %{y:.3f}" + _extra(view),
    }


def _accuracy_of_one(view: RunView) -> Figure:
    traces = []
    for split, (name, _, colour) in SPLITS.items():
        trace = _accuracy_line(view, Group("", (view,), colour), split)
        traces += [trace | {"name": name}] if trace["x"] else []
    made = layout(EPOCH, RIGHT, len(traces))
    return Figure("convergence-accuracy", traces, made, ALONG_THE_WAY, "Accuracy")


def _training_accuracy(groups: list[Group]) -> Figure:
    made = layout(EPOCH, RIGHT, len(groups))
    traces = _lines_of(groups, "train")
    for trace in traces:
        trace["line"] |= {"dash": "solid"}
    title = "Accuracy on training images"
    return Figure("convergence-training", traces, made, ALONG_THE_WAY, title)


def _unseen_accuracy(groups: list[Group]) -> Figure:
    made = layout(EPOCH, RIGHT, len(groups))
    holdout = _lines_of(groups, "holdout")
    for trace in holdout:
        trace["showlegend"] = False
    note = "Solid: test images. Dashed: hold-out images, set aside from the training images."
    figure = "convergence-test", [*holdout, *_lines_of(groups, "test")], made
    return Figure(*figure, note if holdout else "", "Accuracy on other images")


def _lines_of(groups: list[Group], split: str) -> list[dict[str, Any]]:
    """One for each run that has such accuracies; one entry of the legend a method."""
    traces = []
    for group in groups:
        lines = [_accuracy_line(view, group, split) for view in group.runs]
        for i, line in enumerate(line for line in lines if line["x"]):
            traces.append(line | {"legendgroup": group.label, "showlegend": i == 0})
    return traces


def _accuracy_line(view: RunView, group: Group, split: str) -> dict[str, Any]:
    key = f"{split}_accuracy"
    lines = [at for at in view.epochs if at.get(key) is not None]
    lines = [lines[i] for i in thinned(len(lines))]
    name, dash, _ = SPLITS[split]
    return _line(view, group, [at["epoch"] for at in lines], [at[key] for at in lines]) | {
        "mode": "lines+markers",
        "line": {"color": group.colour, "width": 1.5, "dash": dash},
        "marker": {"color": group.colour, "symbol": group.symbol, "size": 5},
        "hovertemplate": f"epoch %{{x}}<br>%{{y:.2f}} % of the {name}" + _extra(view),
    }


def _line(view: RunView, group: Group, x: list[float], y: list[float]) -> dict[str, Any]:
    return {"type": "scatter", "name": plain(group.label), "x": x, "y": y}


def _extra(view: RunView) -> str:
    return f"<extra>{plain(view.name)}</extra>"


def _steps(view: RunView) -> list[dict[str, Any]]:
    """Entries with a cost; others hold a warning."""
    return [line for line in view.steps if "loss" in line]


def _progress(runs: Sequence[RunView]) -> str:
    """Which runs have not come to their end."""
    said = []
    for view in runs:
        if not view.finished:
            done = view.epochs[-1]["epoch"] if view.epochs else 0
            steps = view.config.get("steps")
            whole = f"{steps:,} steps" if steps else f"{TrainConfig.from_flat(view.config).epochs}"
            told = f"{done} epochs of {whole}" if steps else f"{done} of {whole} epochs"
            name = f"<bdi>{html.escape(view.name)}</bdi>"
            said.append(f"<p>{name} has not finished: {told} so far.</p>")
    return "\n".join(said)
