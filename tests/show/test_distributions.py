"""What became of memberships."""

from dataclasses import replace

import numpy as np
import pytest

from blockout.runs.run import Distributions
from blockout.show.distributions import Outcome, ends, outcome, outcomes, through_training

from .made import bare_run, histogram, result

HALF = histogram((1000, 0.48, 0.52))
PAPER_P0 = [0] * 7 + [2, 13, 34, 97, 176, 248, 341, 434, 492, 524, 542, 587, 572, 557, 533, 530,
            502, 504, 514, 459, 447, 427, 384, 380, 321, 314, 316, 313, 278, 251, 238, 244, 188,
            153, 134, 92, 81, 42, 17, 7, 0, 0, 0]  # fmt: skip
PAPER_P1 = [0, 0, 6, 26, 101, 216, 407, 590, 640, 661, 657, 534, 493, 452, 398, 299, 273, 227, 199,
            182, 175, 165, 150, 156, 117, 112, 126, 96, 124, 106, 105, 96, 74, 111, 120, 97, 130,
            113, 134, 140, 150, 161, 178, 218, 281, 413, 495, 639, 718, 227]  # fmt: skip
"""Of the 10 epochs on CIFAR-100 with 2048 nodes by the paper's rule."""


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (HALF, HALF, Outcome.STAYED),
        (HALF, histogram((1000, 0.44, 0.6)), Outcome.STAYED),  # moved by 0.04 on average
        (HALF, histogram((700, 0.0, 0.05), (300, 0.95, 1.0)), Outcome.DIVERGED),
        (HALF, histogram((980, 0.0, 0.01), (20, 0.99, 1.0)), Outcome.DIVERGED),  # 1 of 50
        (HALF, histogram((995, 0.0, 0.01), (5, 0.99, 1.0)), Outcome.FELL),
        (HALF, histogram((1000, 0.9, 1.0)), Outcome.ROSE),
        (HALF, histogram((600, 0.8, 1.0), (380, 0.5, 0.8), (20, 0.0, 0.2)), Outcome.ROSE),
        (HALF, histogram((1000, 0.0, 0.3)), Outcome.FELL),
        (HALF, histogram((1000, 0.0, 1.0)), Outcome.SPREAD),  # evenly: no valley between the ends
        (histogram((1000, 0.0, 1.0)), HALF, Outcome.NARROWED),
        (HALF, np.array(PAPER_P0), Outcome.SPREAD),
        (HALF, np.array(PAPER_P1), Outcome.DIVERGED),
    ],
)
def test_the_outcome_is_what_one_sees(first, last, expected):
    assert outcome(first, last) is expected


def test_a_structure_that_was_there_before_has_stayed():
    settled = histogram((700, 0.0, 0.01), (300, 0.99, 1.0))
    assert outcome(settled, settled) is Outcome.STAYED


def test_the_ends_are_up_to_a_fifth():
    assert ends(histogram((30, 0.0, 0.19), (50, 0.25, 0.75), (20, 0.81, 1.0))) == (0.3, 0.2)


def test_the_final_p_comes_last_and_replaces_what_was_logged_at_the_last_step():
    p = np.array([[0.001, 0.999], [0.001, 0.501]], dtype=np.float32)
    seen = Distributions(np.array([50, 100]), np.stack([HALF, HALF]), np.full((2, 3), 0.5))
    run = replace(bare_run(), distributions={"P_0": seen, "P_2": seen}, memberships={"P_2": p})
    for last, steps in ((120, [50, 100, 120]), (100, [50, 100])):
        ended = through_training(replace(run, result=result(steps=last)))
        assert ended["P_0"].steps.tolist() == [50, 100]
        assert ended["P_2"].steps.tolist() == steps
        assert ended["P_2"].histograms[-1][[0, 25, 49]].tolist() == [2, 1, 1]
        assert ended["P_2"].quartiles[-1].tolist() == pytest.approx([0.001, 0.251, 0.6255])
    unfinished = replace(run, result=None)
    assert through_training(unfinished)["P_2"] is seen
    assert outcomes(run) == {"P_0": Outcome.STAYED, "P_2": Outcome.DIVERGED}
