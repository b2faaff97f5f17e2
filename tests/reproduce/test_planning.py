"""Which runs are missing, in which order, and what they cost."""

import pytest

from blockout.reproduce import Condition, cell_of, table
from blockout.reproduce.planning import (
    Costs,
    cell_of_row,
    chosen_trial,
    jobs_of,
    missing,
    reason_against,
    unchosen,
)  # fmt: skip
from blockout.reproduce.records import CellRecord

from .test_records import made

HERE = Condition("photos", per_class=50)
ROWS = {row.name: row for row in table("table1", "photos").rows}


def cell_record(*runs) -> CellRecord:
    return CellRecord("", "photos", "transfer", 50, {}, [{}], [{}], list(runs))


def names(jobs) -> list[tuple[str, int]]:
    return [(job.cell.name, job.seed) for job in jobs]


def test_all_rows_come_with_one_seed_before_the_next_seed():
    first, second = jobs_of([ROWS["baseline"], ROWS["fc"]], 3, HERE, {})
    assert names(first) == [("baseline", 0), ("fc-n512", 0), ("baseline", 1), ("fc-n512", 1)]
    assert names(second) == [("baseline", 2), ("fc-n512", 2)]


def test_what_has_a_record_is_not_missing():
    first, _ = jobs_of([ROWS["baseline"], ROWS["fc"]], 2, HERE, {})
    cells = {"baseline": cell_record(made(1)), "fc-n512": cell_record(made(0), made(1))}
    assert names(missing(first, cells)) == [("baseline", 0)]


def trials(holdouts) -> dict[str, CellRecord]:
    cells = [cell_of(settings, "transfer").name for settings in ROWS["dropout-tuned"].trials]
    return {
        cell: cell_record(*(made(seed, holdout=value) for seed, value in enumerate(values)))
        for cell, values in zip(cells, holdouts, strict=True)
    }


def test_a_tuned_row_tries_all_with_two_seeds_and_goes_on_with_the_best_on_the_holdout():
    row = ROWS["dropout-tuned"]
    first, second = jobs_of([row], 4, HERE, {})
    assert len(first) == 10 and {job.seed for job in first} == {0, 1} and second == []
    assert unchosen([row], 4, HERE, {}) == 2
    # 0.65 has the best mean; 0.2 the best single value; later seeds do not count
    done = trials([(70, 40), (50, 50), (50, 51), (60, 58), (50, 50, 99)])
    first, second = jobs_of([row], 4, HERE, done)
    assert missing(first, done) == []
    assert names(second) == [("dropout0.65-n512", 2), ("dropout0.65-n512", 3)]
    assert unchosen([row], 4, HERE, done) == 0


def test_a_tuned_row_does_not_choose_before_every_trial_is_done():
    half = trials([(70, 40), (50, 50), (50, 51), (60, 58), (50,)])
    assert chosen_trial(ROWS["dropout-tuned"], HERE, half, seeds=2) is None
    shown = cell_of_row(ROWS["dropout-tuned"], HERE, half)  # a table may look at what there is
    assert shown is not None and shown.name == "dropout0.65-n512"
    assert cell_of_row(ROWS["dropout-tuned"], HERE, {}) is None


def test_rows_without_flags_of_their_own_are_for_heads_only():
    cpu = Condition("cifar100", "cpu")
    assert reason_against(ROWS["confusion"], cpu) and reason_against(ROWS["fixed-tuned"], cpu)
    assert not reason_against(ROWS["confusion"], HERE)
    assert not reason_against(ROWS["dropout-tuned"], cpu)


def test_costs_are_measured_ones_and_else_in_proportion_to_them():
    first, _ = jobs_of([ROWS["fc"], ROWS["nodes-2048"]], 1, HERE, {})
    small, large = (job.cell for job in first)
    guess = Costs(HERE, {}, first)
    assert guess.of(large) > 5 * guess.of(small)
    costs = Costs(HERE, {small.name: cell_record(made(0, took=8.0), made(1, took=10.0))}, first)
    costs.steps = None  # as where only the guess knows
    assert costs.of(small) == 9
    costs = Costs(HERE, {}, first)
    costs.learn(small, 2 * guess.of(small))
    assert costs.of(large) == pytest.approx(2 * guess.of(large))
