"""Runs side by side: accuracy by method over seeds, and whether they found one structure."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

import numpy as np

from blockout.analysis import Consistency, consistency
from blockout.report.methods import Group, by_method
from blockout.report.panels import CELLS
from blockout.report.section import Figure, Section, plain
from blockout.report.view import RunView

LEAD = (
    "Each method with the share of test images that it classifies correctly. Training depends on "
    "chance: runs with different seeds show how much. A difference between methods that is "
    "smaller than the spread within them means little."
)


@dataclass(frozen=True)
class Score:
    """Test accuracy of the finished runs of one method, in per cent."""

    group: Group
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for a single run."""
        return stdev(self.values) if len(self.values) > 1 else None


def section(runs: Sequence[RunView]) -> Section | None:
    """None for a single run: there is nothing to compare."""
    if len(runs) < 2:
        return None
    found = scores(runs)
    body = [_unfinished(runs)]
    figures = []
    if found:
        body.append(_table(found))
        figures += _by_data(found)
    for number, views in enumerate(same_classes(runs)):
        agreed = agreements(views)
        body.append(_agreement_in_words(agreed))
        figures += [_agreement_figure(views, agreed, number)] if len(views) > 2 else []
    return Section(
        "comparison", "Runs compared", LEAD, "\n".join(filter(None, body)), tuple(figures)
    )


def scores(runs: Sequence[RunView]) -> list[Score]:
    """Of every method with a finished run."""
    found = []
    for group in by_method(runs):
        values = tuple(view.result["test"]["accuracy"] for view in group.runs if view.finished)
        found += [Score(group, values)] if values else []
    return found


def same_classes(runs: Sequence[RunView]) -> list[list[RunView]]:
    """Blockout runs that have learned branches for the same classes, two or more each."""
    found: dict[tuple[str, ...], list[RunView]] = {}
    for view in runs:
        if view.class_memberships is not None and not view.one_branch:
            found.setdefault(view.classes, []).append(view)
    return [views for views in found.values() if len(views) > 1]


def agreements(views: Sequence[RunView]) -> dict[tuple[int, int], Consistency]:
    """Whether each two of them put the same classes together."""
    found = {}
    for i, j in combinations(range(len(views)), 2):
        one, two = views[i].class_memberships, views[j].class_memberships
        assert one is not None and two is not None
        found[i, j] = consistency(one, two)
    return found


def _table(found: Sequence[Score]) -> str:
    rows = []
    for score in found:
        spread = "–" if score.spread is None else f"{score.spread:.2f}"
        seeds = ", ".join(str(view.seed) for view in score.group.runs if view.finished)
        cells = (f"{score.mean:.2f}", spread, str(len(score.values)), seeds)
        rows.append(
            f'<tr><th scope="row"><bdi>{html.escape(score.group.label)}</bdi></th>'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    heads = ("method", "test accuracy (%)", "spread (points)", "runs", "seeds")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Accuracy by method"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table></div>\n"
        '<p class="small">Mean and standard deviation over the runs of a method, which differ in '
        "nothing but the seed; a single run has no spread.</p>"
    )


def _by_data(found: Sequence[Score]) -> list[Figure]:
    """One figure a set of images: accuracy on different images cannot be compared."""
    names = list(dict.fromkeys(_data(score) for score in found))
    return [
        _accuracy_figure([score for score in found if _data(score) == name], name, number)
        for number, name in enumerate(names)
    ]


def _data(score: Score) -> str:
    return score.group.runs[0].config["data"]


def _accuracy_figure(found: Sequence[Score], data: str, number: int) -> Figure:
    """Each run a dot, the mean a diamond with its spread to both sides."""
    traces = []
    for row, score in enumerate(found):
        finished = [view for view in score.group.runs if view.finished]
        traces.append(_dots(score, finished, row))
        if score.spread is not None:
            traces.append(_mean(score, row))
    labels = [_wrapped(score.group.label) for score in found]
    made = {
        "height": 114 + 55 * len(found), "showlegend": False, "hovermode": "closest",
        "margin": {"l": 60, "r": 20, "t": 14, "b": 50},
        "xaxis": {"title": {"text": "Test images classified correctly (%)", "standoff": 8}},
        "yaxis": {"tickvals": list(range(len(found))), "ticktext": labels,
                  "range": [len(found) - 0.5, -0.5], "zeroline": False, "automargin": True},
    }  # fmt: skip
    note = (
        "A dot is a run; a diamond is the mean of a method, with one standard deviation each way."
    )
    title = f"Test accuracy on {data}"
    return Figure(f"comparison-accuracy-{number}", traces, made, note, title)


def _dots(score: Score, finished: Sequence[RunView], row: int) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": plain(score.group.label, 120),
        "x": list(score.values), "y": [row] * len(finished),
        "marker": {"color": score.group.colour, "size": 11, "opacity": 0.85},
        "customdata": [[plain(view.name), view.seed] for view in finished],
        "hovertemplate": "%{x:.2f} %<br>seed %{customdata[1]}<extra>%{customdata[0]}</extra>",
    }  # fmt: skip


def _mean(score: Score, row: int) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "x": [score.mean], "y": [row + 0.22],
        "marker": {"color": score.group.colour, "size": 11, "symbol": "diamond-open",
                   "line": {"width": 2}},
        "error_x": {"array": [score.spread], "color": score.group.colour, "thickness": 2},
        "hovertemplate": f"mean %{{x:.2f}} % ± {score.spread:.2f} over {len(score.values)} runs"
                         f"<extra>{plain(score.group.label, 120)}</extra>",
    }  # fmt: skip


def _wrapped(label: str, width: int = 26) -> str:
    """Its parts on lines of about so many characters.

    >>> _wrapped("Blockout, paper's rule, 2048 nodes, epochs 10")
    "Blockout, paper's rule,<br>2048 nodes, epochs 10"
    """
    lines = [""]
    for part in label.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += f"{part}, "
    return "<br>".join(plain(line.strip()) for line in lines).removesuffix(",")


def _unfinished(runs: Sequence[RunView]) -> str:
    names = [f"<bdi>{html.escape(view.name)}</bdi>" for view in runs if not view.finished]
    if not names:
        return ""
    return f"<p>Still training and so not compared: {', '.join(names)}.</p>"


def _agreement_in_words(agreed: dict[tuple[int, int], Consistency]) -> str:
    values = [found.correlation for found in agreed.values()]
    by_chance = sum(found.p_value > 0.05 for found in agreed.values())
    if len(values) == 1:
        said = f"with correlation {values[0]:.2f} (p = {next(iter(agreed.values())).p_value:.2g})"
    else:
        better = len(values) - by_chance
        said = (
            f"with correlations from {min(values):.2f} to {max(values):.2f}, {fmean(values):.2f} "
            f"on average; {better or 'none'} of the {len(values)} pairs "
            f"{'agree' if better != 1 else 'agrees'} better than chance (p at most 0.05)"
        )
    return (
        f"<p><b>Do they find the same groups?</b> Blockout runs on the same classes put them "
        f"together {said}. 1 means the same classes share branches in both, 0 that one tells "
        "nothing about the other; p is the share of random arrangements that agree as well.</p>"
    )


def _agreement_figure(
    views: Sequence[RunView], agreed: dict[tuple[int, int], Consistency], number: int
) -> Figure:
    n = len(views)
    values, chances = np.eye(n), np.full((n, n), np.nan)
    for (i, j), found in agreed.items():
        values[i, j] = values[j, i] = found.correlation
        chances[i, j] = chances[j, i] = found.p_value
    names = [plain(view.name, 40) for view in views]
    trace = {
        "type": "heatmap", "z": values.round(4), "zmin": 0, "zmax": 1, "colorscale": CELLS,
        "customdata": [[_pair(names, i, j, chances) for j in range(n)] for i in range(n)],
        "texttemplate": "%{z:.2f}", "textfont": {"color": "#000000"}, "xgap": 2, "ygap": 2,
        "hovertemplate": "%{customdata}<br>correlation %{z:.2f}<extra></extra>",
        "colorbar": {"title": {"text": "agreement"}, "thickness": 12},
    }  # fmt: skip
    ticks = {
        "tickvals": list(range(n)), "ticktext": names, "automargin": True, "showgrid": False,
        "zeroline": False,
    }  # fmt: skip
    made = {
        "height": 164 + 46 * n,
        "margin": {"l": 60, "r": 20, "t": 14, "b": 50},
        "xaxis": ticks, "yaxis": ticks | {"autorange": "reversed"},
    }  # fmt: skip
    note = "Correlation of who shares branches with whom, for each two runs; 1 is the same."
    title = "How far groups of classes agree"
    return Figure(f"comparison-agreement-{number}", [trace], made, note, title)


def _pair(names: Sequence[str], i: int, j: int, chances: np.ndarray) -> str:
    return names[i] if i == j else f"{names[i]}<br>{names[j]}<br>p = {chances[i, j]:.2g}"
