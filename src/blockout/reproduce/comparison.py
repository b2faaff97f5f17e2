"""What the records of one condition say, row by row: facts that tables, claims and pages draw."""

from collections.abc import Mapping
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from blockout.reproduce.planning import cell_of_row, reason_against, trials_of
from blockout.reproduce.records import CellRecord, RunRecord
from blockout.reproduce.rows import TRIAL_SEEDS, Row, Table, table_of
from blockout.reproduce.settings import Condition
from blockout.reproduce.statistics import Difference, paired, spread
from blockout.structure.groups import consistency

BASELINE, DROPOUT, TUNED_DROPOUT = "baseline", "dropout", "dropout-tuned"
FEWEST_PERMUTATIONS = 1
"""Of a correlation whose p-value is not asked for."""


class Line(NamedTuple):
    """A row and its runs."""

    row: Row
    setting: str
    """The cell; of a tuned row, the one that was chosen."""
    runs: tuple[RunRecord, ...]
    why_not: str = ""
    """Why there can be no runs."""

    @property
    def by_seed(self) -> dict[int, float]:
        return {run.seed: run.test for run in self.runs}

    @property
    def mean(self) -> float | None:
        return fmean(self.by_seed.values()) if self.runs else None

    @property
    def std(self) -> float | None:
        return spread(list(self.by_seed.values()))

    @property
    def from_print(self) -> float | None:
        if self.mean is None or self.row.published is None:
            return None
        return self.mean - self.row.published

    @property
    def seconds(self) -> float | None:
        """Of training, per run."""
        return fmean(run.seconds for run in self.runs) if self.runs else None


class Trial(NamedTuple):
    """A setting of a tuned row, over the seeds that choose."""

    setting: str
    holdout: float
    test: float
    """What the choice does not look at."""


class Comparison:
    """All rows of a table under one condition."""

    def __init__(self, name: str, cells: Mapping[str, CellRecord]) -> None:
        self.name, self.cells = name, cells
        about = next(iter(cells.values()))
        changes = tuple(sorted(about.changes.items()))
        self.condition = Condition(about.data, about.scale, about.per_class, changes)  # pyright: ignore
        self.table: Table = table_of(about.data)
        self.lines = {row.name: self._line(row) for row in self.table.rows}

    def _line(self, row: Row) -> Line:
        why_not = reason_against(row, self.condition)
        cell = None if why_not else cell_of_row(row, self.condition, self.cells)
        if cell is None:
            return Line(row, "", (), why_not)
        found = self.cells.get(cell.name)
        return Line(row, cell.name, () if found is None else tuple(found.runs))

    @property
    def shown(self) -> list[Line]:
        """All rows, with or without runs; of a search for settings, and of wide ones, what ran."""
        lines = self.lines.values()
        if self.condition.changes:
            return [line for line in lines if line.runs]
        others = {line.setting for line in lines if line.row.part != "wide"}
        wide = any(line.runs and line.setting not in others for line in lines)
        return [line for line in lines if line.row.part != "wide" or (wide and line.runs)]

    def line(self, name: str) -> Line:
        """The line of a row; one without runs where the table has no such row."""
        return self.lines.get(name) or Line(Row(name, name, "", {}), "", ())

    def against(self, one: str, other: str) -> Difference | None:
        """Paired by seed; None against itself, and where they have no seed in common."""
        first, second = self.line(one), self.line(other)
        return None if first.setting == second.setting else paired(first.by_seed, second.by_seed)

    @cached_property
    def trials(self) -> dict[str, list[Trial]]:
        """Of each tuned row, as far as they have been run."""
        found: dict[str, list[Trial]] = {}
        for line in self.lines.values():
            for cell in trials_of(line.row, self.condition):
                runs = self.cells[cell.name].runs if cell.name in self.cells else []
                used = [r for r in runs if r.seed < TRIAL_SEEDS]
                held = [r.holdout for r in used if r.holdout is not None]
                if held:
                    trial = Trial(cell.name, fmean(held), fmean(r.test for r in used))
                    found.setdefault(line.row.name, []).append(trial)
        return found

    # --- how soon ---------------------------------------------------------------------------------

    def share_until(self, line: Line, target: Mapping[int, float]) -> list[float | None]:
        """For each seed in ``target``, the share of its steps until a run has that accuracy."""
        return [reached(run, target[run.seed]) for run in line.runs if run.seed in target]

    def as_good_as(self, other: str) -> dict[int, float]:
        """The final accuracy of another row's runs, on the images that curves look at."""
        runs = self.line(other).runs
        return {run.seed: run.curve_test[-1] for run in runs if run.curve_test[-1] is not None}  # pyright: ignore

    # --- what emerged -----------------------------------------------------------------------------

    def agreement_of_seeds(self, line: Line) -> float | None:
        """Correlation of the similarities of classes between seeds: 0 is chance, 1 the same."""
        found = [codes_of(run.codes) for run in line.runs if run.codes]
        pairs = list(combinations(found, 2))
        if not pairs:
            return None
        return fmean(
            consistency(a, b, permutations=FEWEST_PERMUTATIONS).correlation for a, b in pairs
        )

    def agreement_between(self, one: Line, other: Line) -> float | None:
        """The same between rows of other widths, over all pairs of different seeds."""
        first = {run.seed: codes_of(run.codes) for run in one.runs if run.codes}
        second = {run.seed: codes_of(run.codes) for run in other.runs if run.codes}
        pairs = [(first[a], second[b]) for a in first for b in second if a != b]
        if not pairs:
            return None
        return fmean(
            consistency(a, b, permutations=FEWEST_PERMUTATIONS).correlation for a, b in pairs
        )


def reached(run: RunRecord, target: float) -> float | None:
    """The share of a run's steps after which its accuracy is the target, between two looks.

    >>> from types import SimpleNamespace as Made
    >>> reached(Made(curve_steps=[10, 20, 40], curve_test=[30.0, 50.0, 60.0], steps=40), 40.0)
    0.375
    """
    before = 0, 0.0
    for step, test in zip(run.curve_steps, run.curve_test, strict=True):
        if test is None:
            continue
        if test >= target:
            part = (target - before[1]) / (test - before[1]) if test > before[1] else 1.0
            return (before[0] + part * (step - before[0])) / run.steps
        before = step, test
    return None


def codes_of(text: str) -> Float[np.ndarray, "classes clusters"]:
    """Class memberships as a record keeps them: the middle of each tenth.

    >>> codes_of("09 50").tolist()
    [[0.05, 0.95], [0.55, 0.05]]
    """
    return np.array([[(int(d) + 0.5) / 10 for d in word] for word in text.split()])
