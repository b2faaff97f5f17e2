"""Everything that a run folder tells, read once; finished or still training, with or without
Blockout. What draws takes a ``RunView`` and nothing else."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int64
from safetensors import SafetensorError
from safetensors.numpy import load_file

from blockout.report.numbers import branches_differ
from blockout.structure import Structure
from blockout.training import TrainConfig, files
from blockout.training.files import RunError

BINS = 50
"""Of the histograms of P that training writes."""


@dataclass(frozen=True)
class Distributions:
    """How the P of one set of nodes was distributed at each logged step."""

    steps: Int64[np.ndarray, " times"]
    histograms: Int64[np.ndarray, "times bins"]
    quartiles: Float[np.ndarray, "times 3"]


@dataclass(frozen=True, eq=False)
class RunView:
    """A run, as far as it has come."""

    folder: Path
    name: str
    config: dict[str, Any]
    """``config.json``, flat."""
    about: dict[str, Any]
    """``model.json``; empty while it trains."""
    result: dict[str, Any]
    """``result.json``; empty while it trains."""
    environment: dict[str, Any]
    steps: list[dict[str, Any]]
    """Lines of ``metrics.jsonl`` between epochs: step, epoch, loss, train_accuracy, lr, ..."""
    epochs: list[dict[str, Any]]
    """Its lines at the end of an epoch: epoch_loss, train_accuracy, holdout_accuracy, ..."""
    distributions: dict[str, Distributions]
    """Of P_0, P_1, ..., in order; empty where no P is learned: without Blockout, or fixed."""
    memberships: dict[str, Float[np.ndarray, "nodes clusters"]]
    """P in the end; empty while it trains and where no P is learned."""
    labels: Int64[np.ndarray, " images"] | None = None
    """True class of every test image; None while it trains."""
    predicted: Int64[np.ndarray, "images 5"] | None = None
    """The most probable classes of every test image, best first; fewer columns for few classes."""
    probabilities: Float[np.ndarray, "images 5"] | None = None
    structure: Structure | None = field(default=None, repr=False)
    """At a threshold of 0.5; None while it trains and where no P is learned."""

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Of a run folder; what is missing or damaged is named in a ``RunError``."""
        folder = Path(folder)
        if not folder.is_dir():
            raise RunError(f"there is no run folder {folder}; `blockout train` makes one")
        if not (folder / files.CONFIG).exists():
            raise RunError(f"{folder} is not the folder of a run: there is no {files.CONFIG} in it")
        config = _config(folder / files.CONFIG)
        metrics = files.read_lines(folder / files.METRICS)
        said = _tensors(folder / files.PREDICTIONS)
        learns = config.get("learned", True)  # fixed P say nothing of the data
        memberships = _tensors(folder / files.MEMBERSHIPS) if learns else {}
        described = all((folder / name).exists() for name in (files.RESULT, files.MODEL))
        return cls(
            folder, folder.resolve().name, config,
            _optional(folder / files.MODEL), _result(folder / files.RESULT),
            _optional(folder / files.ENVIRONMENT),
            [line for line in metrics if "epoch_loss" not in line],
            [line for line in metrics if "epoch_loss" in line],
            _distributions(folder / files.DISTRIBUTIONS) if learns else {},
            dict(sorted(memberships.items())),
            said.get("labels"), said.get("classes"), said.get("probabilities"),
            Structure.load(folder) if described and memberships else None,
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        return bool(self.result)

    @property
    def method(self) -> str:
        return self.config["method"]

    @property
    def learns(self) -> bool:
        """Whether P is learned, where there is one."""
        return self.config.get("learned", True)

    @property
    def guided(self) -> bool:
        """Whether more than the loss has led P, beyond the paper."""
        return not TrainConfig.from_flat(self.config).paper

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names; empty while it trains."""
        return tuple(self.about.get("classes", ()))

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The data's own group of every class (superclasses, nested folders), where it has some."""
        found = self.about.get("groups")
        return None if found is None else tuple(found)

    @property
    def group_names(self) -> tuple[str, ...] | None:
        found = self.about.get("group_names")
        return None if found is None else tuple(found)

    @property
    def class_memberships(self) -> Float[np.ndarray, "classes clusters"] | None:
        """P of the classes: of the last set, where its nodes are the classes."""
        if not self.memberships:
            return None
        last = list(self.memberships.values())[-1]
        return last if len(last) == len(self.classes) else None

    @cached_property
    def one_branch(self) -> bool:
        """Whether there are several clusters, but no node is more in one of them than in another:
        then they are one, as soft memberships that start alike stay."""
        sets = self.memberships.values()
        return any(p.shape[1] > 1 for p in sets) and not any(map(branches_differ, sets))

    @cached_property
    def confusion(self) -> Int64[np.ndarray, "classes classes"] | None:
        """How many test images of a class (row) were taken for which (column)."""
        if self.labels is None or self.predicted is None:
            return None
        n = len(self.classes)
        counts = np.bincount(self.labels * n + self.predicted[:, 0], minlength=n * n)
        return counts.reshape(n, n)

    @cached_property
    def class_accuracy(self) -> Float[np.ndarray, " classes"] | None:
        """Per cent of each class's test images; nan for a class without any."""
        if self.confusion is None:
            return None
        with np.errstate(invalid="ignore"):
            return 100 * self.confusion.diagonal() / self.confusion.sum(1)


def _config(path: Path) -> dict[str, Any]:
    found = files.read_json(path)
    try:
        config = TrainConfig.from_flat(found)
    except (AttributeError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if missing := [name for name in ("data", "method") if name not in found]:
        raise RunError(f"{path} is damaged: it does not say {missing[0]!r}")
    return config.flat() | found


def _result(path: Path) -> dict[str, Any]:
    """Where there is one, with a test accuracy: all that compares runs speaks of it."""
    found = _optional(path)
    if found and not isinstance(found.get("test", {}).get("accuracy"), int | float):
        raise RunError(f"{path} is damaged: it does not say the accuracy of the test")
    return found


def _optional(path: Path) -> dict[str, Any]:
    return files.read_json(path) if path.exists() else {}


def _tensors(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} is damaged: {error}") from error


def _distributions(path: Path) -> dict[str, Distributions]:
    lines = files.read_lines(path)
    names = [name for name in lines[0] if name != "step"] if lines else []
    steps = np.array([line["step"] for line in lines])
    try:
        return {
            name: Distributions(
                steps,
                np.array([line[name]["histogram"] for line in lines]),
                np.array([line[name]["quartiles"] for line in lines]),
            )
            for name in names
        }
    except (KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {type(error).__name__} {error}") from error
