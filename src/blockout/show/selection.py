"""Which runs have what there is to show."""

from collections.abc import Sequence

from blockout.runs import Run


def with_structure(runs: Sequence[Run]) -> list[Run]:
    """Finished runs that have learned memberships of their classes."""
    return [r for r in runs if r.structure is not None and r.class_memberships is not None]


def with_branches(runs: Sequence[Run]) -> list[Run]:
    """Those of them in which clusters differ, so that classes can be in different ones."""
    return [run for run in with_structure(runs) if not run.one_branch]


def with_predictions(runs: Sequence[Run]) -> list[Run]:
    """Runs that have been tested, with any method."""
    return [run for run in runs if run.classes and run.confusion is not None]
