from dataclasses import replace

import pytest

from blockout.runs.documents import EpochEntry, StepEntry
from blockout.show.convergence import accuracy, cost_by_epoch, cost_by_step, over_seeds

from .made import bare_run

STEPS = (StepEntry(50, 0.5, 4.0, 5.0, 0.1), StepEntry(100, 1.0, 3.0, 9.0, 0.1))
EPOCHS = (EpochEntry(100, 1, 3.5, 9.0, test_accuracy=15.5), EpochEntry(200, 2, 2.4, 22.0))


def test_costs_stand_in_the_middle_of_what_they_are_the_mean_of():
    run = replace(bare_run(), steps=STEPS, epochs=EPOCHS)
    assert cost_by_step(run) == ([0.25, 0.75], [4.0, 3.0], [50, 100])
    assert cost_by_epoch(run) == ([0.5, 1.5], [3.5, 2.4], [1, 2])
    assert cost_by_step(bare_run()) == ([], [], [])


def test_epochs_without_an_accuracy_are_left_out():
    run = replace(bare_run(), epochs=EPOCHS)
    assert accuracy(run, "test") == ([1.0], [15.5], [1])
    assert accuracy(run, "holdout") == ([], [], [])
    assert accuracy(run, "train").values == [9.0, 22.0]


def test_seeds_are_averaged_where_all_of_them_have_come():
    runs = [replace(bare_run(), epochs=EPOCHS[: i + 1]) for i in range(2)]
    band = over_seeds([cost_by_epoch(run) for run in runs])
    assert band.epochs.tolist() == [0.5] and band.mean.tolist() == [3.5]
    other = replace(runs[1], epochs=(EpochEntry(100, 1, 1.5, 1.0), EpochEntry(200, 2, 0.4, 2.0)))
    band = over_seeds([cost_by_epoch(runs[1]), cost_by_epoch(other)])
    assert band.mean == pytest.approx([2.5, 1.4])
    assert band.least.tolist() == [1.5, 0.4] and band.most.tolist() == [3.5, 2.4]
    assert over_seeds([cost_by_epoch(bare_run())]) is None
