"""Which runs are missing, in which order to do them, and what they will cost."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from blockout.reproduce.records import CellRecord
from blockout.reproduce.rows import TRIAL_SEEDS, Row
from blockout.reproduce.settings import Cell, Condition, cell_of
from blockout.runs.config import name_of
from blockout.runs.schedule import fitting_schedule

Cells = Mapping[str, CellRecord]
"""The records of a condition, by cell."""
CLASSES = {"cifar100": 100, "cifar10": 10, "imagenet": 1000}
IMAGES = {"cifar100": 47_500, "cifar10": 47_500, "imagenet": 1_281_167}
UNKNOWN_IMAGES = 2500
FEATURES = 1280
"""Of EfficientNet-Lite0."""
PER_SECOND = 6e10
"""Operations of one core in matrix products, until a record says better."""
COMPACT_IMAGES_PER_SECOND = 500
"""Of the compact Inception in training."""


class Job(NamedTuple):
    """One run to do."""

    cell: Cell
    seed: int


def reason_against(row: Row, condition: Condition) -> str:
    """Why a row has no runs at this scale; empty if it has."""
    settings = row.trials or (row.settings,)
    beside = any(s.get("given") or "probability" in s for s in settings)
    if condition.scale != "transfer" and beside:
        return "only at scale transfer"
    return ""


def trials_of(row: Row, condition: Condition) -> list[Cell]:
    return [cell_of(settings, condition.scale) for settings in row.trials]


def chosen_trial(row: Row, condition: Condition, cells: Cells, seeds: int = 1) -> Cell | None:
    """The trial of a tuned row that is best on the hold-out, over the first seeds.

    None until each trial has been run with the first ``seeds``, and where there is no hold-out.
    """
    best: tuple[float, Cell] | None = None
    for cell in trials_of(row, condition):
        runs = [] if cell.name not in cells else cells[cell.name].runs
        found = [r.holdout for r in runs if r.seed < TRIAL_SEEDS and r.holdout is not None]
        if len(found) < seeds:
            return None
        if best is None or fmean(found) > best[0]:
            best = fmean(found), cell
    return None if best is None else best[1]


def cell_of_row(row: Row, condition: Condition, cells: Cells) -> Cell | None:
    """The cell whose runs a row shows; None for a tuned row that has not chosen yet."""
    if not row.trials:
        return cell_of(row.settings, condition.scale)
    return chosen_trial(row, condition, cells)


def jobs_of(
    rows: Sequence[Row], seeds: int, condition: Condition, cells: Cells
) -> Iterator[list[Job]]:
    """All runs of these rows, in two stages: a tuned row chooses after the first seeds.

    Within a stage the most informative come first: all rows with one seed, then the next. The
    second stage leaves tuned rows out that cannot choose yet.
    """
    possible = [row for row in rows if not reason_against(row, condition)]
    yield _unique(
        Job(cell, seed)
        for seed in range(min(seeds, TRIAL_SEEDS))
        for row in possible
        for cell in trials_of(row, condition) or [cell_of(row.settings, condition.scale)]
    )
    later = []
    for row in possible:
        if not row.trials:
            later.append(cell_of(row.settings, condition.scale))
        elif (cell := chosen_trial(row, condition, cells, TRIAL_SEEDS)) is not None:
            later.append(cell)
    yield _unique(Job(cell, seed) for seed in range(TRIAL_SEEDS, seeds) for cell in later)


def unchosen(rows: Sequence[Row], seeds: int, condition: Condition, cells: Cells) -> int:
    """Runs of tuned rows that no plan holds yet, because their trials are not done."""
    waiting = [
        row
        for row in rows
        if row.trials
        and not reason_against(row, condition)
        and chosen_trial(row, condition, cells, TRIAL_SEEDS) is None
    ]
    return len(waiting) * max(seeds - TRIAL_SEEDS, 0)


def missing(jobs: Sequence[Job], cells: Cells) -> list[Job]:
    """Those without a record."""
    return [
        job
        for job in jobs
        if job.cell.name not in cells or cells[job.cell.name].of_seed(job.seed) is None
    ]


def _unique(jobs: Iterator[Job]) -> list[Job]:
    return list({(job.cell.name, job.seed): job for job in jobs}.values())


# --- what it costs --------------------------------------------------------------------------------


class Costs:
    """Seconds per run: as measured in this condition, else estimated in proportion to it."""

    def __init__(self, condition: Condition, cells: Cells, jobs: Sequence[Job] = ()) -> None:
        """``jobs``: all that a plan holds, done or not; what is done says how fast this is."""
        self.condition = condition
        self.measured = {k: fmean(run.took for run in c.runs) for k, c in cells.items() if c.runs}
        self.steps = next((run.steps for c in cells.values() for run in c.runs), None)
        self.guessed = {job.cell.name: self._guess(job.cell) for job in jobs}

    def of(self, cell: Cell) -> float:
        """Seconds of one run."""
        if cell.name in self.measured:
            return self.measured[cell.name]
        return self._guess(cell) * self._slowness

    def learn(self, cell: Cell, took: float) -> None:
        """Notes how long a run of a cell took."""
        self.measured[cell.name], self.guessed[cell.name] = took, self._guess(cell)

    @property
    def _slowness(self) -> float:
        """How much longer than guessed runs take here."""
        known = [self.measured[k] / self.guessed[k] for k in self.measured if k in self.guessed]
        return median(known) if known else 1.0

    def _guess(self, cell: Cell) -> float:
        name = name_of(self.condition.data).removesuffix("-1k")
        classes = CLASSES.get(name, 100)
        per_class = self.condition.per_class
        images = classes * per_class if per_class else IMAGES.get(name, UNKNOWN_IMAGES)
        if self.condition.scale != "transfer":
            epochs = dict(self.condition.changes).get("epochs", 30)
            slower = 1 if self.condition.scale == "cpu" else 20
            return images * epochs / COMPACT_IMAGES_PER_SECOND * slower
        plan = fitting_schedule(images, "frozen")
        steps = self.steps or plan.epochs * max(images // plan.batch_size, 1)
        settings = cell.settings
        if settings["method"] == "baseline":
            return steps * 0.002
        nodes = settings["nodes"]
        products = FEATURES * nodes + nodes**2 + nodes * classes
        masked = {"dropconnect": 3.0, "blockout": 1.3 if settings["paper"] else 1.7}
        work = 6 * plan.batch_size * products * masked.get(settings["method"], 1.0)
        return steps * (0.002 + work / PER_SECOND)
