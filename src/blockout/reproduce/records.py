"""Records of finished runs: one JSON file per cell, one line per run, shared by processes.

    <out>/<condition>/<cell>.json     the condition, each config and environment once, and the runs
    <out>/.locks/                     held while a run is done, and while a record is added

Each file is written whole or not at all.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from blockout import files
from blockout.reproduce.settings import Condition
from blockout.runs.documents import read_document
from blockout.runs.errors import RunError

LOCKS = ".locks"
PATIENCE = 60
"""Seconds to wait for a process that adds a record."""


class Spread(msgspec.Struct, frozen=True):
    """How decided a set of memberships is."""

    below: float
    """Share of P below 0.1."""
    above: float
    """Share of P above 0.9."""
    quartiles: tuple[float, float, float]


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one finished run says. Accuracies are in per cent."""

    seed: int
    test: float
    holdout: float | None
    train: float
    """Accuracy on training images in the last stretch of training."""
    steps: int
    seconds: float
    """Of training."""
    took: float
    """Seconds of the whole run, with evaluation and what it needed before."""
    images: int
    """Training images."""
    curve_steps: list[int]
    curve_test: list[float | None]
    curve_loss: list[float]
    p: dict[str, Spread] = {}
    """Of P_0, P_1, P_2, where they are learned."""
    clusters_per_class: tuple[float, float, float, float, float] | None = None
    """Expected number: smallest, quartiles, largest."""
    codes: str | None = None
    """Of the classes, where memberships are learned: a word per class, tenths of P per cluster."""
    auc: float | None = None
    """Do classes of one superclass share clusters? Chance is 0.5."""
    left: float | None = None
    """Per cent of the connections of FC2 and the classifier that a compact network keeps."""
    compact: float | None = None
    """Test accuracy of that network."""
    groups: list[int] | None = None
    """Group of each class in a given hierarchy."""
    config: int = 0
    environment: int = 0


class CellRecord(msgspec.Struct, frozen=True):
    """All runs of a cell."""

    cell: str
    data: str
    scale: str
    per_class: int | None
    changes: dict[str, Any]
    configs: list[dict[str, Any]]
    """Recipes of resolved configs; runs name theirs by number."""
    environments: list[dict[str, Any]]
    runs: list[RunRecord]

    def of_seed(self, seed: int) -> RunRecord | None:
        return next((run for run in self.runs if run.seed == seed), None)


class Records:
    """The records below a folder."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def read(self, condition: str, cell: str) -> CellRecord | None:
        """The runs of a cell so far.

        Raises:
            RunError: the file is damaged.
        """
        path = self._path(condition, cell)
        return read_document(path, CellRecord) if path.exists() else None

    def conditions(self) -> dict[str, dict[str, CellRecord]]:
        """Every cell of every condition, by name."""
        return {folder: self.of_condition(folder) for folder in self._folders()}

    def of_condition(self, condition: str) -> dict[str, CellRecord]:
        found = sorted((self.out / condition).glob("*.json"))
        return {path.stem: read_document(path, CellRecord) for path in found}

    def add(
        self,
        condition: Condition,
        cell: str,
        run: RunRecord,
        config: dict[str, Any],
        environment: dict[str, Any],
    ) -> None:
        """Adds a run to its cell, whatever other processes add meanwhile."""
        path = self._path(condition.name, cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock(condition.name, cell).acquire(timeout=PATIENCE):
            found = self.read(condition.name, cell) or CellRecord(
                cell,
                condition.data.rstrip("/").rpartition("/")[2],
                condition.scale,
                condition.per_class,
                dict(condition.changes),
                [],
                [],
                [],
            )
            places = _place(found.configs, config), _place(found.environments, environment)
            run = msgspec.structs.replace(run, config=places[0], environment=places[1])
            runs = sorted([r for r in found.runs if r.seed != run.seed] + [run], key=_seed)
            files.write_text(path, _text(msgspec.structs.replace(found, runs=runs)))

    @contextlib.contextmanager
    def claimed(self, condition: str, cell: str, seed: int) -> Iterator[bool]:
        """Whether this process may do a run: nobody else does it, and it has no record."""
        lock = self._lock(condition, f"{cell}-{seed}")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            found = self.read(condition, cell)
            yield found is None or found.of_seed(seed) is None
        finally:
            lock.release()

    def _folders(self) -> list[str]:
        return sorted({path.parent.name for path in self.out.glob("*/*.json")})

    def _path(self, condition: str, cell: str) -> Path:
        return self.out / condition / f"{cell}.json"

    def _lock(self, condition: str, name: str) -> FileLock:
        path = self.out / LOCKS / condition / f"{name}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"cannot write records to {self.out}: {error.strerror}; name another folder with "
                "--out"
            ) from error
        return FileLock(path)


def _seed(run: RunRecord) -> int:
    return run.seed


def _place(known: list[dict[str, Any]], value: dict[str, Any]) -> int:
    """Where a value stands, or now stands, in a list of different ones."""
    plain = json.loads(json.dumps(value))
    if plain not in known:
        known.append(plain)
    return known.index(plain)


def _text(record: CellRecord) -> str:
    """JSON with a line per config, environment and run."""
    values = msgspec.to_builtins(record)
    lines = []
    for name, value in values.items():
        if name in ("configs", "environments", "runs"):
            rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f"  {json.dumps(name)}: [\n    {rows}\n  ]")
        else:
            lines.append(f"  {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
