"""How many branches each class has, and whether harder classes have more (the paper's Fig. 11)."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from markupsafe import Markup

from blockout.runs import Run
from blockout.show.classes import PERMUTATIONS, correlation, expected_clusters, quartiles
from blockout.show.colours import PALETTE
from blockout.show.page.accuracy import accuracy_column, accuracy_of
from blockout.show.page.drawing import class_points, plain
from blockout.show.page.rows import Column, by_name, marker, rows_of_classes, sorted_by
from blockout.show.page.section import Figure, Section, html, in_detail, paragraphs
from blockout.show.selection import with_structure

MOST_RUNS = 4
UNSURE = 0.05
"""A p-value above this is no evidence."""

LEAD = """The expected number of branches of a class is the sum of its P: how much of the network it
uses. Beside it you see how well the class is recognised. The paper guesses that classes that are
harder to recognise get more branches; this tests the guess."""


def section(runs: Sequence[Run]) -> Section | None:
    """Branches and accuracy of every class; runs on the same classes in one figure.

    None where all classes of each run have equally many branches: there is nothing to compare.
    """
    able = [r for r in with_structure(runs) if r.class_accuracy is not None and _vary(r)]
    same = [run for run in able if run.classes == able[0].classes]
    shown, left_out = in_detail(same, MOST_RUNS)
    if not shown:
        return None
    if others := [run.name for run in able if run not in same]:
        left_out += f" Not shown, because their classes differ: {', '.join(others)}."
    body = paragraphs([_verdict(run, len(shown) > 1) for run in shown])
    figures = _ranking(shown), _against_accuracy(shown)
    return Section("classes", "Branches of each class", LEAD + left_out, body, figures)


def _clusters(run: Run) -> Float[np.ndarray, " classes"]:
    assert run.class_memberships is not None
    return expected_clusters(run.class_memberships)


def _vary(run: Run) -> bool:
    return bool(np.ptp(_clusters(run)) > 0.1)


def _verdict(run: Run, named: bool) -> Markup:
    """Whether harder classes have more branches, in words."""
    head = html("<b><bdi>{}</bdi></b>: ", run.name) if named else Markup()
    head += _spread(_clusters(run))
    found = correlation(_clusters(run), accuracy_of(run))
    if found is None:
        return head + "All are recognised equally well, so none is harder."
    numbers = (
        f"correlation of branches and accuracy: Pearson {_signed(found.pearson)}, Spearman "
        f"{_signed(found.spearman)}, p = {found.p_value:.2g} by {PERMUTATIONS:,} random pairings"
    )
    if found.p_value > UNSURE:
        words = "Harder classes have neither clearly more nor clearly fewer branches"
        return head + html("<strong>{}</strong> ({}): no evidence for the guess.", words, numbers)
    more = "more" if found.spearman < 0 else "fewer"
    fits = "as the paper guesses" if found.spearman < 0 else "the opposite of the paper’s guess"
    return head + html(
        "<strong>Harder classes have {} branches</strong>, {} ({}).", more, fits, numbers
    )


def _spread(clusters: Float[np.ndarray, " classes"]) -> str:
    """How many branches classes have, in words.

    >>> _spread(np.array([1.0, 1.0, 1.0, 1.0, 2.0]))
    'Most classes have 1 branch, the others up to 2. '
    """
    low, middle, high = quartiles(clusters)
    if f"{low:.2f}" != f"{high:.2f}":
        return (
            f"The middle half of the classes has {low:.2f} to {high:.2f} branches, the median is "
            f"{middle:.2f}. "
        )
    least, most = clusters.min(), clusters.max()
    others = f"up to {most:.3g}" if least >= low - 0.05 else f"{least:.3g} to {most:.3g}"
    plural = "es" if middle > 1.005 else ""
    return f"Most classes have {middle:.3g} branch{plural}, the others {others}. "


def _signed(value: float) -> str:
    """
    >>> _signed(-0.314)
    '−0.31'
    """
    return f"{value:.2f}".replace("-", "−")


# --- every class ----------------------------------------------------------------------------------


def _ranking(runs: Sequence[Run]) -> Figure:
    """A row per class: its branches on the left, its accuracy on the right; buttons sort them."""
    clusters, accuracy = _clusters(runs[0]), np.nan_to_num(accuracy_of(runs[0]), nan=-1.0)
    orders = {
        "sort by branches": sorted_by(runs[0], clusters),
        "by accuracy": sorted_by(runs[0], -accuracy),
        "by name": by_name(runs[0]),
    }
    branches = Column("expected branches", _clusters, _says, {"rangemode": "tozero"})
    chart = rows_of_classes(runs, [branches, accuracy_column(runs)], orders)
    for i, run in enumerate(runs):
        for x, dash in zip(quartiles(_clusters(run)), ("dot", "solid", "dot"), strict=True):
            line = {"color": PALETTE[i], "width": 1.5, "dash": dash}
            chart.add_vline(x, line=line, layer="below", row=1, col=1)  # pyright: ignore
    note = "Each row is a class. Solid line: the median of the branches; dotted: the quartiles."
    return Figure("classes-ranking", chart, note)


def _says(run: Run) -> list[str]:
    return [f"{own:.3g} branches" for own in _clusters(run)]


# --- branches against accuracy --------------------------------------------------------------------


def _against_accuracy(runs: Sequence[Run]) -> Figure:
    """A point per class; whole numbers of branches are spread a little, so that all are seen."""
    chart = go.Figure()
    for number, run in enumerate(runs):
        clusters, accuracy = _clusters(run), accuracy_of(run)
        rng = np.random.default_rng(number)
        whole = np.abs(clusters - clusters.round()).max() < 0.05 and np.ptp(clusters) > 0.5
        aside = rng.uniform(-0.06, 0.06, len(clusters)) if whole else 0
        each = zip(run.classes, clusters, accuracy, strict=True)
        points = class_points(
            run,
            range(len(clusters)),
            x=(clusters + aside).astype(np.float32),
            y=accuracy.astype(np.float32),
            text=[
                f"<b>{plain(n)}</b><br>{own:.2f} branches, {a:.0f} % right" for n, own, a in each
            ],
            hovertemplate="%{text}<extra></extra>",
            name=plain(run.name),
            showlegend=len(runs) > 1,
            marker={**marker(number, 8), "opacity": 0.75},
        )
        chart.add_trace(points)
        _add_trend(chart, clusters, accuracy, PALETTE[number])
    chart.update_layout(height=400, margin_t=14, legend={"orientation": "h", "y": -0.22})
    chart.update_xaxes(title_text="expected branches of a class", zeroline=False)
    chart.update_yaxes(title_text="accuracy of the class, %", range=[-4, 104])
    note = "Each point is a class. If the line falls to the right, harder classes have more."
    return Figure("classes-accuracy", chart, note, "Do harder classes have more branches?")


def _add_trend(chart: go.Figure, clusters: np.ndarray, accuracy: np.ndarray, colour: str) -> None:
    """The straight line nearest to the points, if there is one."""
    known = ~np.isnan(accuracy)
    if known.sum() < 3 or np.ptp(clusters[known]) < 1e-9:
        return
    slope, start = np.polyfit(clusters[known], accuracy[known], 1)
    x = [float(clusters[known].min()), float(clusters[known].max())]
    line = {"color": colour, "width": 2, "dash": "dash"}
    look = {"mode": "lines", "line": line, "hoverinfo": "skip", "showlegend": False}
    chart.add_scatter(x=x, y=[start + slope * at for at in x], **look)
