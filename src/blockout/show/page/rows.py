"""A row per class: numbers of each class as points, in an order that buttons change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int64
from plotly.subplots import make_subplots

from blockout.runs import Run
from blockout.show.colours import PALETTE
from blockout.show.methods import SYMBOLS
from blockout.show.page.drawing import class_points, plain, to_class

Order = Int64[np.ndarray, " classes"]
"""The classes from the bottom row to the top."""
NAMED = 150
"""Up to so many classes, each has its name on the axis."""
ROW, UNNAMED = 14, 1400
"""Pixels per class with a name, and of all of them without."""


@dataclass(frozen=True)
class Column:
    """One number of each class."""

    title: str
    values: Callable[[Run], Float[np.ndarray, " classes"]]
    says: Callable[[Run], list[str]]
    """What pointing at a class shows beside its name."""
    axis: dict[str, Any]


def rows_of_classes(
    runs: Sequence[Run], columns: Sequence[Column], orders: dict[str, Order]
) -> go.Figure:
    """A point per class and run in each column; the first of the orders holds at first.

    All runs have the same classes.
    """
    count, named = len(runs[0].classes), len(runs[0].classes) <= NAMED
    legend = 20 * len(runs) if len(runs) > 1 else 0  # a line each, as on a phone
    names = [to_class(runs[0], c, 28) for c in range(count)] if named else []
    first = next(iter(orders.values()))
    chart = make_subplots(1, len(columns), shared_yaxes=True, horizontal_spacing=0.04)
    for place, column in enumerate(columns, 1):
        for number, run in enumerate(runs):
            points = _points(run, number, first, column)
            chart.add_trace(points.update(showlegend=place == 1), 1, place)
        chart.update_xaxes(title_text=column.title, **column.axis, side="top", col=place)
    chart.update_yaxes(range=[-0.7, count - 0.3], showgrid=False, zeroline=False)
    ticks = {"tickvals": list(range(len(names))), "ticktext": _texts(names, first)}
    chart.update_yaxes(**ticks, tickmode="array", tickfont_size=10, automargin=True, col=1)
    return chart.update_layout(
        height=110 + legend + (ROW * count if named else UNNAMED),
        updatemenus=[{"buttons": _buttons(orders, names, len(runs) * len(columns))}],
        showlegend=len(runs) > 1,
        margin={"t": 64 + legend, "b": 20},
        legend={"orientation": "h", "y": 1, "yanchor": "top", "yref": "container"},
    )


def by_name(run: Run) -> Order:
    """The first in the alphabet on top."""
    names = np.array([name.casefold() for name in run.classes])
    return np.argsort(names, kind="stable")[::-1]


def sorted_by(run: Run, values: Float[np.ndarray, " classes"]) -> Order:
    """The largest on top; of equals the first in the alphabet."""
    return np.lexsort((np.argsort(by_name(run)), values.round(3)))


def _buttons(orders: dict[str, Order], names: Sequence[str], traces: int) -> list[dict[str, Any]]:
    found = []
    for label, order in orders.items():
        rows = {"y": [np.argsort(order).tolist()] * traces}
        texts = {"yaxis.ticktext": _texts(names, order)}
        found.append({"label": label, "method": "update", "args": [rows, texts]})
    return found


def _texts(names: Sequence[str], order: Order) -> list[str]:
    return [names[int(c)] for c in order] if names else []


def _points(run: Run, number: int, order: Order, column: Column) -> Any:
    """The points of one run in one column."""
    values = column.values(run)
    many = len(values) > NAMED
    texts = [
        f"<b>{plain(name)}</b>: {said}"
        for name, said in zip(run.classes, column.says(run), strict=True)
    ]
    trace = class_points(
        run,
        range(len(values)),
        x=values.astype(np.float32),
        y=np.argsort(order).tolist(),
        text=texts,
        name=plain(run.name),
        legendgroup=str(number),
        marker=marker(number, 5 if many else 8),
        hovertemplate="%{text}<extra>%{fullData.name}</extra>",
    )
    return go.Scattergl(trace.to_plotly_json() | {"type": "scattergl"}) if many else trace


def marker(number: int, size: int) -> dict[str, Any]:
    """Of the run of this number."""
    return {"color": PALETTE[number], "symbol": SYMBOLS[number], "size": size}
