"""Cost and accuracy through training (Fig. 8), per run and over the seeds of a group."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from blockout.runs import Run

Part = Literal["train", "holdout", "test"]


class Line(NamedTuple):
    """What one run has logged."""

    epochs: list[float]
    values: list[float]
    labels: list[int]
    """Per value, the step or the epoch that it belongs to."""


class Spread(NamedTuple):
    """Several runs of one group, at the epochs that all of them have."""

    epochs: Float[np.ndarray, " times"]
    mean: Float[np.ndarray, " times"]
    least: Float[np.ndarray, " times"]
    most: Float[np.ndarray, " times"]


def cost_by_step(run: Run) -> Line:
    """Each entry is the mean over the steps since the entry before, and stands in their middle."""
    starts = [0, *(entry.step for entry in run.steps[:-1])]
    middles = [
        entry.epoch * (1 + start / max(entry.step, 1)) / 2
        for start, entry in zip(starts, run.steps, strict=False)
    ]
    return Line(middles, [entry.loss for entry in run.steps], [entry.step for entry in run.steps])


def cost_by_epoch(run: Run) -> Line:
    """The mean of each epoch, in its middle."""
    numbers = [entry.epoch for entry in run.epochs]
    return Line([n - 0.5 for n in numbers], [entry.epoch_loss for entry in run.epochs], numbers)


def accuracy(run: Run, split: Part) -> Line:
    """In per cent after each epoch; epochs without it are left out."""
    found = [(entry.epoch, getattr(entry, f"{split}_accuracy")) for entry in run.epochs]
    found = [(epoch, value) for epoch, value in found if value is not None]
    numbers = [epoch for epoch, _ in found]
    return Line([float(n) for n in numbers], [value for _, value in found], numbers)


def over_seeds(lines: Sequence[Line]) -> Spread | None:
    """The mean and the range of the lines that hold anything; None without any.

    >>> over_seeds([Line([1, 2], [5.0, 9.0], [1, 2]), Line([1], [7.0], [1])]).mean.tolist()
    [6.0]
    """
    lines = [line for line in lines if line.values]
    if not lines:
        return None
    known = [dict(zip(line.epochs, line.values, strict=True)) for line in lines]
    shared = [epoch for epoch in lines[0].epochs if all(epoch in one for one in known)]
    values = np.array([[one[epoch] for epoch in shared] for one in known]).reshape(len(known), -1)
    return Spread(np.array(shared), values.mean(0), values.min(0), values.max(0))
