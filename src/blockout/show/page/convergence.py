"""How training went (Fig. 8): its cost, and its accuracy on training images and on others."""

from collections.abc import Sequence
from typing import Any, get_args

import plotly.graph_objects as go
from markupsafe import Markup

from blockout.runs import Run
from blockout.show.colours import PALETTE
from blockout.show.convergence import Line, Part, accuracy, cost_by_epoch, cost_by_step
from blockout.show.methods import Group, by_method
from blockout.show.page.drawing import curves, plain, thinned
from blockout.show.page.section import Figure, Section, bdi, html, paragraphs

LEAD = """Training cost is the error that training reduces: it should fall. Accuracy is the share of
images that the network classifies correctly: it should rise, on training images and on images that
it never learned from (hold-out, test). An epoch is one pass over all training images."""
ALONG_THE_WAY = """Training accuracy is counted while the network still learns, on altered images
and with nodes left out at random, so it can be below the accuracy on other images."""
SPLITS = {
    "test": ("test images", "solid", PALETTE[0]),
    "holdout": ("hold-out images", "dash", PALETTE[2]),
    "train": ("training images", "dot", PALETTE[1]),
}
"""Name, dash and, for a single run, colour."""
EPOCH, RIGHT = "Epoch", "Images classified correctly (%)"


def section(runs: Sequence[Run]) -> Section | None:
    """Several runs share figures, in the colours of their groups."""
    if not any(run.steps or run.epochs for run in runs):
        return None
    groups = by_method(runs)
    figures = [_cost(groups)]
    if any(run.epochs for run in runs):
        figures += [_of_one(runs[0])] if len(runs) == 1 else [_training(groups), _unseen(groups)]
    return Section("convergence", "How training went", LEAD, _progress(runs), tuple(figures))


def _cost(groups: Sequence[Group]) -> Figure:
    alone = sum(len(group.runs) for group in groups) == 1
    traces, note = [], "Thin lines: along the steps. Dots: the mean of each epoch."
    for group in groups:
        for i, run in enumerate(group.runs):
            legend = {"legendgroup": group.label, "showlegend": i == 0}
            traces.append(_cost_by_step(run, group).update(legend))
            traces.append(_cost_by_epoch(run, group).update(legend).update(showlegend=alone))
    if alone:
        every = groups[0].runs[0].steps[0].step if groups[0].runs[0].steps else 0
        traces[0].name = f"mean of {every} steps" if every > 1 else "each step"
        traces[1].name, note = "mean of an epoch", ""
    chart = curves(traces, EPOCH, "Training cost (cross-entropy)", 2 if alone else len(groups))
    chart.update_xaxes(rangemode="tozero").update_yaxes(rangemode="tozero")
    return Figure("convergence-cost", chart, note, "Training cost")


def _cost_by_step(run: Run, group: Group) -> go.Scatter:
    hover = "until step %{customdata:,}<br>cost %{y:.3f}"
    mode = "lines" if len(run.steps) > 1 else "markers"
    line = {"color": group.colour, "width": 1.5}
    return _trace(cost_by_step(run), run, group, hover, mode=mode, line=line)


def _cost_by_epoch(run: Run, group: Group) -> go.Scatter:
    hover = "mean of epoch %{customdata}<br>cost %{y:.3f}"
    marker = {"color": group.colour, "symbol": group.symbol, "size": 7}
    return _trace(cost_by_epoch(run), run, group, hover, mode="markers", marker=marker)


def _of_one(run: Run) -> Figure:
    """The accuracies of a single run on all its images."""
    traces = []
    for split in reversed(get_args(Part)):
        name, _, colour = SPLITS[split]
        traces += _accuracies([Group(name, (run,), colour)], split)
    chart = curves(traces, EPOCH, RIGHT, len(traces))
    return Figure("convergence-accuracy", chart, ALONG_THE_WAY, "Accuracy")


def _training(groups: Sequence[Group]) -> Figure:
    traces = [trace.update(line_dash="solid") for trace in _accuracies(groups, "train")]
    chart = curves(traces, EPOCH, RIGHT, len(groups))
    return Figure("convergence-training", chart, ALONG_THE_WAY, "Accuracy on training images")


def _unseen(groups: Sequence[Group]) -> Figure:
    holdout = [trace.update(showlegend=False) for trace in _accuracies(groups, "holdout")]
    chart = curves([*holdout, *_accuracies(groups, "test")], EPOCH, RIGHT, len(groups))
    note = "Solid: test images. Dashed: hold-out images, set aside from the training images."
    return Figure("convergence-test", chart, note if holdout else "", "Accuracy on other images")


def _accuracies(groups: Sequence[Group], split: Part) -> list[go.Scatter]:
    """One for each run that has such accuracies; one legend entry per group."""
    name, dash, _ = SPLITS[split]
    traces = []
    for group in groups:
        lines = [(run, accuracy(run, split)) for run in group.runs]
        for i, (run, line) in enumerate((run, line) for run, line in lines if line.values):
            look = {
                "mode": "lines+markers",
                "line": {"color": group.colour, "width": 1.5, "dash": dash},
                "marker": {"color": group.colour, "symbol": group.symbol, "size": 5},
                "legendgroup": group.label,
                "showlegend": i == 0,
            }
            hover = f"epoch %{{x}}<br>%{{y:.2f}} % of the {name}"
            traces.append(_trace(line, run, group, hover, **look))
    return traces


def _trace(seen: Line, run: Run, group: Group, hover: str, **look: Any) -> go.Scatter:
    x, y, labels = ([values[i] for i in thinned(len(values))] for values in seen)
    template = f"{hover}<extra>{plain(run.name)}</extra>"
    name = plain(group.label)
    return go.Scatter(x=x, y=y, customdata=labels, name=name, hovertemplate=template, **look)


def _progress(runs: Sequence[Run]) -> Markup:
    """Which runs have not finished."""
    told = []
    for run in runs:
        if not run.finished:
            done, steps = len(run.epochs), run.config.steps
            whole = f"epochs of {steps:,} steps" if steps else f"of {run.config.epochs} epochs"
            text = "{} has not finished: {} {} so far."
            told.append(html(text, bdi(run.name), done, whole))
    return paragraphs(told)
