"""One ``Run`` opens a run folder for everything else: commands, pages, figures, benchmarks, tests.

It reads what is there, finished or still training, with or without Blockout. What is missing or
damaged is named in a ``RunError``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int64, UInt8
from torch import nn

from blockout.data import DataConfig, DataError, ImageData, load
from blockout.data.load import AS_IT_IS, Expected
from blockout.data.sides import Dividing
from blockout.data.sources import is_gone
from blockout.guidance import make_certain
from blockout.models.config import OWN_TRUNKS
from blockout.models.heads import HEAD_LAYERS
from blockout.runs import digests, lock
from blockout.runs import folder as files
from blockout.runs.arrays import (
    Distributions,
    Predictions,
    read_distributions,
    read_memberships,
    read_predictions,
    read_thumbnails,
)
from blockout.runs.config import TrainConfig, name_of, read_config
from blockout.runs.documents import (
    Checks,
    Compaction,
    CompactionCurve,
    Description,
    Document,
    Environment,
    EpochEntry,
    Result,
    SplitImages,
    StepEntry,
    WarningEntry,
    metrics_entry,
    read_description,
    read_document,
)
from blockout.runs.errors import RunError
from blockout.runs.logs import read_lines
from blockout.runs.split import kept_split, read_split
from blockout.runs.trained import TrainedModel, read_trained
from blockout.structure import Structure
from blockout.structure.groups import clusters_differ


@dataclass(frozen=True, eq=False)
class Run:
    """A run, as far as it has come.

    Open one with ``Run.open(folder)``. ``network`` and ``images`` load what the run was trained
    with; everything else has been read already.
    """

    folder: Path
    name: str
    config: TrainConfig
    """With nothing left open that a run has decided; see ``TrainConfig.resolved``."""
    description: Description | None = None
    """``model.json``; None while it trains, and for a user's own model."""
    result: Result | None = None
    """``result.json``; None while it trains."""
    environment: Environment = field(default_factory=Environment)
    steps: tuple[StepEntry, ...] = ()
    """What was logged within epochs."""
    epochs: tuple[EpochEntry, ...] = ()
    """What was logged at the end of each epoch."""
    warnings: tuple[WarningEntry, ...] = ()
    distributions: dict[str, Distributions] = field(default_factory=dict)
    """Of P_0, P_1, ..., in order; empty where no P is learned: without Blockout, or fixed."""
    memberships: dict[str, Float[np.ndarray, "nodes clusters"]] = field(default_factory=dict)
    """P in the end; empty while it trains and where no P is learned."""
    predictions: Predictions | None = None
    """Of the test images; None while it trains."""
    data: str | None = None
    """Where you say that its images are; None to look where the run says."""
    cache: Path | None = None
    """Where you say that decoded images are kept; None for the usual place."""

    @classmethod
    def open(
        cls, folder: Path | str, *, data: str | None = None, cache: Path | None = None
    ) -> Self:
        """The run in a folder.

        Args:
            folder: of the run.
            data, cache: for ``images``, as in ``DataConfig``. A run may come from anybody, so what
                its own config says is neither fetched from elsewhere nor written to: only what you
                say here is.

        Raises:
            RunError: there is no run, or one of its files is damaged.
        """
        folder = Path(folder)
        _require_run(folder)
        about = folder / files.MODEL
        description = read_description(about) if about.exists() else None
        result = _optional(folder / files.RESULT, Result)
        _require_whole(folder, finished=result is not None)
        config = _with_its_trunk(read_config(folder / files.CONFIG), description).resolved(
            image_size=None if description is None else description.image_size,
            steps=None if result is None else result.steps,
        )
        log = folder / files.METRICS
        metrics = [metrics_entry(line, log, i) for i, line in enumerate(read_lines(log), 1)]
        classes = None if description is None else len(description.classes)
        learned = config.model.learned  # fixed P say nothing about the data
        return cls(
            folder=folder,
            name=folder.resolve().name,
            config=config,
            description=description,
            result=result,
            environment=_optional(folder / files.ENVIRONMENT, Environment) or Environment(),
            steps=tuple(line for line in metrics if isinstance(line, StepEntry)),
            epochs=tuple(line for line in metrics if isinstance(line, EpochEntry)),
            warnings=tuple(line for line in metrics if isinstance(line, WarningEntry)),
            distributions=read_distributions(folder / files.DISTRIBUTIONS) if learned else {},
            memberships=read_memberships(folder / files.MEMBERSHIPS) if learned else {},
            predictions=read_predictions(folder / files.PREDICTIONS, classes),
            data=data,
            cache=cache,
        )

    # --- what it is -------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def method(self) -> str:
        return self.config.model.method

    @property
    def learned(self) -> bool:
        """Whether the run has memberships and learns them."""
        return self.method == "blockout" and self.config.model.learned

    @property
    def seed(self) -> int:
        return self.config.optimisation.seed

    @property
    def data_name(self) -> str:
        """What the data set is called, wherever it lies."""
        if self.description is not None:
            return self.description.data
        return name_of(self.config.data.data)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Equal for two runs that are the same but for their seed."""
        return self.environment.origins | self.config.recipe(self.data_name)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names; empty while it trains."""
        return () if self.description is None else self.description.classes

    @property
    def test_accuracy(self) -> float | None:
        """In per cent: in the end, or after the last epoch so far."""
        if self.result is not None:
            return self.result.test.accuracy
        return self.epochs[-1].test_accuracy if self.epochs else None

    # --- what was learned -------------------------------------------------------------------------

    @cached_property
    def structure(self) -> Structure | None:
        """At a threshold of 0.5; None while it trains and where no P is learned."""
        if not self.finished or self.description is None or not self.memberships:
            return None
        return self._structured(self.memberships)

    def require_structure(self) -> Structure:
        """The structure of a finished Blockout run, also where P is fixed.

        Raises:
            RunError: why there is none.
        """
        self._require_finished("there, write Structure.from_model(model, classes=...)")
        if self.method != "blockout":
            raise RunError(
                f"the run in {self.folder} was trained with --method {self.method}, which has no "
                "memberships; train with --method blockout to have a structure"
            )
        found = self.memberships or read_memberships(self.folder / files.MEMBERSHIPS)
        if not found:
            raise RunError(f"{self.folder / files.MEMBERSHIPS} is missing")
        return self._structured(found)

    def _structured(self, memberships: dict[str, np.ndarray]) -> Structure:
        assert self.description is not None
        expected = {name for layer in HEAD_LAYERS for name in (layer.inputs, layer.outputs)}
        path = self.folder / files.MEMBERSHIPS
        if set(memberships) != expected:
            raise RunError(
                f"{path} holds {', '.join(sorted(memberships))} where a Blockout head has "
                f"{', '.join(sorted(expected))}; if the trunk has Blockout layers of its own, load "
                "the model and write Structure.from_model(model, classes=...)"
            )
        try:
            return Structure.from_memberships(
                memberships,
                HEAD_LAYERS,
                classes=self.classes,
                taxonomy=self.description.known_groups,
            )
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}") from error

    @property
    def class_memberships(self) -> Float[np.ndarray, "classes clusters"] | None:
        """P of the classes: of the last set, where its nodes are the classes."""
        if not self.memberships:
            return None
        last = list(self.memberships.values())[-1]
        return last if len(last) == len(self.classes) else None

    @cached_property
    def one_branch(self) -> bool:
        """Whether all clusters are one: no node has another P in one of them than in another.

        Soft memberships that start alike stay alike.
        """
        sets = self.memberships.values()
        return any(p.shape[1] > 1 for p in sets) and not any(map(clusters_differ, sets))

    @cached_property
    def whole(self) -> bool:
        """Whether every node is in every cluster for certain, so that nothing divides the network:
        what a guide leaves that could not rely on which classes are similar."""
        return bool(self.memberships) and all((p == 1).all() for p in self.memberships.values())

    @cached_property
    def compaction(self) -> CompactionCurve | None:
        """What ``compaction.json`` says about making the network smaller; None without it."""
        return _optional(self.folder / files.COMPACTION, CompactionCurve)

    @cached_property
    def compacted(self) -> Compaction | None:
        """What `blockout compact` has made of the network; None if it was not run."""
        path = self.folder / files.COMPACT_MODEL
        return read_description(path).compaction if path.exists() else None

    @cached_property
    def checks(self) -> Checks | None:
        """Copies of training images in the test, and labels that look wrong; None in older runs.

        Raises:
            RunError: the file is damaged.
        """
        path = self.folder / files.CHECKS
        found = _optional(path, Checks)
        named = len(self.classes) or np.inf  # a user's own model has classes without names
        if found is not None and max(found.labels, default=-1) >= named:
            raise RunError(f"{path} is damaged: an image belongs to a class that has no name")
        return found

    @cached_property
    def split(self) -> SplitImages | None:
        """Which images it trains on, holds out and is tested on; None in older runs."""
        return read_split(self.folder)

    @cached_property
    def thumbnails(self) -> UInt8[np.ndarray, "classes side images_side 3"] | None:
        """A strip of test images for each class; None where there are none."""
        if not self.classes:
            return None
        return read_thumbnails(self.folder / files.THUMBNAILS, len(self.classes))

    @cached_property
    def unnoticed(self) -> str:
        """A line that says for which files damage goes unnoticed; empty if for none."""
        return digests.unnoticed(self.folder, sorted(files.READ_BACK))

    # --- what it got right ------------------------------------------------------------------------

    @cached_property
    def confusion(self) -> Int64[np.ndarray, "classes classes"] | None:
        """How many test images of a class (row) were taken for which class (column)."""
        if (said := self.predictions) is None:
            return None
        n = len(self.classes)
        counts = np.bincount(said.labels * n + said.classes[:, 0], minlength=n * n)
        return counts.reshape(n, n)

    @cached_property
    def class_accuracy(self) -> Float[np.ndarray, " classes"] | None:
        """Per cent of each class's test images that are right; nan for a class without any."""
        if self.confusion is None:
            return None
        with np.errstate(invalid="ignore"):
            return 100 * self.confusion.diagonal() / self.confusion.sum(1)

    # --- what others add to it ------------------------------------------------------------------

    @contextmanager
    def held(self, work: str) -> Iterator[None]:
        """Inside, the folder is held, to add to the run what was made of it.

        Raises:
            RunError: another process works on the folder, or has started the run over meanwhile.
        """
        with lock.held(self.folder, work):
            if _optional(self.folder / files.RESULT, Result) != self.result:
                raise RunError(f"the run in {self.folder} is no longer the one that was opened")
            yield

    # --- what it was trained with -----------------------------------------------------------------

    def network(self, weights: str = "final", trunk: nn.Module | None = None) -> TrainedModel:
        """The trained network in eval mode, from safetensors and JSON; nothing is unpickled.

        Args:
            weights: "final", "best" on the hold-out, or "compact": what `blockout compact` made.
            trunk: one like the run's own, where it was trained with ``train(..., trunk=...)``.
        """
        self._require_finished(f"build that model there and load {files.FINAL} into it")
        if weights != "compact":
            name = {"final": files.FINAL, "best": files.BEST}[weights]
            trained = read_trained(self.folder / files.MODEL, self.folder / name, trunk)
            make_certain(trained.model)  # the best weights may be of a step that still drew
            return trained
        if not (self.folder / files.COMPACT_MODEL).exists():
            raise RunError(
                f"there is no compact network in {self.folder}; `blockout compact` makes it"
            )
        return read_trained(
            self.folder / files.COMPACT_MODEL, self.folder / files.COMPACT_WEIGHTS, trunk
        )

    @property
    def data_config(self) -> DataConfig:
        """How its images are read here: what you say counts, not its own cache and workers."""
        return replace(self.config.data, cache=self.cache, workers=None)

    def images(self) -> ImageData:
        """The images it was trained on, as its network expects them, divided as they were.

        What has changed since is in their ``changes``; new images are left out.

        Raises:
            DataError: they are not on this machine, and were not said to be fetched.
            RunError: the images there have other classes, or none is the run's.
        """
        split = self.split
        was = self.config.data.data if split is None else split.data
        source = self.data or (was if os.path.exists(was) else self.config.data.data)
        if self.data is None and is_gone(was, source):
            raise DataError(f"its images were in {was}, which is gone; say --data FOLDER")
        config = replace(self.data_config, data=source)
        about, expected = self.description, AS_IT_IS
        if about is not None:
            config = replace(config, image_size=about.image_size)
            expected = Expected(about.crop, (about.mean, about.std))
        kept = Dividing() if split is None else Dividing(kept=kept_split(split))
        found = load(config, expected, kept, fetch=self.data is not None)
        if not len(found.train) + len(found.holdout) + len(found.test):
            raise RunError(
                f"none of the images of {source} is one of the run in {self.folder}; --data says "
                "where they are now"
            )
        if about is not None and found.classes != self.classes:
            raise RunError(
                f"the images of {source} are not those of the run in {self.folder}: "
                f"it has {len(self.classes)} classes, they have {len(found.classes)}, or other "
                "names; --data says where they are now"
            )
        return found

    def has_changed(self, images: ImageData) -> bool:
        """Whether these are not all of the images that it was trained on, divided as they were."""
        known = None if self.description is None else self.description.images
        return known is not None and images.fingerprint() != known

    def _require_finished(self, own_model: str) -> None:
        if not self.finished:
            raise RunError(
                f"the run in {self.folder} is not finished; the same `blockout train` continues it"
            )
        if self.description is None:
            raise RunError(
                f"the run in {self.folder} has no {files.MODEL}: it was trained from Python with a "
                f"model of its own; {own_model}"
            )


def _with_its_trunk(config: TrainConfig, description: Description | None) -> TrainConfig:
    """Older runs say ``auto``, and meant the trunk that their description names."""
    if config.model.trunk != "auto" or description is None:
        return config
    said = description.model.get("trunk")
    kind = said.get("kind") if isinstance(said, dict) else None
    if kind not in OWN_TRUNKS:
        return config
    return replace(config, model=replace(config.model, trunk=kind))


def _require_run(folder: Path) -> None:
    if not folder.is_dir():
        raise RunError(f"there is no run folder {folder}; `blockout train` makes one")
    files.require_files(folder)
    if not (folder / files.CONFIG).exists():
        raise RunError(f"{folder} is not the folder of a run: there is no {files.CONFIG} in it")


def _require_whole(folder: Path, *, finished: bool) -> None:
    """Refuses a run of which a file is lost: some are there from the first checkpoint on, all in
    the end."""
    parts = (files.MODEL, files.ENVIRONMENT, files.SPLIT)
    if finished:
        parts += (files.MEMBERSHIPS, files.PREDICTIONS, files.CHECKS, *files.LOGS)
    elif not (folder / files.CHECKPOINT).exists():
        return
    for name in parts:
        path = folder / name
        if not path.exists() and digests.recorded(path):
            raise RunError(
                f"{path} is missing. Restore it from a copy; to go without it, delete its lines "
                f"from {files.DIGESTS}"
            )


def _optional(path: Path, kind: type[Document]) -> Document | None:
    return read_document(path, kind) if path.exists() else None
