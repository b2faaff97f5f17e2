"""Runs on a Ray cluster: one that is there, or one that is started on this machine.

All machines must see the folders of records and runs, and the data. Ray does a run again if its
worker is lost; where runs have folders, it goes on from the last checkpoint.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from blockout.reproduce.settings import Scale
from blockout.runs.errors import RunError

if TYPE_CHECKING:
    from blockout.reproduce.work import Report, Task

RETRIES = 3
"""How often a run is started again after its worker was lost."""
CORES: dict[Scale, int] = {"transfer": 1, "cpu": 1, "paper": 8}
"""That a run asks for, beside a GPU at scale paper."""


def on_ray(
    tasks: "Sequence[Task]", enough: "Callable[[Task], bool]", jobs: int
) -> "Iterator[tuple[Task, Report]]":
    """As many runs at a time as the cluster has room for, and at most ``jobs`` if that is above 1.

    Raises:
        ImportError: Ray is not installed.
    """
    ray = _ray()
    waiting, running = list(tasks), {}
    most = jobs if jobs > 1 else _room(ray, tasks[0].condition.scale)
    try:
        while waiting or running:
            while waiting and len(running) < most:
                if not enough(waiting[0]):
                    waiting.clear()
                    break
                task = waiting.pop(0)
                running[_remote(ray, task).remote(task)] = task
            for reference in ray.wait(list(running))[0]:
                yield running.pop(reference), _result(ray, reference)
    finally:
        for reference in running:
            ray.cancel(reference)


def _result(ray: Any, reference: Any) -> "Report":
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError | OSError):
            raise RunError(str(error.cause)) from error
        raise


def _ray() -> Any:
    """Ray, started here unless a cluster is named by RAY_ADDRESS."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(
            "--engine ray needs Ray: pip install 'blockout[ray]'; --jobs works without"
        ) from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level="warning")
    return ray


def _remote(ray: Any, task: "Task") -> Any:
    scale = task.condition.scale
    gpus = 1 if scale == "paper" and torch.cuda.is_available() else 0
    return ray.remote(_do).options(num_cpus=CORES[scale], num_gpus=gpus, max_retries=RETRIES)


def _room(ray: Any, scale: Scale) -> int:
    return max(int(ray.cluster_resources().get("CPU", 1)) // CORES[scale], 1)


def _do(task: "Task") -> "Report":
    from blockout.reproduce.work import do, use_threads

    use_threads(CORES[task.condition.scale])
    return do(task)
