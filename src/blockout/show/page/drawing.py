"""What several figures share: names as text, points of classes, colours for amounts, axes."""

import html
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Int64

from blockout.runs import Run
from blockout.show.colours import PALETTE
from blockout.structure.nodes import on_one_line

AMOUNTS = [
    [0.0, "rgba(0,114,178,0)"],
    [0.02, "rgba(0,114,178,0.45)"],
    [0.1, "rgba(0,114,178,0.75)"],
    [0.3, "rgba(230,159,0,0.9)"],
    [1.0, "rgba(213,94,0,1)"],
]
"""From nothing to all, with room for small amounts; readable on light and dark."""
EVEN = [[0.0, "rgba(0,114,178,0)"], [0.5, "rgba(0,114,178,0.65)"], [1.0, "rgba(0,114,178,1)"]]
"""The same without emphasis on small amounts."""
CELLS = [[0.0, "#e8eef3"], [1.0, PALETTE[5]]]
"""Opaque and light, for black numbers in the cells."""
MOST_TIMES = 200
PLOT_HEIGHT = 280
"""Of curves in pixels, without axis and legend."""
SETS = {"P_0": "outputs of FC1", "P_1": "outputs of FC2", "P_2": "the classes"}
LAYERS = {"head.fc2": "FC2", "head.classifier": "the classifier"}


def plain(text: str, most: int = 80) -> str:
    """A name as text inside a Plotly figure, which reads tags and entities; long names are cut.

    Names written from right to left are kept apart from the words around them.

    >>> plain("<b>bold</b> & co"), plain("abcdef", most=4)
    ('&lt;b&gt;bold&lt;/b&gt; &amp; co', 'abc…')
    """
    text = on_one_line(text)
    text = text if len(text) <= most else text[: most - 1].rstrip() + "…"
    turned = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in text)
    shown = html.escape(text, quote=False)
    return f"\u2068{shown}\u2069" if turned else shown


def apart(labels: Sequence[str]) -> list[str]:
    """Labels of an axis, each with an invisible ending: no two are alike, none is a number."""
    seen, found = Counter(), []
    for label in labels:
        seen[label] += 1
        found.append(label + "\u200b" * seen[label])
    return found


def list_of_classes(names: Sequence[str]) -> int:
    """A number that two lists of classes share only if they are the same."""
    return zlib.crc32("\0".join(names).encode())


def shows_classes(run: Run) -> dict[str, Any]:
    """``meta`` of a trace with the classes of a run.

    A class that is searched for is marked in all runs on the same classes, each with its own
    neighbours.
    """
    return {"classes": list_of_classes(run.classes), "run": run.name}


def to_class(run: Run, number: int, most: int = 80) -> str:
    """A class's name on an axis, to be clicked.

    Plotly keeps a style but no link within the page, so a style says which class it is.
    """
    name = plain(run.classes[number], most)
    return f'<a style="--class:{list_of_classes(run.classes)}-{number}">{name}</a>'


def class_points(run: Run, order: Sequence[int], **look: Any) -> go.Scatter:
    """A point per class, in this order, that can be searched for; pointing at it shows its name."""
    usual = {
        "mode": "markers",
        "text": [plain(run.classes[c]) for c in order],
        "hovertemplate": "<b>%{text}</b><extra></extra>",
        "showlegend": False,
    }
    return go.Scatter(
        **(usual | look), meta=shows_classes(run), customdata=[[int(c)] for c in order]
    )


def thinned(count: int, most: int = MOST_TIMES) -> Int64[np.ndarray, " times"]:
    """At most ``most`` evenly spaced indices below ``count``, the first and the last among them.

    >>> thinned(7, 3).tolist(), thinned(2).tolist()
    ([0, 3, 6], [0, 1])
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def curves(traces: Sequence[go.Scatter], x: str, y: str, entries: int = 0) -> go.Figure:
    """Lines on named axes, above a legend with so many entries, one per row.

    The legend has room of its own: however narrow the window, the plot keeps its height.
    """
    top, below, row = 14, 62, 21
    chart = go.Figure(list(traces))
    chart.update_xaxes(title={"text": x, "standoff": 8})
    chart.update_yaxes(title_text=y)
    return chart.update_layout(
        height=top + PLOT_HEIGHT + below + row * entries,
        margin={"l": 60, "r": 20, "t": top, "b": below + row * entries},
        showlegend=entries > 0,
        legend={"x": 0, "y": -below / PLOT_HEIGHT, "yanchor": "top"},
    )


def nodes_called(name: str, names: Iterable[str]) -> str:
    """A set of nodes with its role in the paper's head; the bare name in a user's own model.

    >>> nodes_called("P_0", ["P_0", "P_1", "P_2"]), nodes_called("P_0", ["P_0", "P_1"])
    ('P_0: outputs of FC1', 'P_0')
    """
    return f"{name}: {SETS[name]}" if list(names) == list(SETS) else name


def layer_called(name: str) -> str:
    """
    >>> layer_called("head.fc2"), layer_called("layers.3")
    ('FC2', 'layers.3')
    """
    return LAYERS.get(name, name)
