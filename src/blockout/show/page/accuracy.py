"""How well each class is recognised, with any method."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from blockout.runs import Run
from blockout.show.mistakes import Weakness, weakest_classes
from blockout.show.page.drawing import plain
from blockout.show.page.rows import Column, by_name, rows_of_classes, sorted_by
from blockout.show.page.section import Figure, Section, in_detail
from blockout.show.selection import with_predictions

MOST_RUNS = 4
LEAD = """The share of the test images of each class that is right, the weakest class first. Click a
class to see what it is taken for."""
NOTE = """A class with few test images can be high or low by chance: one image of ten is ten
points."""


def section(runs: Sequence[Run]) -> Section | None:
    """A row per class; runs on the same classes in one figure."""
    tested = with_predictions(runs)
    same = [run for run in tested if run.classes == tested[0].classes]
    shown, left_out = in_detail(same, MOST_RUNS)
    if not shown:
        return None
    if others := [run.name for run in tested if run not in same]:
        left_out += f" Not shown, because their classes differ: {', '.join(others)}."
    figures = (_figure(shown),)
    return Section("accuracy", "How well each class does", LEAD + left_out, figures=figures)


def _figure(runs: Sequence[Run]) -> Figure:
    weakness = -np.nan_to_num(accuracy_of(runs[0]), nan=101.0)
    orders = {"weakest first": sorted_by(runs[0], weakness), "by name": by_name(runs[0])}
    chart = rows_of_classes(runs, [accuracy_column(runs)], orders)
    return Figure("accuracy-classes", chart, NOTE)


def accuracy_of(run: Run) -> Float[np.ndarray, " classes"]:
    """Per cent; nan for a class without test images."""
    assert run.class_accuracy is not None
    return run.class_accuracy


def accuracy_column(runs: Sequence[Run]) -> Column:
    """The accuracy of each class, on an axis that has room for all runs."""
    least = min(float(np.nan_to_num(accuracy_of(run)).min()) for run in runs)
    lowest = 10 * max(least // 10 - 1, 0)
    return Column(
        "accuracy, %", accuracy_of, _says, {"range": [lowest - 3, 103], "zeroline": False}
    )


def _says(run: Run) -> list[str]:
    known = {weak.number: weak for weak in weakest_classes(run, len(run.classes), np.inf)}
    return [_in_words(run, known.get(c)) for c in range(len(run.classes))]


def _in_words(run: Run, found: Weakness | None) -> str:
    if found is None:
        return "no test images"
    other = "" if found.taken_for is None else plain(run.classes[found.taken_for], 40)
    mostly = f"<br>mostly taken for {other}" if other else ""
    return f"{found.accuracy:.0f} % of {found.count:,} right{mostly}"
