"""Does what is missing of a table: in this process, in several, or on a Ray cluster."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from blockout.reproduce.planning import Costs, Job, jobs_of, missing, unchosen
from blockout.reproduce.records import Records
from blockout.reproduce.rows import Row
from blockout.reproduce.settings import Cell, Condition
from blockout.reproduce.single import Impossible, run_cell
from blockout.runs.errors import RunError
from blockout.training.engine import Diverged

Engine = Literal["local", "ray"]
HOUR = 3600
TIME_TO_SAVE = 60
"""Seconds for a checkpoint, when a process has to end."""


class Task(NamedTuple):
    """One run, as a process that knows nothing else needs it."""

    condition: Condition
    cell: Cell
    seed: int
    out: Path
    work: Path


class Report(NamedTuple):
    """How a run ended."""

    state: Literal["done", "elsewhere", "impossible"]
    """Done now; another process does it or has done it; this data or setting does not allow it."""
    text: str
    took: float = 0.0


class Summary(NamedTuple):
    done: int
    left: int
    """Runs that are still missing."""


Enough = Callable[[Task], bool]
"""Whether there is time for a run."""


def do(task: Task) -> Report:
    """Does one run and adds its record, unless another process does or did."""
    condition, cell, seed = task.condition, task.cell, task.seed
    records = Records(task.out)
    with records.claimed(condition.name, cell.name, seed) as mine:
        if not mine:
            return Report("elsewhere", "another process does it, or just did")
        try:
            outcome = run_cell(condition, cell, seed, task.work)
        except (Impossible, Diverged) as error:
            return Report("impossible", str(error))
        records.add(condition, cell.name, *outcome)
    found = outcome.record
    held = "" if found.holdout is None else f", hold-out {found.holdout:.2f} %"
    return Report("done", f"test {found.test:.2f} %{held}, {found.took:.0f} s", found.took)


class Worker:
    """Plans, does and tells.

    Args:
        condition, rows, seeds: what to do.
        out: folder of the records.
        work: folder of the run folders, at the scales that have them.
        jobs: how many runs at a time.
        hours: no run is started that would end later than this; None: no limit.
        engine: local processes, or Ray.
        say: tells the user.
    """

    def __init__(
        self,
        condition: Condition,
        rows: Sequence[Row],
        seeds: int,
        *,
        out: Path,
        work: Path,
        jobs: int = 1,
        hours: float | None = None,
        engine: Engine = "local",
        say: Callable[[str], object] = print,
    ) -> None:
        self.condition, self.rows, self.seeds = condition, rows, seeds
        self.out, self.work, self.jobs = out, work, jobs
        self.engine: Engine = engine
        self.say, self.records = say, Records(out)
        self.deadline = None if hours is None else time.monotonic() + HOUR * hours
        self.given_up: set[tuple[str, int]] = set()
        self.hopeless: set[str] = set()
        self.done, self.out_of_time = 0, False
        planned = self._planned()
        self.costs = Costs(condition, self._cells(), planned)
        self.total = len(missing(planned, self._cells()))
        self.unchosen = unchosen(rows, seeds, condition, self._cells())

    def run(self) -> Summary:
        """Does all that is missing, as far as time allows."""
        for stage in (0, 1):
            todo = self._todo(stage)
            if todo and not self.out_of_time:
                self._do(todo)
        return Summary(self.done, len(self._todo(0)) + len(self._todo(1)))

    def seconds(self) -> float:
        """What is missing will take, in all jobs together."""
        cells = self._cells()
        return sum(self.costs.of(job.cell) for job in missing(self._planned(), cells)) / self.jobs

    def _do(self, todo: list[Job]) -> None:
        tasks = [Task(self.condition, j.cell, j.seed, self.out, self.work) for j in todo]
        for task, report in _runner(self.engine, self.jobs)(tasks, self._is_time_for):
            where = f"{task.cell.name} seed {task.seed}"
            if report.state == "done":
                self.done += 1
                self.costs.learn(task.cell, report.took)
                self.say(f"{self.done}/{self.total} {where}: {report.text}")
                continue
            if task.cell.name not in self.hopeless:
                self.say(f"{where} is left out: {report.text}")
            if report.state == "impossible":
                self.hopeless.add(task.cell.name)
            self.given_up.add((task.cell.name, task.seed))

    def _is_time_for(self, task: Task) -> bool:
        if task.cell.name in self.hopeless or self.deadline is None:
            return True
        fits = time.monotonic() + self.costs.of(task.cell) <= self.deadline
        self.out_of_time |= not fits
        return fits

    def _cells(self) -> dict[str, Any]:
        return self.records.of_condition(self.condition.name)

    def _planned(self) -> list[Job]:
        return [
            job for s in jobs_of(self.rows, self.seeds, self.condition, self._cells()) for job in s
        ]

    def _todo(self, stage: int) -> list[Job]:
        cells = self._cells()
        jobs = list(jobs_of(self.rows, self.seeds, self.condition, cells))[stage]
        return [j for j in missing(jobs, cells) if (j.cell.name, j.seed) not in self.given_up]


# --- where runs are done --------------------------------------------------------------------------

Runner = Callable[[Sequence[Task], Enough], Iterator[tuple[Task, Report]]]


def _runner(engine: Engine, jobs: int) -> Runner:
    if engine == "ray":
        from blockout.reproduce.cluster import on_ray

        return lambda tasks, enough: on_ray(tasks, enough, jobs)
    if jobs == 1:
        return _here
    return lambda tasks, enough: _in_processes(tasks, enough, jobs)


def _here(tasks: Sequence[Task], enough: Enough) -> Iterator[tuple[Task, Report]]:
    for task in tasks:
        if not enough(task):
            return
        yield task, do(task)


def _in_processes(
    tasks: Sequence[Task], enough: Enough, jobs: int
) -> Iterator[tuple[Task, Report]]:
    """As many at a time as there are jobs; each process keeps its features for the next run."""
    fresh = multiprocessing.get_context("spawn")
    waiting, running = list(tasks), dict[Future[Report], Task]()
    with ProcessPoolExecutor(jobs, fresh, _begin_worker, (threads_per(jobs),)) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    if not enough(waiting[0]):
                        waiting.clear()
                        break
                    task = waiting.pop(0)
                    running[pool.submit(do, task)] = task
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), _result(future)
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
            raise
        except BrokenProcessPool as error:
            raise RunError(
                "a process was killed, often because memory is short: fewer --jobs need less. "
                "Records are whole; the same command continues"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _result(future: Future[Report]) -> Report:
    """What a run says; what was wrong there is said as if it had been here."""
    try:
        return future.result()
    except (ValueError, OSError) as error:
        raise RunError(str(error)) from error


def threads_per(jobs: int) -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(cores // jobs, 1)


def _begin_worker(threads: int) -> None:
    """Away from the terminal: a Ctrl-C there is for the first process, which passes it on once."""
    os.setpgrp()
    signal.signal(signal.SIGINT, _leave)  # training that has checkpoints waits for the next step
    threading.Thread(target=_follow_parent, daemon=True).start()
    use_threads(threads)


def _follow_parent() -> None:
    """Ends this process when the first one is gone: nobody would give it work or end it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(TIME_TO_SAVE)
    os._exit(1)


def _leave(*_: object) -> None:
    os._exit(128 + signal.SIGINT)


def use_threads(count: int) -> None:
    torch.set_num_threads(count)
