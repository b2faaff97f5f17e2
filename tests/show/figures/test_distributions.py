"""Fig. 9."""

import numpy as np
import pytest

from blockout.show.figures.distributions import distributions

from .made import P_2, STEPS, make_run, text_of


def test_fig_9_has_shares_and_the_median_of_every_set(tmp_path, run):
    training = make_run(tmp_path / "narrow", width=6, finished=False)
    figure = distributions([run, training])
    panels = [axes for axes in figure.axes if axes.lines]
    assert len(panels) == 6
    for axes in panels[:3]:  # the narrow run first
        np.testing.assert_allclose(axes.lines[0].get_xydata(), [[s, 0.25] for s in STEPS])
        shares = axes.collections[0].get_array().reshape(50, 3)
        assert shares[0].tolist() == [1, 1, 1] and shares[1:].sum() == 0
    text = text_of(figure)
    assert "probability" in text and "iteration" in text and "6 nodes" in text


def test_fig_9_ends_with_the_final_memberships(run):
    last = distributions([run]).axes[2]
    step, median = last.lines[0].get_xydata()[-1]
    assert step == STEPS[-1] and median == np.median(P_2)
    shares = last.collections[0].get_array().reshape(50, 3)[:, -1]
    assert shares[0] == pytest.approx((P_2 == 0).mean())
    assert shares[-1] == pytest.approx((P_2 == 1).mean())
