"""Which of the given runs a figure shows, and what it calls them."""

from collections.abc import Callable, Sequence
from typing import Any

from blockout.models.config import METHODS
from blockout.report.view import RunView

NAMES = {
    "baseline": "Baseline", "fc": "Baseline + FC", "dropout": "Baseline + FC + Dropout",
    "dropconnect": "Baseline + FC + DropConnect", "blockout": "Blockout",
}  # fmt: skip
"""As the paper's tables call them."""
WITHOUT_EFFECT = frozenset((
    "seed", "run", "restart", "workers", "cache", "stream", "accelerator", "devices", "num_nodes",
    "log_every", "checkpoint_minutes", "tensorboard", "wandb", "mlflow",
))  # fmt: skip
"""Flags in which repetitions of one experiment may differ."""
MOST_ROWS = 6


class CannotDraw(ValueError):
    """The given runs do not hold what a figure shows; the message says what they lack."""


def labels(runs: Sequence[RunView]) -> list[str]:
    """What each run is called: its method, and as much as tells it apart from the others.

    Runs that differ in their seed alone share a label.
    """
    named = [_method(run) for run in runs]
    for describe in (_data, _nodes, _clusters, _dropout):
        named = _told_apart(runs, named, describe)
    recipes = [_recipe(run) for run in runs]
    for name in set(named):
        alike = [i for i, other in enumerate(named) if other == name]
        if any(recipes[i] != recipes[alike[0]] for i in alike):
            for i in alike:
                named[i] = f"{name}, {runs[i].name}"
    return named


def in_order(runs: Sequence[RunView]) -> list[RunView]:
    """By method as in the paper's tables, then by width, then as given."""
    return sorted(runs, key=lambda run: (METHODS.index(run.method), width(run)))


def branching(runs: Sequence[RunView], *, finished: bool) -> list[RunView]:
    """The runs that learn P, one of each kind (the first of several seeds): those that draw first,
    then soft ones, narrow before wide."""
    found = [run for run in runs if (run.memberships if finished else run.distributions)]
    if not found:
        raise CannotDraw(_lacking(runs, finished))
    first: dict[str, RunView] = {}
    for label, run in zip(labels(found), found, strict=True):
        first.setdefault(label, run)
    if len(first) > MOST_ROWS:
        raise CannotDraw(f"{len(first)} different Blockout runs are too many; give {MOST_ROWS}")
    return sorted(first.values(), key=lambda run: (not run.config.get("hard", True), width(run)))


def on_the_same_classes(runs: Sequence[RunView]) -> list[RunView]:
    """Finished Blockout runs whose last set of nodes are the same classes."""
    found = [r for r in branching(runs, finished=True) if r.class_memberships is not None]
    if not found:
        raise CannotDraw("in no given run are the nodes of the last set the classes")
    other = next((run for run in found if run.classes != found[0].classes), None)
    if other is not None:
        raise CannotDraw(
            f"{found[0].name} and {other.name} have different classes; give runs on one data set"
        )
    return found


def width(run: RunView) -> int:
    """Nodes of the hidden layers; 0 where that is not known yet."""
    if run.memberships:
        return len(next(iter(run.memberships.values())))
    return int(run.config.get("nodes") or _head(run).get("nodes") or 0)


def _method(run: RunView) -> str:
    name = NAMES.get(run.method, run.method)
    if run.method != "blockout":
        return name
    drawn = "hard" if run.config.get("hard", True) else "soft"
    learned = "learned" if run.learns else "fixed"
    return f"{name} ({drawn}, {learned}{', guided' if run.guided else ''})"


def _told_apart(
    runs: Sequence[RunView], named: list[str], describe: Callable[[RunView], str]
) -> list[str]:
    """With a further word where runs of one name differ in it."""
    words: dict[str, set[str]] = {}
    for name, run in zip(named, runs, strict=True):
        words.setdefault(name, set()).add(describe(run))
    return [
        f"{name}, {describe(run)}" if len(words[name]) > 1 else name
        for name, run in zip(named, runs, strict=True)
    ]


def _data(run: RunView) -> str:
    return str(run.config["data"]).rstrip("/").rpartition("/")[2]


def _nodes(run: RunView) -> str:
    return f"{width(run)} nodes" if width(run) else "default nodes"


def _clusters(run: RunView) -> str:
    if run.memberships:
        return f"{next(iter(run.memberships.values())).shape[1]} clusters"
    asked = run.config.get("clusters")
    return f"{asked} clusters" if asked else "default clusters"


def _dropout(run: RunView) -> str:
    asked = run.config.get("dropout")
    return "default" if asked is None or run.method == "blockout" else f"{100 * asked:g} %"


def _recipe(run: RunView) -> dict[str, Any]:
    return {name: value for name, value in run.config.items() if name not in WITHOUT_EFFECT}


def _head(run: RunView) -> dict[str, Any]:
    return run.about.get("model", {}).get("head", {})


def _lacking(runs: Sequence[RunView], finished: bool) -> str:
    if not runs:
        return "needs a run with Blockout, and none was given"
    given = ", ".join(f"{run.name} ({_kind(run)})" for run in runs[:4])
    if finished and any(run.method == "blockout" and not run.finished for run in runs):
        return f"needs a finished run with Blockout, and {given} still trains"
    return f"needs a run with Blockout that learns P, and there is only {given}"


def _kind(run: RunView) -> str:
    return run.method if run.learns else f"{run.method}, P fixed"
