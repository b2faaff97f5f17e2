"""How the memberships P went through training (Fig. 9), and what became of them, in words."""

import html
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
from jaxtyping import Int64

from blockout.report.history import layout, thinned
from blockout.report.naming import nodes_called
from blockout.report.section import PALETTE, Figure, Section
from blockout.report.view import BINS, Distributions, RunView

LEAD = (
    "P is the chance that a node belongs to a branch (cluster); every node has one for each "
    "branch. Training starts with P near one half: nothing is decided. Where the colours part "
    "towards 0 and 1, nodes have settled in some branches and left the others. A guided training "
    "moves P towards few branches and fixes it at 0 or 1 by a schedule; what it learns is which. "
    "The slider shows the distribution at other times."
)
END = 0.2
"""P up to this lies at the low end, from 1 - this at the high end."""
LEAST_AT_AN_END = 0.02
"""Share of the memberships at each end that makes branches: one cluster of fifty a node."""
LEAST_MOVE = 0.05
"""How far P have to move, on average or by their quartiles, to count as moved."""
MOST_SLIDES = 100
COLOURS = [
    [0.0, "rgba(230,159,0,0.12)"], [0.5, "rgba(230,159,0,0.75)"], [1.0, "rgba(213,94,0,1)"],
]  # fmt: skip
FAINTEST = -2
"""Logarithm of the share in per cent that the faintest colour stands for."""
EDGES = np.linspace(0, 1, BINS + 1)
CENTRES = (EDGES[:-1] + EDGES[1:]) / 2


class Outcome(Enum):
    """What became of the memberships of one set of nodes; Section 6 of the paper sees the first
    (hard clustering, most in later layers), the second (early layers) and the third (soft)."""

    DIVERGED = "diverged into branches"
    STAYED = "stayed as it was"
    ROSE = "rose together"
    FELL = "fell together"
    SPREAD = "spread out, but not into branches"
    NARROWED = "drew together"


MEANING = {
    Outcome.DIVERGED: "many nodes are clearly in some branches and out of others",
    Outcome.STAYED: "training did not decide who belongs to which branch",
    Outcome.ROSE: "nodes tend to belong to every branch, so these layers are nearly dense",
    Outcome.FELL: "nodes tend to leave every branch, so few connections are left",
    Outcome.SPREAD: "nodes lean towards some branches, but most can still belong to any",
    Outcome.NARROWED: "nodes differ less in their branches than at first",
}


def outcome(first: Int64[np.ndarray, " bins"], last: Int64[np.ndarray, " bins"]) -> Outcome:
    """What became of P from the first to the last of its histograms over [0, 1].

    In this order: P stayed where it moved by less than 0.05 on average (the area between the two
    cumulative distributions). It diverged where both ends (P up to 0.2, P from 0.8) hold at
    least 2 % and are more crowded than the middle. It rose or fell together where the lower and
    the upper quartile both moved that way by 0.05 or more. Otherwise it spread or drew together,
    by the distance of its quartiles.

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
    """Shares of the low and of the high end.

    >>> ends(np.array([5, 0, 0, 2, 3]))
    (0.5, 0.3)
    """
    bins = round(END * len(histogram))
    total = histogram.sum()
    return float(histogram[:bins].sum() / total), float(histogram[-bins:].sum() / total)


def section(runs: Sequence[RunView]) -> Section | None:
    """The first run with memberships in figures, all of them in words."""
    views = [view for view in runs if view.distributions]
    if not views:
        return None
    sets = through_training(views[0])
    figures = tuple(_figure(name, sets[name], views[0]) for name in sets)
    body = _table(views) if len(views) > 1 else ""
    return Section("distributions", "How branches formed", LEAD, body, figures)


def through_training(view: RunView) -> dict[str, Distributions]:
    """What was logged along the way, and the memberships in the end where they are later."""
    end = view.result.get("steps", 0)
    found = {}
    for name, logged in view.distributions.items():
        p = view.memberships.get(name)
        if p is not None and end > logged.steps[-1]:
            histogram = np.histogram(p, BINS, (0, 1))[0]
            quartiles = np.quantile(p, (0.25, 0.5, 0.75))
            logged = Distributions(
                np.append(logged.steps, end),
                np.vstack([logged.histograms, histogram]),
                np.vstack([logged.quartiles, quartiles]),
            )
        found[name] = logged
    return found


def _quartiles(histogram: Int64[np.ndarray, " bins"]) -> tuple[float, float]:
    """The first and the third, as well as a histogram tells them."""
    cumulative = np.concatenate([[0], np.cumsum(histogram) / histogram.sum()])
    edges = np.linspace(0, 1, len(histogram) + 1)
    low, high = np.interp((0.25, 0.75), cumulative, edges)
    return float(low), float(high)


def _figure(name: str, logged: Distributions, view: RunView) -> Figure:
    """Left through time, right at the time that the slider says; both share the axis of P."""
    chosen = thinned(len(logged.steps))
    steps, quartiles = logged.steps[chosen], logged.quartiles[chosen]
    shares = 100 * logged.histograms[chosen] / logged.histograms[chosen].sum(1, keepdims=True)
    traces = [
        _heatmap(steps, shares),
        _line(steps, quartiles[:, 2], "upper quartile", "dot") | {"showlegend": False},
        _line(steps, quartiles[:, 1], "median", "solid"),
        _line(steps, quartiles[:, 0], "lower quartile", "dot") | {"name": "quartiles"},
        _now(steps[-1]),
        _bars(shares[-1]),
    ]
    title = nodes_called(name, view.distributions)
    made = _two_panels() | {"sliders": [_slider(steps, shares)]}
    return Figure(f"distributions-{name}", traces, made, _in_words(name, logged, view), title)


def _heatmap(steps: np.ndarray, shares: np.ndarray) -> dict[str, Any]:
    """Shares in logarithms, so that few are seen beside many; none have no colour."""
    with np.errstate(divide="ignore"):
        logs = np.log10(shares.T)
    logs[shares.T == 0] = np.nan
    ticks = (FAINTEST, 0, 2)
    return {
        "type": "heatmap", "x": steps, "y": CENTRES, "z": logs.astype(np.float32),
        "customdata": shares.T.astype(np.float32), "zmin": FAINTEST, "zmax": 2,
        "colorscale": COLOURS, "hoverongaps": False,
        "hovertemplate": "step %{x:,}<br>%{customdata:.2f} % have a P of %{y:.2f} ± 0.01"
                         "<extra></extra>",
        "colorbar": {
            "orientation": "h", "x": 0.68, "xanchor": "right", "y": 1, "yanchor": "bottom",
            "len": 0.45, "thickness": 9, "tickvals": ticks, "outlinewidth": 0,
            "ticktext": [f"{10.0**t:g} %" for t in ticks], "tickfont": {"size": 10},
        },
    }  # fmt: skip


def _line(steps: np.ndarray, values: np.ndarray, name: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter", "x": steps, "y": values.astype(np.float32), "name": name,
        "mode": "lines" if len(steps) > 1 else "markers",
        "line": {"color": PALETTE[0], "width": 3 if dash == "solid" else 1.5, "dash": dash},
        "hovertemplate": f"step %{{x:,}}<br>{name} %{{y:.2f}}<extra></extra>",
    }  # fmt: skip


def _now(step: float) -> dict[str, Any]:
    """A line at the time of the histogram."""
    return {
        "type": "scatter", "x": [step, step], "y": [0, 1], "mode": "lines", "hoverinfo": "skip",
        "line": {"color": "#888888", "width": 1.5}, "showlegend": False,
    }  # fmt: skip


def _bars(shares: np.ndarray) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "x": _rounded(shares), "y": CENTRES, "xaxis": "x2",
        "width": 1 / BINS, "marker": {"color": PALETTE[3], "line": {"width": 0}},
        "showlegend": False,
        "hovertemplate": "%{x:.2f} % have a P of %{y:.2f} ± 0.01<extra></extra>",
    }  # fmt: skip


def _slider(steps: np.ndarray, shares: np.ndarray) -> dict[str, Any]:
    """Each position sets the histogram and the line of its time, without any script of ours."""
    chosen = thinned(len(steps), MOST_SLIDES)
    positions = [
        {
            "label": f"{steps[i]:,}",
            "method": "restyle",
            "args": [{"x": [[int(steps[i])] * 2, _rounded(shares[i])]}, [4, 5]],
        }
        for i in chosen
    ]
    return {
        "active": len(positions) - 1, "steps": positions,
        "currentvalue": {"prefix": "The histogram on the right is of step "},
    }  # fmt: skip


def _rounded(shares: np.ndarray) -> list[float]:
    return [round(float(share), 2) for share in shares]


def _two_panels() -> dict[str, Any]:
    made = layout("Training step", "P, chance to belong to a branch")
    made["xaxis"] |= {"domain": [0, 0.68]}
    made["yaxis"] |= {"range": [0, 1]}
    return made | {
        "height": 392, "margin": made["margin"] | {"t": 45}, "bargap": 0,
        "xaxis2": {"domain": [0.73, 1], "anchor": "y", "rangemode": "tozero",
                   "title": {"text": "Share (%)", "standoff": 8}},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0.72, "y": 1.02, "yanchor": "bottom"},
    }  # fmt: skip


def _in_words(name: str, logged: Distributions, view: RunView) -> str:
    what = outcome(logged.histograms[0], logged.histograms[-1])
    low, high = ends(logged.histograms[-1])
    text = (
        f"{name} {what.value}: {MEANING[what]}. At step {logged.steps[-1]:,}, {low:.0%} of its P "
        f"lie below {END:g} and {high:.0%} above {1 - END:g}; the median is "
        f"{logged.quartiles[-1, 1]:.2f}."
    )
    if (p := view.memberships.get(name)) is not None:
        text += f" The P of a node add up to {p.sum(1).mean():.1f} of {p.shape[1]} on average."
    return text


def _table(views: Sequence[RunView]) -> str:
    """What became of each P in each run."""
    names = list(dict.fromkeys(name for view in views for name in view.distributions))
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in ("run", *names))
    rows = []
    for view in views:
        sets = through_training(view)
        said = [
            outcome(sets[n].histograms[0], sets[n].histograms[-1]).value if n in sets else "–"
            for n in names
        ]
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in said)
        rows.append(f'<tr><th scope="row"><bdi>{html.escape(view.name)}</bdi></th>{cells}</tr>')
    return (
        f"<p>The figures show <bdi>{html.escape(views[0].name)}</bdi>. What became of P in each "
        'run:</p>\n<div class="wide" tabindex="0" role="region" aria-label="What became of P">'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table></div>"
    )
