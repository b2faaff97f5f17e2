"""Runs side by side: accuracy per method over seeds, and whether they found one structure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup

from blockout.runs import Run
from blockout.show.methods import Group, by_method
from blockout.show.page.drawing import CELLS, plain
from blockout.show.page.section import Figure, Section, bdi, html, part
from blockout.structure.groups import Consistency, consistency

LEAD = """The share of test images that each method classifies correctly. Training depends on
chance: runs with different seeds show how much. A difference between methods that is smaller than
the spread within them means little."""
HEADS = ("method", "test accuracy (%)", "spread (points)", "runs", "seeds")
SPREAD = Markup("""<p class="small">Mean and standard deviation over the runs of a method, which
differ only in their seed; a single run has no spread.</p>""")
DIGITS = 6
"""Of a per cent: an axis that spans the rounding of one number cannot be drawn."""
AGREES_AT = 0.05
"""An agreement with a larger p-value is no better than chance."""


@dataclass(frozen=True)
class Score:
    """Test accuracy of the finished runs of one group, in per cent."""

    group: Group
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for a single run."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.group.runs if run.finished]


def section(runs: Sequence[Run]) -> Section | None:
    """None for a single run: there is nothing to compare."""
    if len(runs) < 2:
        return None
    found, body = scores(runs), _unfinished(runs)
    if found:
        body += part("table", "Accuracy by method", HEADS, [_row(s) for s in found]) + SPREAD
    names = list(dict.fromkeys(score.group.runs[0].data_name for score in found))
    figures = []
    for number, name in enumerate(names):  # accuracy on different images cannot be compared
        same = [score for score in found if score.group.runs[0].data_name == name]
        figures.append(_accuracy_figure(same, name, number))
    for number, alike in enumerate(same_classes(runs)):
        agreed = agreements(alike)
        body += _agreement_in_words(agreed)
        figures += [_agreement_figure(alike, agreed, number)] if len(alike) > 2 else []
    return Section("comparison", "Runs compared", LEAD, body, tuple(figures))


def scores(runs: Sequence[Run]) -> list[Score]:
    """Of every group with a finished run."""
    found = []
    for group in by_method(runs):
        values = tuple(run.result.test.accuracy for run in group.runs if run.result is not None)
        found += [Score(group, values)] if values else []
    return found


def same_classes(runs: Sequence[Run]) -> list[list[Run]]:
    """Blockout runs that have learned branches for the same classes, two or more each."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.class_memberships is not None and not run.one_branch:
            found.setdefault(run.classes, []).append(run)
    return [alike for alike in found.values() if len(alike) > 1]


def agreements(runs: Sequence[Run]) -> dict[tuple[int, int], Consistency]:
    """Whether each two of them put the same classes together."""
    found = {}
    for i, j in combinations(range(len(runs)), 2):
        one, two = runs[i].class_memberships, runs[j].class_memberships
        assert one is not None and two is not None
        found[i, j] = consistency(one, two)
    return found


def _unfinished(runs: Sequence[Run]) -> Markup:
    names = [bdi(run.name) for run in runs if not run.finished]
    text = "<p>Still training and so not compared: {}.</p>\n"
    return html(text, Markup(", ").join(names)) if names else Markup()


# --- accuracy -------------------------------------------------------------------------------------


def _row(score: Score) -> tuple[str, ...]:
    spread = "–" if score.spread is None else f"{score.spread:.2f}"
    seeds = ", ".join(str(run.seed) for run in score.finished)
    return score.group.label, f"{score.mean:.2f}", spread, str(len(score.values)), seeds


def _accuracy_figure(found: Sequence[Score], data: str, number: int) -> Figure:
    """A dot per run, a diamond for the mean with its spread to both sides."""
    chart = go.Figure()
    for row, score in enumerate(found):
        chart.add_trace(_dots(score, row))
        if score.spread is not None:
            chart.add_trace(_mean(score, row))
    chart.update_xaxes(title={"text": "Test images classified correctly (%)", "standoff": 8})
    labels = [_wrapped(score.group.label) for score in found]
    rows = {"tickvals": list(range(len(found))), "ticktext": labels}
    chart.update_yaxes(range=[len(found) - 0.5, -0.5], zeroline=False, automargin=True, **rows)
    margin = {"l": 60, "r": 20, "t": 14, "b": 50}
    chart.update_layout(height=114 + 55 * len(found), showlegend=False, margin=margin)
    note = "Dots are runs; a diamond is the mean of a method, with one standard deviation each way."
    title = f"Test accuracy on {data}"
    return Figure(f"comparison-accuracy-{number}", chart, note, title)


def _dots(score: Score, row: int) -> go.Scatter:
    return go.Scatter(
        mode="markers",
        name=plain(score.group.label, 120),
        x=[round(value, DIGITS) for value in score.values],
        y=[row] * len(score.values),
        marker={"color": score.group.colour, "size": 11, "opacity": 0.85},
        customdata=[[plain(run.name), run.seed] for run in score.finished],
        hovertemplate="%{x:.2f} %<br>seed %{customdata[1]}<extra>%{customdata[0]}</extra>",
    )


def _mean(score: Score, row: int) -> go.Scatter:
    colour, said = score.group.colour, f"± {score.spread:.2f} over {len(score.values)} runs"
    return go.Scatter(
        mode="markers",
        x=[round(score.mean, DIGITS)],
        y=[row + 0.22],
        marker={"color": colour, "size": 11, "symbol": "diamond-open", "line_width": 2},
        error_x={"array": [score.spread], "color": colour, "thickness": 2},
        hovertemplate=f"mean %{{x:.2f}} % {said}<extra>{plain(score.group.label, 120)}</extra>",
    )


def _wrapped(label: str, width: int = 26) -> str:
    """Its parts on lines of about so many characters.

    >>> _wrapped("Blockout, paper's rule, 2048 nodes, epochs 10")
    "Blockout, paper's rule,<br>2048 nodes, epochs 10"
    """
    lines = [""]
    for word in label.split(", "):
        if lines[-1] and len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f"{word}, "
    return "<br>".join(plain(line.strip()) for line in lines).removesuffix(",")


# --- structure ------------------------------------------------------------------------------------


def _agreement_in_words(agreed: dict[tuple[int, int], Consistency]) -> Markup:
    values = [found.correlation for found in agreed.values()]
    if len(values) == 1:
        said = f"with correlation {values[0]:.2f} (p = {next(iter(agreed.values())).p_value:.2g})"
    else:
        better = sum(found.p_value <= AGREES_AT for found in agreed.values())
        said = (
            f"with correlations from {min(values):.2f} to {max(values):.2f}, {fmean(values):.2f} "
            f"on average; {better or 'none'} of the {len(values)} pairs "
            f"{'agree' if better != 1 else 'agrees'} better than chance (p at most {AGREES_AT:g})"
        )
    return html(
        "<p><b>Do they find the same groups?</b> Blockout runs on the same classes put them "
        "together {}. 1 means that the same classes share branches in both runs, 0 that one run "
        "tells nothing about the other; p is the share of random arrangements that agree as "
        "well.</p>\n",
        said,
    )


def _agreement_figure(
    runs: Sequence[Run], agreed: dict[tuple[int, int], Consistency], number: int
) -> Figure:
    n = len(runs)
    names, values = [plain(run.name, 40) for run in runs], np.eye(n)
    pairs = [[names[i]] * n for i in range(n)]
    for (i, j), found in agreed.items():
        values[i, j] = values[j, i] = found.correlation
        pairs[i][j] = pairs[j][i] = f"{names[i]}<br>{names[j]}<br>p = {found.p_value:.2g}"
    chart = go.Figure()
    chart.add_heatmap(
        z=values.round(4),
        zmin=0,
        zmax=1,
        colorscale=CELLS,
        customdata=pairs,
        texttemplate="%{z:.2f}",
        textfont_color="#000000",
        xgap=2,
        ygap=2,
        hovertemplate="%{customdata}<br>correlation %{z:.2f}<extra></extra>",
        colorbar={"title_text": "agreement", "thickness": 12},
    )
    ticks = {"tickvals": list(range(n)), "ticktext": names, "automargin": True}
    chart.update_xaxes(**ticks, showgrid=False, zeroline=False)
    chart.update_yaxes(**ticks, showgrid=False, zeroline=False, autorange="reversed")
    chart.update_layout(height=164 + 46 * n, margin={"l": 60, "r": 20, "t": 14, "b": 50})
    note = "For each two runs, the correlation of which classes share branches; 1 is the same."
    title = "How far groups of classes agree"
    return Figure(f"comparison-agreement-{number}", chart, note, title)
