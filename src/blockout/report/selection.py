"""Which runs a section can speak of, and which of them it shows in detail."""

from collections.abc import Sequence

from blockout.report.view import RunView

DETAILED = 3
"""Runs with a figure of their own; more would bury what there is to be seen."""


def with_structure(runs: Sequence[RunView]) -> list[RunView]:
    """Finished runs that have learned memberships of their classes."""
    return [r for r in runs if r.structure is not None and r.class_memberships is not None]


def with_branches(runs: Sequence[RunView]) -> list[RunView]:
    """Of these, runs that have several branches, so that classes can be in different ones."""
    return [run for run in with_structure(runs) if not run.one_branch]


def with_predictions(runs: Sequence[RunView]) -> list[RunView]:
    """Runs that have been tested, by any method."""
    return [run for run in runs if run.classes and run.confusion is not None]


def in_detail(runs: Sequence[RunView], most: int = DETAILED) -> tuple[list[RunView], str]:
    """The first runs, and a sentence about those that are left out; plain text."""
    shown, rest = list(runs[:most]), runs[most:]
    if not rest:
        return shown, ""
    names = ", ".join(run.name for run in rest[:5]) + (", …" if len(rest) > 5 else "")
    return shown, f" Not shown here: {names}; name a run first to see it."
