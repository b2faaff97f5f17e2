"""Progress for people: a live line in a terminal, a line per epoch and now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from blockout.terminal import printable_lines, raw_output

TOLD_EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""
BAR = 10
"""Columns of the bar: with the count and the time left it must fit a narrow terminal."""


def duration(seconds: float) -> str:
    """Roughly, for people.

    >>> duration(42), duration(130), duration(2 * 3600 + 600)
    ('42 s', '2 min', '2 h 10 min')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Terminal(Console):
    """A console that does not end the process when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Narrator:
    """Says how training goes; silent on every process but the first."""

    def __init__(self, total: int, done: int, batch_size: int, silent: bool) -> None:
        self.console = Terminal(file=raw_output(), quiet=silent, soft_wrap=True, highlight=False)
        self.live = self.console.is_terminal and not silent
        self.batch_size, self.total = batch_size, total
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=BAR),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn(
                "{task.fields[text]}",
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            expand=True,
            console=self.console,
            disable=not self.live,
            transient=True,
        )
        self.task = self.bar.add_task("", total=total, completed=done, epoch=1, text="")
        self._mark = (time.perf_counter(), done)
        self.speed = 0.0
        self._told = time.perf_counter()
        self._first: tuple[float, int] | None = None

    def say(self, text: str) -> None:
        """Prints a line. A terminal that has been closed does not end a training run."""
        self._told = time.perf_counter()
        try:
            self.console.print(printable_lines(text), markup=False)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError:
            self.console.quiet = True

    def passed(self, step: int) -> None:
        """Called after each step: a line now and then where no bar shows how far it has come."""
        now = time.perf_counter()
        if self._first is None:  # the first step is slow: the pace is that of the others
            self._first = (now, step)
        began, first = self._first
        if not self.live and now - self._told >= TOLD_EVERY and first < step < self.total:
            left = (now - began) / (step - first) * (self.total - step)
            self.say(f"step {step} of {self.total}, {duration(left)} left")

    def measure_speed(self, step: int) -> float:
        """Images per second since the last call."""
        now, (then, before) = time.perf_counter(), self._mark
        if step > before:
            self.speed = (step - before) * self.batch_size / max(now - then, 1e-9)
        self._mark = (now, step)
        return self.speed

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stops the clock of ``measure_speed`` for what is not training, such as evaluation."""
        began = time.perf_counter()
        try:
            yield
        finally:
            then, before = self._mark
            self._mark = (then + time.perf_counter() - began, before)

    def step(self, step: int, epoch: int, loss: float, accuracy: float, tested: str) -> None:
        """Shows how far it is. A narrow terminal shows the beginning of the text."""
        text = f"loss {loss:.3f}  train {accuracy:.1f} %{tested}  {self.speed:.0f} images/s"
        self.bar.update(self.task, completed=step, epoch=epoch, text=text)
