"""Which of the given runs a figure shows."""

from collections.abc import Sequence

from blockout.runs import Run
from blockout.show.methods import by_method

MOST_ROWS = 6


class CannotDraw(ValueError):
    """The given runs do not hold what a figure shows; the message says what is missing."""


def learning(runs: Sequence[Run], *, finished: bool) -> list[Run]:
    """Runs that learn P, the first seed of each: hard before soft, narrow before wide."""
    found = [run for run in runs if (run.memberships if finished else run.distributions)]
    if not found:
        raise CannotDraw(_what_is_missing(runs, finished))
    first = [group.runs[0] for group in by_method(found)]
    if len(first) > MOST_ROWS:
        raise CannotDraw(
            f"{len(first)} different Blockout runs are too many; give at most {MOST_ROWS}"
        )
    return sorted(first, key=lambda run: (not run.config.model.hard, run.config.model.nodes))


def on_the_same_classes(runs: Sequence[Run]) -> list[Run]:
    """Finished Blockout runs whose last set of nodes are the same classes."""
    found = [run for run in learning(runs, finished=True) if run.class_memberships is not None]
    if not found:
        raise CannotDraw("in none of the runs are the nodes of the last set the classes")
    other = next((run for run in found if run.classes != found[0].classes), None)
    if other is not None:
        raise CannotDraw(
            f"{found[0].name} and {other.name} have different classes; give runs on one data set"
        )
    return found


def most_branched(runs: Sequence[Run]) -> Run:
    """The finished Blockout run with the fewest connections left.

    Runs whose branches are all the same count only if there are no others.
    """
    found = [run for run in learning(runs, finished=True) if run.structure is not None]
    found = [run for run in found if not run.one_branch] or found
    if not found:
        raise CannotDraw("needs a finished Blockout run")
    return min(found, key=_connections_left)


def _what_is_missing(runs: Sequence[Run], finished: bool) -> str:
    if not runs:
        return "needs a Blockout run, and no run was given"
    given = ", ".join(f"{run.name} ({_kind(run)})" for run in runs[:4])
    if finished and any(run.method == "blockout" and not run.finished for run in runs):
        return f"needs a finished Blockout run, and {given} is still training"
    return f"needs a Blockout run that learns P, and there is only {given}"


def _kind(run: Run) -> str:
    fixed = run.method == "blockout" and not run.learned
    return f"{run.method}, P fixed" if fixed else run.method


def _connections_left(run: Run) -> float:
    assert run.structure is not None
    return run.structure.total.left
