"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal): noted on arrival, obeyed between two steps."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interrupted(RuntimeError):
    """Stopped by a signal at the end of a step, after a checkpoint."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Pending:
    """Signals that have arrived but have not been obeyed yet."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()

    def flags(self) -> list[float]:
        """For each of ``SIGNALS``, 1 if it has arrived: what processes tell each other."""
        return [float(number in self.numbers) for number in SIGNALS]

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, signals are only noted; a second Ctrl-C ends the process at once.

        A signal that is ignored, as SIGHUP is under nohup, stays ignored.
        """

        def note(number: int, _frame: object) -> None:
            self.numbers.add(number)
            signal.signal(signal.SIGINT, signal.default_int_handler)

        try:
            before = {
                number: signal.signal(number, note)
                for number in SIGNALS
                if signal.getsignal(number) is not signal.SIG_IGN
            }
        except ValueError:  # not the main thread: signals are the caller's business
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
