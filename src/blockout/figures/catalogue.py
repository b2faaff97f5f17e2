"""Every figure by its number in the paper: its name, and how it is drawn from given runs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.figure import Figure

from blockout.figures import selection
from blockout.figures.architectures import architectures, components, equivalence
from blockout.figures.classes import classes
from blockout.figures.convergence import convergence
from blockout.figures.distributions import distributions
from blockout.figures.dropout import dropout
from blockout.figures.masks import masks, most_branched
from blockout.figures.models import models
from blockout.figures.nodes import nodes
from blockout.figures.sharing import sharing
from blockout.report.view import RunView

Runs = Sequence[RunView]


class Entry(NamedTuple):
    """A figure of the paper."""

    number: int
    name: str
    draw: Callable[[Runs, Sequence[str]], Figure]
    """From runs and the names of classes to mark; raises ``CannotDraw`` where runs do not do."""

    @property
    def stem(self) -> str:
        """Of its files.

        >>> CATALOGUE[5].stem
        'fig05_masks'
        """
        return f"fig{self.number:02}_{self.name}"


def _architectures(runs: Runs) -> Figure:
    """With what a run has learned, where one has; else an example."""
    if all(run.structure is None for run in runs):
        return architectures()
    run = most_branched(runs)
    assert run.structure is not None
    if any(a.outputs != b.inputs for a, b in pairwise(run.structure.layers)):
        raise selection.CannotDraw(f"the Blockout layers of {run.name} do not follow each other")
    return architectures(run.structure)


def _models(runs: Runs) -> Figure:
    """With the sizes of the first finished run; else the paper's for CIFAR-100."""
    for run in runs:
        if "model" in run.about:
            return models(run.about["model"], run.about.get("image_size", 32))
    return models()


CATALOGUE = {
    entry.number: entry
    for entry in (
        Entry(1, "architectures", lambda runs, marked: _architectures(runs)),
        Entry(2, "equivalence", lambda runs, marked: equivalence()),
        Entry(3, "components", lambda runs, marked: components()),
        Entry(4, "dropout", lambda runs, marked: dropout()),
        Entry(5, "masks", lambda runs, marked: masks(runs)),
        Entry(6, "sharing", lambda runs, marked: sharing()),
        Entry(7, "models", lambda runs, marked: _models(runs)),
        Entry(8, "convergence", lambda runs, marked: convergence(_some(runs))),
        Entry(9, "distributions", lambda runs, marked: distributions(runs)),
        Entry(10, "nodes", nodes),
        Entry(11, "classes", classes),
    )
}


def _some(runs: Runs) -> Runs:
    if not runs:
        raise selection.CannotDraw("needs a run, and none was given")
    return runs
