"""Where numbers go beside ``metrics.jsonl``: TensorBoard, Weights & Biases, MLflow."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from blockout.runs import folder as files
from blockout.runs.options import RunConfig


class Loggers:
    """Those that a config asks for. One that fails is left out from then on, which is said.

    A full disk or a lost connection is no reason to end a training run.
    """

    def __init__(self, run: RunConfig, folder: Path, say: Callable[[str], object]) -> None:
        self.say, self.loggers = say, _made(run, folder)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._each(lambda logger: logger.log_metrics(numbers, step))

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Inside, ``log`` may be called; at the end everything is written."""
        with _silent_threads("tensorboard"):
            try:
                yield
            finally:
                self._each(lambda logger: logger.finalize("success"))

    def _each(self, work: Callable[[Any], object]) -> None:
        for logger in list(self.loggers):
            try:
                work(logger)
            except Exception as error:  # services and disks fail in many ways
                self.loggers.remove(logger)
                name = type(logger).__name__.removesuffix("Logger")
                self.say(f"note: {name} is left out from here on: {_cause(error)}")


def _made(run: RunConfig, folder: Path) -> list[Any]:
    loggers: list[Any] = []
    if run.tensorboard:
        from lightning.fabric.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(folder, name=files.EVENTS, version=""))
    if run.wandb:
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(WandbLogger(name=folder.name, save_dir=folder, project=run.wandb))
    if run.mlflow:
        from lightning.pytorch.loggers import MLFlowLogger

        loggers.append(MLFlowLogger(experiment_name=run.mlflow, run_name=folder.name))
    return loggers


@contextlib.contextmanager
def _silent_threads(package: str) -> Iterator[None]:
    """Inside, threads of a package print no traceback; whoever calls it gets the same error."""
    before = threading.excepthook

    def report(failure: threading.ExceptHookArgs) -> None:
        if not type(failure.thread).__module__.startswith(f"{package}."):
            before(failure)

    threading.excepthook = report
    try:
        yield
    finally:
        threading.excepthook = before


def _cause(error: BaseException) -> str:
    """The first error of a chain, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
