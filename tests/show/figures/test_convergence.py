"""Fig. 8."""

import numpy as np
import pytest

from blockout.show.figures import CannotDraw
from blockout.show.figures.convergence import convergence
from blockout.show.methods import by_method

from .made import make_run


def test_fig_8_draws_the_mean_and_the_band_of_seeds(tmp_path):
    runs = [make_run(tmp_path / f"s{seed}", seed=seed) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "drop", method="dropout", finished=False))
    figure = convergence(runs)
    cost, train, test = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == [
        "(a) training cost", "(b) training accuracy (%)", "(c) test accuracy (%)"]  # fmt: skip
    assert all(axes.get_xlabel() == "epoch" for axes in figure.axes)
    dropout, blockout = cost.lines
    assert blockout.get_label() == "Blockout, paper's rule, 8 nodes, 2 seeds"
    assert dropout.get_label() == "Dropout, 8 nodes"
    # an entry is the mean since the entry before, and stands in the middle of these steps
    np.testing.assert_allclose(blockout.get_xydata(), [[0.25, 3.5], [1.125, 2], [25 / 12, 1.5]])
    np.testing.assert_allclose(test.lines[1].get_ydata(), [9.5, 18.5, 27.5])
    np.testing.assert_allclose(train.lines[0].get_ydata(), [10, 20, 30])
    band = test.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (9, 28)
    of_page = [group.colour for group in by_method(runs)]
    assert [blockout.get_color(), dropout.get_color()] == of_page


def test_a_run_without_a_single_entry_cannot_be_drawn(tmp_path):
    run = make_run(tmp_path / "new", finished=False)
    for name in ("metrics.jsonl", "digests.txt"):
        (run.folder / name).unlink()
    with pytest.raises(CannotDraw, match="needs a run that has logged something"):
        convergence([type(run).open(run.folder)])
