"""How memberships P are distributed through training (Fig. 9), and what becomes of them."""

from enum import Enum

import numpy as np
from jaxtyping import Int64

from blockout.runs.documents import BINS
from blockout.runs.run import Distributions, Run

END = 0.2
"""P up to this is at the low end, P from 1 - this at the high end."""
LEAST_AT_AN_END = 0.02
"""Share of the memberships at each end that makes branches: one cluster in fifty per node."""
LEAST_MOVE = 0.05
"""How far P must move, on average or by its quartiles, to count as moved."""


class Outcome(Enum):
    """What became of the memberships of one set of nodes.

    Section 6 of the paper reports the first (hard clustering, mostly in later layers), the second
    (early layers) and the third (soft clustering).
    """

    DIVERGED = "diverged into branches"
    STAYED = "stayed as it was"
    ROSE = "rose together"
    FELL = "fell together"
    SPREAD = "spread out, but not into branches"
    NARROWED = "drew together"

    @property
    def meaning(self) -> str:
        """What this says about the network."""
        return MEANING[self]


MEANING = {
    Outcome.DIVERGED: "many nodes are clearly in some branches and out of others",
    Outcome.STAYED: "training did not decide which node belongs to which branch",
    Outcome.ROSE: "nodes tend to belong to every branch, so these layers are nearly dense",
    Outcome.FELL: "nodes tend to leave every branch, so few connections are left",
    Outcome.SPREAD: "nodes lean towards some branches, but most can still belong to any",
    Outcome.NARROWED: "nodes differ less in their branches than at the start",
}


def through_training(run: Run) -> dict[str, Distributions]:
    """P of each set of nodes at every logged step; for a finished run, the final P comes last."""
    found = {}
    for name, logged in run.distributions.items():
        p = run.memberships.get(name)
        if run.result is not None and p is not None:
            before = logged.steps < run.result.steps
            logged = Distributions(
                np.append(logged.steps[before], run.result.steps),
                np.vstack([logged.histograms[before], np.histogram(p, BINS, (0, 1))[0]]),
                np.vstack([logged.quartiles[before], np.quantile(p, (0.25, 0.5, 0.75))]),
            )
        found[name] = logged
    return found


def outcomes(run: Run) -> dict[str, Outcome]:
    """What became of each set of nodes, from the first logged step to the last."""
    return {
        name: outcome(seen.histograms[0], seen.histograms[-1])
        for name, seen in through_training(run).items()
    }


def outcome(first: Int64[np.ndarray, " bins"], last: Int64[np.ndarray, " bins"]) -> Outcome:
    """What became of P between two histograms over [0, 1].

    The first rule that applies decides. P stayed if it moved by less than 0.05 on average (the area
    between the two cumulative distributions). It diverged if both ends (P up to 0.2, P from 0.8)
    hold at least 2 % and are denser than the middle. It rose or fell together if its lower and
    upper quartiles both moved that way by 0.05 or more. Otherwise it spread out or drew together,
    by the distance between its quartiles.

    >>> half, ends, high = [0, 0, 8, 0, 0], [5, 0, 0, 0, 3], [0, 0, 0, 0, 8]
    >>> outcome(np.array(half), np.array(ends)).value, outcome(np.array(half), np.array(high)).value
    ('diverged into branches', 'rose together')
    """
    before, after = np.cumsum(first) / first.sum(), np.cumsum(last) / last.sum()
    if np.abs(after - before).mean() < LEAST_MOVE:
        return Outcome.STAYED
    low, high = ends(last)
    middle = (1 - low - high) / (1 - 2 * END)
    if min(low, high) >= LEAST_AT_AN_END and min(low, high) / END > middle:
        return Outcome.DIVERGED
    (lower, upper), (lower_now, upper_now) = _quartiles(first), _quartiles(last)
    if min(lower_now - lower, upper_now - upper) >= LEAST_MOVE:
        return Outcome.ROSE
    if max(lower_now - lower, upper_now - upper) <= -LEAST_MOVE:
        return Outcome.FELL
    wider = upper_now - lower_now >= upper - lower
    return Outcome.SPREAD if wider else Outcome.NARROWED


def ends(histogram: Int64[np.ndarray, " bins"]) -> tuple[float, float]:
    """The shares at the low and at the high end.

    >>> ends(np.array([5, 0, 0, 2, 3]))
    (0.5, 0.3)
    """
    bins, total = round(END * len(histogram)), histogram.sum()
    return float(histogram[:bins].sum() / total), float(histogram[-bins:].sum() / total)


def _quartiles(histogram: Int64[np.ndarray, " bins"]) -> tuple[float, float]:
    """The first and the third quartile, interpolated within bins."""
    cumulative = np.concatenate([[0], np.cumsum(histogram) / histogram.sum()])
    edges = np.linspace(0, 1, len(histogram) + 1)
    low, high = np.interp((0.25, 0.75), cumulative, edges)
    return float(low), float(high)
