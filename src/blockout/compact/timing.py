"""How long alternatives take, measured side by side."""

import time
from collections.abc import Callable, Sequence


def in_turns(
    runs: Sequence[Callable[[], object]],
    *,
    rounds: tuple[int, int],
    seconds: float,
    least: float = 0.0,
) -> list[list[float]]:
    """Seconds of each call, taken alternately so that all see the same machine.

    Args:
        runs: what is called; once before it counts.
        rounds: at least and at most so many.
        seconds: no further round begins after this time.
        least: shorter calls are timed several at a time, together at least this long.
    """
    calls = 1
    for run in runs:
        run()
        start = time.perf_counter()
        run()
        calls = max(calls, int(least / max(time.perf_counter() - start, 1e-9)))
    taken: list[list[float]] = [[] for _ in runs]
    fewest, most = rounds
    began = time.perf_counter()
    while len(taken[0]) < fewest or (
        len(taken[0]) < most and time.perf_counter() - began < seconds
    ):
        for run, times in zip(runs, taken, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                run()
            times.append((time.perf_counter() - start) / calls)
    return taken
