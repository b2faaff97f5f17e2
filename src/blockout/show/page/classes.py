"""How many branches each class has, and whether harder classes have more (the paper's Fig. 11)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int64
from markupsafe import Markup
from plotly.subplots import make_subplots

from blockout.runs import Run
from blockout.show.classes import PERMUTATIONS, correlation, expected_clusters, quartiles
from blockout.show.colours import PALETTE
from blockout.show.methods import SYMBOLS
from blockout.show.page.drawing import class_points, plain
from blockout.show.page.section import Figure, Section, html, in_detail, paragraphs
from blockout.show.selection import with_structure

Order = Int64[np.ndarray, " classes"]
MOST_RUNS = 4
NAMED = 150
"""Up to so many classes, each has its name on the axis."""
ROW = 14
"""Pixels per class with a name."""
UNSURE = 0.05
"""A p-value above this is no evidence."""

LEAD = """The expected number of branches of a class is the sum of its P: how much of the network it
uses. Beside it you see how well the class is recognised. The paper guesses that classes that are
harder to recognise get more branches; this tests the guess."""


def section(runs: Sequence[Run]) -> Section | None:
    """Branches and accuracy of every class; runs on the same classes in one figure."""
    able = [run for run in with_structure(runs) if run.class_accuracy is not None]
    same = [run for run in able if run.classes == able[0].classes]
    shown, left_out = in_detail(same, MOST_RUNS)
    if not shown:
        return None
    if others := [run.name for run in able if run not in same]:
        left_out += f" Not shown, because their classes differ: {', '.join(others)}."
    body = paragraphs([_verdict(run, len(shown) > 1) for run in shown])
    varying = [run for run in shown if _vary(run)]
    figures = (_ranking(shown), *([_against_accuracy(varying)] if varying else []))
    return Section("classes", "Branches of each class", LEAD + left_out, body, figures)


def _clusters(run: Run) -> Float[np.ndarray, " classes"]:
    assert run.class_memberships is not None
    return expected_clusters(run.class_memberships)


def _accuracy(run: Run) -> Float[np.ndarray, " classes"]:
    assert run.class_accuracy is not None
    return run.class_accuracy


def _vary(run: Run) -> bool:
    return bool(np.ptp(_clusters(run)) > 0.1)


def _verdict(run: Run, named: bool) -> Markup:
    """Whether harder classes have more branches, in words."""
    head = html("<b><bdi>{}</bdi></b>: ", run.name) if named else Markup()
    low, middle, high = quartiles(_clusters(run))
    if not _vary(run):
        plural = "es" if middle > 1.005 else ""
        return head + (
            f"Every class has about {middle:.3g} branch{plural}, so this run says nothing about "
            "harder ones."
        )
    head += (
        f"The middle half of the classes has {low:.2f} to {high:.2f} branches, the median is "
        f"{middle:.2f}. "
    )
    found = correlation(_clusters(run), _accuracy(run))
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


def _signed(value: float) -> str:
    """
    >>> _signed(-0.314)
    '−0.31'
    """
    return f"{value:.2f}".replace("-", "−")


# --- every class ----------------------------------------------------------------------------------


def _ranking(runs: Sequence[Run]) -> Figure:
    """A row per class: its branches on the left, its accuracy on the right; buttons sort them."""
    count = len(runs[0].classes)
    named = count <= NAMED
    legend = 20 * len(runs) if len(runs) > 1 else 0  # a line each, as on a phone
    names = [plain(name, 28) for name in runs[0].classes] if named else []
    orders = _orders(runs[0])
    first = next(iter(orders.values()))
    chart = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    for column in (1, 2):
        for i, run in enumerate(runs):
            chart.add_trace(_rows(run, i, first, column), 1, column)
    for i, run in enumerate(runs):
        for x, dash in zip(quartiles(_clusters(run)), ("dot", "solid", "dot"), strict=True):
            line = {"color": PALETTE[i], "width": 1.5, "dash": dash}
            chart.add_vline(x, line=line, layer="below", row=1, col=1)  # pyright: ignore
    chart.update_xaxes(title_text="expected branches", rangemode="tozero", side="top", col=1)
    accuracies = {"title_text": "accuracy, %", "range": [_lowest(runs) - 3, 103]}
    chart.update_xaxes(**accuracies, side="top", col=2)
    chart.update_yaxes(range=[-0.7, count - 0.3], showgrid=False, zeroline=False)
    ticks = {"tickvals": list(range(len(names))), "ticktext": _texts(names, first)}
    chart.update_yaxes(**ticks, tickmode="array", tickfont_size=10, automargin=True, col=1)
    chart.update_layout(
        height=110 + legend + (ROW * count if named else 1400),
        updatemenus=[{"buttons": _buttons(orders, names, len(runs))}],
        showlegend=len(runs) > 1,
        margin={"t": 64 + legend, "b": 20},
        legend={"orientation": "h", "y": 1, "yanchor": "top", "yref": "container"},
    )
    note = "Each row is a class. Solid line: the median of the branches; dotted: the quartiles."
    return Figure("classes-ranking", chart, note)


def _lowest(runs: Sequence[Run]) -> float:
    """A round number below all accuracies, in per cent."""
    least = min(float(np.nan_to_num(_accuracy(run)).min()) for run in runs)
    return 10 * max(least // 10 - 1, 0)


def _orders(run: Run) -> dict[str, Order]:
    """The classes from the bottom row to the top, for each way to sort them."""
    clusters, accuracy = _clusters(run), np.nan_to_num(_accuracy(run), nan=-1.0)
    names = np.array([name.casefold() for name in run.classes])
    by_name = np.argsort(names, kind="stable")[::-1]
    place = np.argsort(by_name)
    return {
        "sort by branches": np.lexsort((place, clusters.round(3))),
        "by accuracy": np.lexsort((place, -accuracy)),
        "by name": by_name,
    }


def _buttons(orders: dict[str, Order], names: Sequence[str], runs: int) -> list[dict[str, Any]]:
    found = []
    for label, order in orders.items():
        rows = {"y": [np.argsort(order).tolist()] * (2 * runs)}
        texts = {"yaxis.ticktext": _texts(names, order)}
        found.append({"label": label, "method": "update", "args": [rows, texts]})
    return found


def _texts(names: Sequence[str], order: Order) -> list[str]:
    return [names[int(c)] for c in order] if names else []


def _rows(run: Run, number: int, order: np.ndarray, column: int) -> Any:
    """The points of one run: its branches in the first column, its accuracy in the second."""
    values, unit = (_clusters(run), " branches") if column == 1 else (_accuracy(run), " %")
    many = len(values) > NAMED
    trace = class_points(
        run,
        range(len(values)),
        x=values.astype(np.float32),
        y=np.argsort(order).tolist(),
        name=plain(run.name),
        legendgroup=str(number),
        showlegend=column == 1,
        marker=_marker(number, 5 if many else 8),
        hovertemplate=f"<b>%{{text}}</b>: %{{x:.2~f}}{unit}<extra>%{{fullData.name}}</extra>",
    )
    return go.Scattergl(trace.to_plotly_json() | {"type": "scattergl"}) if many else trace


def _marker(number: int, size: int) -> dict[str, Any]:
    return {"color": PALETTE[number], "symbol": SYMBOLS[number], "size": size}


# --- branches against accuracy --------------------------------------------------------------------


def _against_accuracy(runs: Sequence[Run]) -> Figure:
    """A point per class; whole numbers of branches are spread a little, so that all are seen."""
    chart = go.Figure()
    for number, run in enumerate(runs):
        clusters, accuracy = _clusters(run), _accuracy(run)
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
            marker={**_marker(number, 8), "opacity": 0.75},
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
