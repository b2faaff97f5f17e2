"""Every figure by its number in the paper: its name, and how it is drawn from runs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.figure import Figure

from blockout.runs import Run
from blockout.show.figures.architectures import architectures, components, equivalence
from blockout.show.figures.classes import classes
from blockout.show.figures.convergence import convergence
from blockout.show.figures.distributions import distributions
from blockout.show.figures.dropout import dropout
from blockout.show.figures.masks import masks
from blockout.show.figures.models import models
from blockout.show.figures.nodes import nodes
from blockout.show.figures.selection import CannotDraw, most_branched
from blockout.show.figures.sharing import sharing

Runs = Sequence[Run]


class Entry(NamedTuple):
    """A figure of the paper."""

    number: int
    name: str
    draw: Callable[[Runs, Sequence[str]], Figure]
    """From runs and the names of classes to mark; raises ``CannotDraw`` if the runs lack it."""

    @property
    def stem(self) -> str:
        """The name of its files without the ending.

        >>> CATALOGUE[5].stem
        'fig05_masks'
        """
        return f"fig{self.number:02}_{self.name}"


def _architectures(runs: Runs) -> Figure:
    """With the structure that a run has learned, or an example."""
    if all(run.structure is None for run in runs):
        return architectures()
    run = most_branched(runs)
    assert run.structure is not None
    if any(a.outputs != b.inputs for a, b in pairwise(run.structure.layers)):
        raise CannotDraw(f"the Blockout layers of {run.name} do not follow each other")
    return architectures(run.structure)


def _models(runs: Runs) -> Figure:
    """With the sizes of the first finished run, or the paper's for CIFAR-100."""
    for run in runs:
        if run.description is not None:
            return models(run.description.model, run.description.image_size)
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
        Entry(8, "convergence", lambda runs, marked: convergence(runs)),
        Entry(9, "distributions", lambda runs, marked: distributions(runs)),
        Entry(10, "nodes", nodes),
        Entry(11, "classes", classes),
    )
}
