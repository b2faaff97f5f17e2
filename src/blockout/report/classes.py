"""How many branches each class has, and whether the harder ones have more (the paper's Fig. 11)."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from blockout.report.numbers import expected_clusters, quartiles
from blockout.report.panels import side_by_side
from blockout.report.search import shows_classes
from blockout.report.section import PALETTE, SYMBOLS, Figure, Section, plain
from blockout.report.selection import in_detail, with_structure
from blockout.report.view import RunView

PERMUTATIONS = 2000
MOST_RUNS = 4
NAMED = 150
"""Classes up to which every one has its name on the axis."""
ROW = 14
"""Pixels of a class with a name."""
UNSURE = 0.05
"""A p-value above this is no evidence."""

LEAD = (
    "The expected number of branches (clusters) of a class is the sum of its chances P: how much "
    "of the network it uses. Beside it stands how well the class is recognised. The paper guesses "
    "that classes that are harder to recognise get more branches; here this is put to the test."
)


def section(runs: Sequence[RunView]) -> Section | None:
    """Branches and accuracy of every class; runs on the same classes in one figure."""
    able = [run for run in with_structure(runs) if run.class_accuracy is not None]
    same = [run for run in able if run.classes == able[0].classes]
    shown, left_out = in_detail(same, MOST_RUNS)
    if not shown:
        return None
    if others := [run.name for run in able if run not in same]:
        left_out += f" Not shown, for they have other classes: {', '.join(others)}."
    body = "".join(f"<p>{_verdict(run, len(shown) > 1)}</p>" for run in shown)
    varying = [run for run in shown if _vary(run)]
    figures = (_ranking(shown), *([_against_accuracy(varying)] if varying else []))
    return Section("classes", "Branches of each class", LEAD + left_out, body, figures)


@dataclass(frozen=True)
class Correlation:
    """How two numbers of every class go together."""

    pearson: float
    spearman: float
    """Of the ranks; equal values share the mean of their ranks."""
    p_value: float
    """Share of random pairings whose Spearman correlation is at least as far from 0."""


def correlation(
    x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"], permutations: int = PERMUTATIONS
) -> Correlation | None:
    """Over the pairs without nan; None where one of them does not vary, or with fewer than 3.

    >>> correlation(np.array([1., 2., 3., 4.]), np.array([8., 6., 4., 2.])).spearman
    -1.0
    """
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < 3 or np.ptp(x) < 1e-9 or np.ptp(y) < 1e-9:
        return None
    pearson = float(_unit(x) @ _unit(y))
    ranks_x, ranks_y = _unit(_mean_ranks(x)), _unit(_mean_ranks(y))
    spearman = float(ranks_x @ ranks_y)
    rng = np.random.default_rng(0)
    by_chance = np.array([ranks_x @ rng.permutation(ranks_y) for _ in range(permutations)])
    as_far = int((np.abs(by_chance) >= abs(spearman) - 1e-9).sum())
    return Correlation(round(pearson, 12), round(spearman, 12), (1 + as_far) / (1 + permutations))


def _unit(values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    centred = values - values.mean()
    return centred / np.linalg.norm(centred)


def _mean_ranks(values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    _, which, counts = np.unique(values.round(6), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def _clusters(run: RunView) -> Float[np.ndarray, "classes"]:
    assert run.class_memberships is not None
    return expected_clusters(run.class_memberships)


def _accuracy(run: RunView) -> Float[np.ndarray, "classes"]:
    assert run.class_accuracy is not None
    return run.class_accuracy


def _verdict(run: RunView, named: bool) -> str:
    """Whether harder classes have more branches, in words; HTML."""
    head = f"<b><bdi>{html.escape(run.name)}</bdi></b>: " if named else ""
    low, middle, high = quartiles(_clusters(run))
    if not _vary(run):
        return (
            f"{head}Every class has about {middle:.3g} branch{'es' if middle > 1.005 else ''}, so "
            "that nothing can be said about harder ones."
        )
    spread = (
        f"{head}The middle half of the classes has {low:.2f} to {high:.2f} branches, the median is "
        f"{middle:.2f}. "
    )
    found = correlation(_clusters(run), _accuracy(run))
    if found is None:
        return spread + "All are recognised equally well, so that none is harder."
    numbers = (
        f"correlation of branches and accuracy: Pearson {_signed(found.pearson)}, Spearman "
        f"{_signed(found.spearman)}, p = {found.p_value:.2g} by {PERMUTATIONS:,} random pairings"
    )
    if found.p_value > UNSURE:
        words = "Harder classes have neither clearly more nor clearly fewer branches"
        return f"{spread}<strong>{words}</strong> ({numbers}): no evidence for the paper’s guess."
    more = "more" if found.spearman < 0 else "fewer"
    fits = "as the paper guesses" if found.spearman < 0 else "the opposite of the paper’s guess"
    return f"{spread}<strong>Harder classes have {more} branches</strong>, {fits} ({numbers})."


def _vary(run: RunView) -> bool:
    return bool(np.ptp(_clusters(run)) > 0.1)


def _signed(value: float) -> str:
    """
    >>> _signed(-0.314)
    '−0.31'
    """
    return f"{value:.2f}".replace("-", "−")


def _ranking(runs: Sequence[RunView]) -> Figure:
    """Every class a row: left its branches, right its accuracy; buttons sort the rows."""
    count = len(runs[0].classes)
    named = count <= NAMED
    legend = 20 * len(runs) if len(runs) > 1 else 0  # a line each, as on a phone
    height = 110 + legend + (ROW * count if named else 1400)
    layout = side_by_side(["", ""], height, gap=0.04)
    names = [plain(name, 28) for name in runs[0].classes]
    orders = _orders(runs[0])
    first = next(iter(orders.values()))
    ticks = {"tickmode": "array", "tickvals": list(range(count)) if named else []}
    ticks["ticktext"] = _texts(names, first, named)
    rows = {"range": [-0.7, count - 0.3], "showgrid": False, "zeroline": False}
    layout["xaxis"] |= {
        "title": {"text": "expected branches"},
        "rangemode": "tozero",
        "side": "top",
    }
    layout["xaxis2"] |= {
        "title": {"text": "accuracy, %"},
        "range": [_lowest(runs) - 3, 103],
        "side": "top",
    }
    layout["yaxis"] |= rows | ticks | {"tickfont": {"size": 10}, "automargin": True}
    layout["yaxis2"] |= rows | {"showticklabels": False, "matches": "y"}
    layout |= {
        "updatemenus": [_sorting(orders, names, len(runs), named)], "hovermode": "closest",
        "shapes": [line for i, run in enumerate(runs) for line in _quartile_lines(run, i)],
        "showlegend": len(runs) > 1, "margin": {"t": 64 + legend, "b": 20},
        "legend": {"orientation": "h", "y": 1, "yanchor": "top", "yref": "container"},
    }  # fmt: skip
    data = [_rows(run, i, names, first, side) for side in (0, 1) for i, run in enumerate(runs)]
    note = "Each row is a class. Solid line: the median of the branches; dotted: the quartiles."
    return Figure("classes-ranking", data, layout, note)


def _lowest(runs: Sequence[RunView]) -> float:
    """A round number below all accuracies, in per cent."""
    least = min(float(np.nan_to_num(_accuracy(run)).min()) for run in runs)
    return 10 * max(least // 10 - 1, 0)


def _orders(run: RunView) -> dict[str, Int64[np.ndarray, "classes"]]:
    """The classes from the bottom row to the top one, for each way to sort them."""
    clusters, accuracy = _clusters(run), np.nan_to_num(_accuracy(run), nan=-1.0)
    names = np.array([name.casefold() for name in run.classes])
    by_name = np.argsort(names, kind="stable")[::-1]
    place = np.argsort(by_name)
    return {
        "sort by branches": np.lexsort((place, clusters.round(3))),
        "by accuracy": np.lexsort((place, -accuracy)),
        "by name": by_name,
    }


def _texts(names: Sequence[str], order: Int64[np.ndarray, "classes"], named: bool) -> list[str]:
    return [names[int(c)] for c in order] if named else []


def _positions(order: Int64[np.ndarray, "classes"]) -> list[int]:
    """The row of every class."""
    return np.argsort(order).tolist()


def _sorting(
    orders: dict[str, Int64[np.ndarray, "classes"]], names: Sequence[str], runs: int, named: bool
) -> dict[str, Any]:
    buttons = [
        {"label": label, "method": "update", "args": [
            {"y": [_positions(order)] * (2 * runs)},
            {"yaxis.ticktext": _texts(names, order, named)},
        ]}
        for label, order in orders.items()
    ]  # fmt: skip
    return {"buttons": buttons}


def _rows(
    run: RunView, number: int, names: Sequence[str], order: np.ndarray, side: int
) -> dict[str, Any]:
    """The points of one run in one of the two panels."""
    unit = " %" if side else " branches"
    values = _accuracy(run) if side else _clusters(run)
    many = len(names) > NAMED
    return {
        "type": "scattergl" if many else "scatter", "mode": "markers", "name": plain(run.name),
        "x": values.astype(np.float32), "y": _positions(order), "text": list(names),
        "xaxis": "x2" if side else "x", "yaxis": "y2" if side else "y",
        "legendgroup": str(number), "showlegend": not side,
        "marker": {"color": PALETTE[number], "symbol": SYMBOLS[number], "size": 5 if many else 8},
        "hovertemplate": f"<b>%{{text}}</b>: %{{x:.2~f}}{unit}<extra>%{{fullData.name}}</extra>",
        "meta": shows_classes(run), "customdata": [[c] for c in range(len(names))],
    }  # fmt: skip


def _quartile_lines(run: RunView, number: int) -> list[dict[str, Any]]:
    return [
        {"type": "line", "xref": "x", "yref": "y domain", "x0": x, "x1": x, "y0": 0, "y1": 1,
         "layer": "below", "line": {"color": PALETTE[number], "width": 1.5, "dash": dash}}
        for x, dash in zip(quartiles(_clusters(run)), ("dot", "solid", "dot"), strict=True)
    ]  # fmt: skip


def _against_accuracy(runs: Sequence[RunView]) -> Figure:
    """A point a class; whole numbers of branches are spread a little, so that all can be seen."""
    data = []
    for number, run in enumerate(runs):
        clusters, accuracy = _clusters(run), _accuracy(run)
        rng = np.random.default_rng(number)
        aside = rng.uniform(-0.06, 0.06, len(clusters)) if _are_whole(clusters) else 0
        data.append({
            "type": "scatter", "mode": "markers", "name": plain(run.name),
            "x": (clusters + aside).astype(np.float32), "y": accuracy.astype(np.float32),
            "text": [f"<b>{plain(name)}</b><br>{own:.2f} branches, {right:.0f} % right"
                     for name, own, right in zip(run.classes, clusters, accuracy, strict=True)],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": PALETTE[number], "symbol": SYMBOLS[number], "size": 8,
                       "opacity": 0.75},
            "meta": shows_classes(run), "customdata": [[c] for c in range(len(clusters))],
        })  # fmt: skip
        data += _trend(clusters, accuracy, number)
    layout = {
        "height": 400, "hovermode": "closest", "showlegend": len(runs) > 1,
        "margin": {"t": 14},
        "xaxis": {"title": {"text": "expected branches of a class"}, "zeroline": False},
        "yaxis": {"title": {"text": "accuracy of the class, %"}, "range": [-4, 104]},
        "legend": {"orientation": "h", "y": -0.22},
    }  # fmt: skip
    note = "Each point is a class. Where the line falls to the right, harder classes have more."
    title = "Do harder classes have more branches?"
    return Figure("classes-accuracy", data, layout, note, title)


def _are_whole(clusters: Float[np.ndarray, "classes"]) -> bool:
    return bool(np.abs(clusters - clusters.round()).max() < 0.05 and np.ptp(clusters) > 0.5)


def _trend(clusters: np.ndarray, accuracy: np.ndarray, number: int) -> list[dict[str, Any]]:
    """The straight line nearest to the points, where there is one."""
    known = ~np.isnan(accuracy)
    if known.sum() < 3 or np.ptp(clusters[known]) < 1e-9:
        return []
    slope, start = np.polyfit(clusters[known], accuracy[known], 1)
    ends = [float(clusters[known].min()), float(clusters[known].max())]
    return [{
        "type": "scatter", "mode": "lines", "x": ends, "y": [start + slope * x for x in ends],
        "line": {"color": PALETTE[number], "width": 2, "dash": "dash"}, "hoverinfo": "skip",
        "showlegend": False,
    }]  # fmt: skip
