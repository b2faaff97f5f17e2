"""What the records say of each set. Everything that is shown or judged is computed here, once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from blockout.data import shapes
from blockout.models.inception import SmallInception
from blockout.reproduce.comparison import BASELINE, TUNED_DROPOUT, Comparison, codes_of
from blockout.reproduce.planning import FEATURES
from blockout.reproduce.records import CellRecord, Records, RunRecord
from blockout.reproduce.statistics import Difference, paired, spread
from blockout.structure.groups import agreement, class_groups, different_classes
from head_benchmark import digits
from head_benchmark.sets import DEFAULT, FIRST, SETS, BenchmarkSet, Kind

DECIMALS = 3
LINEAR = "with_linear"


@dataclass(frozen=True)
class Method:
    """A row on a set."""

    setting: str
    """The cell of its runs; of a tuned row, the one that was chosen."""
    n: int
    wanted: int
    """Seeds."""
    mean: float
    std: float | None
    against_baseline: Difference | None
    against_dropout: Difference | None
    """Tuned Dropout. Both are paired by seed."""
    seconds: float | None
    """Of training, per run."""
    left: float | None = None
    """Per cent of the connections of FC2 and the classifier."""
    with_linear: float | None = None
    """The same, with the weights of the linear classifier beside counted as well."""
    lost: float | None = None
    """Points of accuracy by compaction, in the worst run."""


@dataclass(frozen=True)
class Point:
    """A guided setting on the frontier of accuracy and size."""

    setting: str
    nodes: int
    budget: float
    linear: bool
    """Whether a linear classifier stands beside."""
    n: int
    wanted: int
    left: float
    with_linear: float
    """Per cent, as in `Method`."""
    connections: int
    """That stay, with those of the linear classifier: settings differ in what 100 % are."""
    against_baseline: Difference | None
    against_dropout: Difference | None
    lost: float | None


@dataclass(frozen=True)
class SetSummary:
    """All that is known of a set."""

    name: str
    kind: Kind
    records: str
    """The folder of the runs, by its name."""
    runs: int
    """With those of trials."""
    rows: tuple[str, ...]
    """That it has or wants."""
    methods: dict[str, Method] = field(default_factory=dict)
    auc: float | None = None
    """Of the default: do classes of one known group share clusters? Chance is 0.5."""
    seeds_agree: float | None = None
    """Of the default: the mean correlation of the similarities of classes between two seeds."""
    rand: dict[int, list[float]] = field(default_factory=dict)
    """Of the default where the groups are known exactly: adjusted Rand by run, by threads."""
    frontier: tuple[Point, ...] = ()

    def difference(self, row: str = DEFAULT) -> Difference | None:
        """To the baseline."""
        return self.methods[row].against_baseline if row in self.methods else None


def summaries(out: Path, record: Path) -> list[SetSummary]:
    """Of every set: the records below ``out``, and the runs of digits in ``record``."""
    of_digits = of_all_digits(digits.read(record)["runs"])
    return [*of_digits, *(of_set(s, out) for s in SETS)]


# --- sets of `blockout reproduce` -----------------------------------------------------------------


def of_set(its: BenchmarkSet, out: Path) -> SetSummary:
    """A set without records has a summary without methods."""
    folder = its.records_in(out)
    records = f"{folder.name}/{its.condition.name}"
    cells = Records(folder).of_condition(its.condition.name)
    if not cells:
        return SetSummary(its.name, its.kind, records, 0, its.rows)
    found = Comparison(its.condition.name, cells)
    default = found.line(DEFAULT)
    aucs = [run.auc for run in default.runs if run.auc is not None]
    return SetSummary(
        its.name,
        its.kind,
        records,
        sum(len(cell.runs) for cell in cells.values()),
        its.rows,
        {row: method for row in its.rows if (method := _method(found, row, its)) is not None},
        fmean(aucs) if aucs else None,
        found.agreement_of_seeds(default),
        _rand_by_threads(cells.get(default.setting)) if its.kind == "shapes" else {},
        tuple(_frontier(found, its)),
    )


def _method(found: Comparison, row: str, its: BenchmarkSet) -> Method | None:
    line = found.line(row)
    if line.mean is None:
        return None
    size = Size.of(found.cells[line.setting])
    return Method(
        line.setting,
        len(line.runs),
        its.wanted(row),
        line.mean,
        line.std,
        found.against(row, BASELINE),
        found.against(row, TUNED_DROPOUT),
        line.seconds,
        None if size is None else size.left,
        None if size is None else size.with_linear,
        _lost(line.runs),
    )


def _lost(runs: Sequence[RunRecord]) -> float | None:
    return max((run.test - run.compact for run in runs if run.compact is not None), default=None)


def _rand_by_threads(cell: CellRecord | None) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in [] if cell is None else cell.runs:
        if cell is not None and run.codes:
            threads = cell.environments[run.environment]["machine"]["threads"]
            found.setdefault(threads, []).append(adjusted_rand(run.codes, shapes.GROUPS))
    return found


def adjusted_rand(codes: str, known: Sequence[int]) -> float:
    """Of the groups of classes that recorded memberships form, as many as are known, against these;
    as `Structure.agreement` has it."""
    p = codes_of(codes)
    count = min(len(set(known)), different_classes(p))
    return agreement(class_groups(p, count), known, permutations=1).adjusted_rand


# --- size -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """What guided memberships leave of a head, as the mean of its runs."""

    left: float
    with_linear: float
    connections: int

    @classmethod
    def of(cls, cell: CellRecord) -> "Size | None":
        left = [run.left for run in cell.runs if run.left is not None and run.codes]
        classes = [len(run.codes.split()) for run in cell.runs if run.codes]
        if not left:
            return None
        config = cell.configs[cell.runs[0].config]
        dense = config["nodes"] * (config["nodes"] + classes[0])
        linear = features_of(config) * classes[0] if config.get(LINEAR) else 0
        both = fmean(left) + 100 * linear / dense
        return cls(fmean(left), both, round(both * dense / 100))


def features_of(config: Mapping[str, Any]) -> int:
    """The width of what a linear classifier beside the head reads."""
    if config["trunk"] == "inception-small":
        return SmallInception(config["width"], config["early_downsampling"]).features
    assert config["trunk"] == "efficientnet-lite0", config["trunk"]
    return FEATURES


def _frontier(found: Comparison, its: BenchmarkSet) -> list[Point]:
    """All guided cells that have runs, the smallest first; those that are never drawn are another
    method, of which the frontier would say nothing."""
    points = []
    baseline, dropout = found.line(BASELINE).by_seed, found.line(TUNED_DROPOUT).by_seed
    for cell in found.cells.values():
        config = cell.configs[cell.runs[0].config]
        size = Size.of(cell)
        if size is None or config["paper"] or config["draw_on"] == 1:
            continue
        tests = {run.seed: run.test for run in cell.runs}
        points.append(
            Point(
                cell.cell,
                config["nodes"],
                config["budget"],
                bool(config.get(LINEAR)),
                len(cell.runs),
                its.other_seeds,
                size.left,
                size.with_linear,
                size.connections,
                paired(tests, baseline),
                paired(tests, dropout),
                _lost(cell.runs),
            )
        )
    return sorted(points, key=lambda point: point.with_linear)


# --- digits ---------------------------------------------------------------------------------------


def of_all_digits(runs: Sequence[digits.Run]) -> list[SetSummary]:
    """A summary per optimiser and way to guided layers; the baseline is dense."""
    return [
        _of_digits(runs, optimiser, way) for optimiser in digits.OPTIMISERS for way in digits.GUIDED
    ]


def _of_digits(runs: Sequence[digits.Run], optimiser: str, way: str) -> SetSummary:
    of_one = [run for run in runs if run["set"] == f"digits, {optimiser}"]
    rows: dict[str, str] = {BASELINE: digits.DENSE, DEFAULT: digits.GUIDED[way]}
    by_row = {row: [r for r in of_one if r["method"] == method] for row, method in rows.items()}
    plain = {run["seed"]: run["test"] for run in by_row[BASELINE]}
    methods = {
        row: _digits_method(rows[row], found, {} if row == BASELINE else plain)
        for row, found in by_row.items()
        if found
    }
    count = sum(len(found) for found in by_row.values())
    return SetSummary(f"digits {optimiser} {way}", "digits", "runs", count, FIRST, methods)


def _digits_method(name: str, runs: Sequence[digits.Run], plain: dict[int, float]) -> Method:
    tests = {run["seed"]: run["test"] for run in runs}
    left = [run["left"] for run in runs if "left" in run]
    seconds = [run["seconds"] for run in runs if "seconds" in run]
    return Method(
        name,
        len(runs),
        digits.SEEDS,
        fmean(tests.values()),
        spread(list(tests.values())),
        paired(tests, plain),
        None,
        fmean(seconds) if seconds else None,
        fmean(left) if left else None,
    )


# --- as a record ----------------------------------------------------------------------------------


def as_record(value: Any) -> Any:
    """Plain JSON: rounded, and without what is not known."""
    if is_dataclass(value) and not isinstance(value, type):
        return as_record({name: getattr(value, name) for name in value.__dataclass_fields__})
    if isinstance(value, Difference):
        return as_record(value._asdict())
    if isinstance(value, dict):
        return {str(k): as_record(v) for k, v in value.items() if v not in (None, {}, ())}
    if isinstance(value, list | tuple):
        return [as_record(v) for v in value]
    return round(float(value), DECIMALS) if isinstance(value, float | np.floating) else value
