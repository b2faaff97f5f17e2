"""Times alternatives side by side."""

import time
from collections.abc import Callable, Sequence


def in_turns(
    runs: Sequence[Callable[[], object]],
    *,
    rounds: tuple[int, int],
    seconds: float,
    least: float = 0.0,
) -> list[list[float]]:
    """Seconds per call of each run, taken in turns so that all see the same load.

    Args:
        runs: the functions to call; each is called once before timing starts.
        rounds: the least and the most rounds.
        seconds: no round starts after this time.
        least: shorter calls are timed in batches that take at least this long.
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
