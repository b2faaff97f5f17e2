"""How the memberships P went through training (Fig. 9), and what became of them, in words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.subplots import make_subplots

from blockout.runs import Run
from blockout.runs.documents import BINS
from blockout.runs.run import Distributions
from blockout.show.colours import LINE, PALETTE
from blockout.show.distributions import END, ends, outcome, outcomes, through_training
from blockout.show.page.drawing import nodes_called, thinned
from blockout.show.page.section import Figure, Section, bdi, html, part

LEAD = """P is the chance that a node belongs to a branch; every node has one P per branch. Training
starts with equal P: nothing is decided. Where the colours part towards 0 and 1, nodes have settled
in some branches and left the others. Guided training moves P towards few branches on a schedule;
what it learns is which branches. Nodes may go on being drawn in these: their P then stay between 0
and 1, and become 1 with the last step. Move the slider to see the distribution at other times."""
MOST_SLIDES = 100
COLOURS = [[0.0, "rgba(230,159,0,0.12)"], [0.5, "rgba(230,159,0,0.75)"], [1.0, "rgba(213,94,0,1)"]]
TICKS = (-2, 0, 2)
"""Logarithms of shares in per cent, from the faintest colour to the strongest."""
CENTRES = (np.arange(BINS) + 0.5) / BINS


def section(runs: Sequence[Run]) -> Section | None:
    """The first run with memberships in figures, all of them in words."""
    shown = [run for run in runs if run.distributions and not run.whole]
    if not shown:
        return None
    sets = through_training(shown[0])
    figures = tuple(_figure(name, seen, shown[0]) for name, seen in sets.items())
    body = _table(shown) if len(shown) > 1 else Markup()
    return Section("distributions", "How branches formed", LEAD, body, figures)


def _table(runs: Sequence[Run]) -> Markup:
    names = list(dict.fromkeys(name for run in runs for name in run.distributions))
    rows = []
    for run in runs:
        found = outcomes(run)
        rows.append((run.name, *(found[n].value if n in found else "–" for n in names)))
    text = "<p>The figures show {}. What became of P in each run:</p>\n{}"
    table = part("table", "What became of P", ("run", *names), rows)
    return html(text, bdi(runs[0].name), table)


def _figure(name: str, seen: Distributions, run: Run) -> Figure:
    """Left through time, right at the time of the slider; both share the axis of P."""
    chosen = thinned(len(seen.steps))
    steps, quartiles = seen.steps[chosen], seen.quartiles[chosen]
    shares = 100 * seen.histograms[chosen] / seen.histograms[chosen].sum(1, keepdims=True)
    chart = make_subplots(1, 2, shared_yaxes=True, column_widths=[0.72, 0.28])
    upper, lower = (_line(steps, quartiles[:, i], text, "dot", 1.5) for i, text in QUARTILES)
    chart.add_trace(_heatmap(steps, shares), 1, 1)
    chart.add_trace(upper.update(showlegend=False), 1, 1)
    chart.add_trace(_line(steps, quartiles[:, 1], "median", "solid", 3), 1, 1)
    chart.add_trace(lower.update(name="quartiles"), 1, 1)
    now = {"mode": "lines", "line": {"color": LINE, "width": 1.5}, "hoverinfo": "skip"}
    chart.add_scatter(x=[steps[-1]] * 2, y=[0, 1], **now, showlegend=False, row=1, col=1)
    chart.add_trace(_bars(shares[-1]), 1, 2)
    chart.update_xaxes(title={"text": "Training step", "standoff": 8}, col=1)
    chart.update_xaxes(title={"text": "Share (%)", "standoff": 8}, rangemode="tozero", col=2)
    chart.update_yaxes(range=[0, 1])
    chart.update_yaxes(title_text="P, chance to belong to a branch", col=1)
    chart.update_layout(
        height=392,
        bargap=0,
        margin={"l": 60, "r": 20, "t": 45, "b": 62},
        legend={"orientation": "h", "x": 0.72, "y": 1.02, "yanchor": "bottom"},
        sliders=[_slider(steps, shares)],
    )
    title = nodes_called(name, run.distributions)
    return Figure(f"distributions-{name}", chart, _in_words(name, seen, run), title)


QUARTILES = ((2, "upper quartile"), (0, "lower quartile"))


def _heatmap(steps: np.ndarray, shares: np.ndarray) -> go.Heatmap:
    """Logarithms of the shares, which show few beside many; zero has no colour."""
    with np.errstate(divide="ignore"):
        logs = np.where(shares.T == 0, np.nan, np.log10(shares.T))
    bar = {
        "orientation": "h",
        "x": 0.68,
        "xanchor": "right",
        "y": 1,
        "yanchor": "bottom",
        "len": 0.45,
        "thickness": 9,
        "outlinewidth": 0,
        "tickfont_size": 10,
        "tickvals": TICKS,
        "ticktext": [f"{10.0**t:g} %" for t in TICKS],
    }
    hover = "step %{x:,}<br>%{customdata:.2f} % have a P of %{y:.2f} ± 0.01<extra></extra>"
    return go.Heatmap(
        x=steps,
        y=CENTRES,
        z=logs.astype(np.float32),
        customdata=shares.T.astype(np.float32),
        hovertemplate=hover,
        zmin=TICKS[0],
        zmax=TICKS[-1],
        colorscale=COLOURS,
        colorbar=bar,
        hoverongaps=False,
    )


def _line(steps: np.ndarray, values: np.ndarray, name: str, dash: str, width: float) -> go.Scatter:
    return go.Scatter(
        x=steps,
        y=values.astype(np.float32),
        name=name,
        mode="lines" if len(steps) > 1 else "markers",
        line={"color": PALETTE[0], "width": width, "dash": dash},
        hovertemplate=f"step %{{x:,}}<br>{name} %{{y:.2f}}<extra></extra>",
    )


def _bars(shares: np.ndarray) -> go.Bar:
    hover = "%{x:.2f} % have a P of %{y:.2f} ± 0.01<extra></extra>"
    look = {"marker_color": PALETTE[3], "marker_line_width": 0, "width": 1 / BINS}
    bars = go.Bar(x=_rounded(shares), y=CENTRES, orientation="h", hovertemplate=hover, **look)
    return bars.update(showlegend=False)


def _slider(steps: np.ndarray, shares: np.ndarray) -> dict[str, Any]:
    """Each position sets the histogram and the line of its time (traces 4 and 5)."""
    positions = [
        {
            "label": f"{steps[i]:,}",
            "method": "restyle",
            "args": [{"x": [[int(steps[i])] * 2, _rounded(shares[i])]}, [4, 5]],
        }
        for i in thinned(len(steps), MOST_SLIDES)
    ]
    prefix = "The histogram on the right shows step "
    return {
        "active": len(positions) - 1,
        "steps": positions,
        "currentvalue": {"prefix": prefix},
    }


def _rounded(shares: np.ndarray) -> list[float]:
    return [round(float(share), 2) for share in shares]


def _in_words(name: str, seen: Distributions, run: Run) -> str:
    what = outcome(seen.histograms[0], seen.histograms[-1])
    low, high = ends(seen.histograms[-1])
    chance = run.config.guidance.draw_on
    if run.result is None and run.config.guided and chance is not None and chance < 1:
        return (
            f"At step {seen.steps[-1]:,}, {low:.0%} of the P of {name} are below {END:g}. Hidden "
            f"nodes are drawn in the branches they keep with a chance of {chance:g} until the last "
            "step, which makes them certain."
        )
    text = (
        f"{name} {what.value}: {what.meaning}. At step {seen.steps[-1]:,}, {low:.0%} of its P are "
        f"below {END:g} and {high:.0%} above {1 - END:g}; the median is "
        f"{seen.quartiles[-1, 1]:.2f}."
    )
    if (p := run.memberships.get(name)) is not None:
        text += f" On average, the P of a node add up to {p.sum(1).mean():.1f} of {p.shape[1]}."
    return text
