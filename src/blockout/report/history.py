"""What several figures share that show how something went through training."""

from typing import Any

import numpy as np
from jaxtyping import Int64

MOST_TIMES = 200
PLOT_HEIGHT = 280
"""In pixels, without axis and legend."""


def thinned(count: int, most: int = MOST_TIMES) -> Int64[np.ndarray, " times"]:
    """At most so many indices below ``count``, evenly, the first and the last among them.

    >>> thinned(7, 3).tolist(), thinned(2).tolist()
    ([0, 3, 6], [0, 1])
    """
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(np.int64)


def layout(x: str, y: str, entries: int = 0) -> dict[str, Any]:
    """A figure with named axes and below them a legend with so many entries.

    They stand one below the other and have room of their own: however narrow the window, the plot
    keeps its height and nothing lies over anything.
    """
    top, below, line = 14, 62, 21
    return {
        "height": top + PLOT_HEIGHT + below + line * entries,
        "margin": {"l": 60, "r": 20, "t": top, "b": below + line * entries},
        "xaxis": {"title": {"text": x, "standoff": 8}},
        "yaxis": {"title": {"text": y}},
        "showlegend": entries > 0,
        "legend": {"x": 0, "y": -below / PLOT_HEIGHT, "yanchor": "top"},
        "hovermode": "closest",
    }
