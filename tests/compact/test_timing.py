"""Alternatives are timed side by side."""

from types import SimpleNamespace

import pytest

from blockout.compact import in_turns, timing


@pytest.fixture
def calls(monkeypatch):
    """Makes runs that take so many seconds on a clock of their own, and notes them."""
    noted = []
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def run(name: str, seconds: float):
        def call() -> None:
            noted.append(name)
            clock.now += seconds

        return call

    return SimpleNamespace(run=run, noted=noted)


def test_runs_take_turns_after_two_calls_each_that_do_not_count(calls):
    taken = in_turns([calls.run("a", 1.0), calls.run("b", 3.0)], rounds=(3, 9), seconds=0)
    assert calls.noted == list("aabb" + "ab" * 3)
    assert taken == [[1.0] * 3, [3.0] * 3]


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 2), (11.0, 3), (1e9, 5)])
def test_rounds_end_after_a_time_but_not_before_the_least_nor_after_the_most(
    calls, seconds, rounds
):
    taken = in_turns([calls.run("a", 1.0), calls.run("b", 3.0)], rounds=(2, 5), seconds=seconds)
    assert [len(times) for times in taken] == [rounds, rounds]


def test_short_calls_are_timed_several_at_once_and_the_time_is_that_of_one(calls):
    runs = [calls.run("a", 0.25), calls.run("b", 1.0)]
    taken = in_turns(runs, rounds=(2, 2), seconds=0, least=2.0)
    assert taken == [[0.25, 0.25], [1.0, 1.0]]
    assert calls.noted == list("aabb" + ("a" * 8 + "b" * 8) * 2)
