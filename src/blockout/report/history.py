"""What several figures share that show how something went through training."""

from typing import Any

import numpy as np
from jaxtyping import Int64

MOST_TIMES = 200
PLOT_HEIGHT = 280
"""In pixels, without title, axis and legend."""


def thinned(count: int, most: int = MOST_TIMES) -> Int64[np.ndarray, " times"]:
    """At most so many indices below ``count``, evenly, the first and the last among them.

    >>> thinned(7, 3).tolist(), thinned(2).tolist()
    ([0, 3, 6], [0, 1])
    """
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(np.int64)


def heading(title: str) -> dict[str, Any]:
    """The title of a figure, at the upper left of its plot."""
    return {
        "text": title, "font": {"size": 16}, "x": 0, "xref": "paper", "xanchor": "left",
        "y": 1, "yref": "paper", "yanchor": "bottom", "pad": {"b": 14},
    }  # fmt: skip


def layout(title: str, x: str, y: str, entries: int = 0) -> dict[str, Any]:
    """A figure with a title, named axes and below them a legend with so many entries.

    They stand one below the other and have room of their own: however narrow the window, the plot
    keeps its height and nothing lies over anything.
    """
    top, below, line = 50, 62, 21
    return {
        "title": heading(title),
        "height": top + PLOT_HEIGHT + below + line * entries,
        "margin": {"l": 60, "r": 20, "t": top, "b": below + line * entries},
        "xaxis": {"title": {"text": x, "standoff": 8}},
        "yaxis": {"title": {"text": y}},
        "showlegend": entries > 0,
        "legend": {"x": 0, "y": -below / PLOT_HEIGHT, "yanchor": "top"},
        "hovermode": "closest",
    }
