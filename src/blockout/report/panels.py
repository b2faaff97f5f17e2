"""Several panels side by side in one figure, and colours for amounts."""

from collections.abc import Sequence
from typing import Any

from blockout.report.section import PALETTE, plain

AMOUNTS = [
    [0.0, "rgba(0,114,178,0)"], [0.02, "rgba(0,114,178,0.45)"], [0.1, "rgba(0,114,178,0.75)"],
    [0.3, "rgba(230,159,0,0.9)"], [1.0, "rgba(213,94,0,1)"],
]  # fmt: skip
"""From nothing to all, with room for small amounts: readable on light and on dark, and by
colour-blind people."""
EVEN = [[0.0, "rgba(0,114,178,0)"], [0.5, "rgba(0,114,178,0.65)"], [1.0, "rgba(0,114,178,1)"]]
"""The same without emphasis on small amounts."""
CELLS = [[0.0, "#e8eef3"], [1.0, PALETTE[5]]]
"""Opaque and light, so that black numbers in the cells are read, whatever the page."""
LINE = "#888888"
"""Of lines that must be seen on light and on dark."""


def axis(letter: str, panel: int) -> str:
    """The name of a panel's axis in a trace; ``axis_key`` is the one in a layout.

    >>> axis("x", 0), axis("x", 1)
    ('x', 'x2')
    """
    return letter if panel == 0 else f"{letter}{panel + 1}"


def axis_key(letter: str, panel: int) -> str:
    """
    >>> axis_key("y", 2)
    'yaxis3'
    """
    return f"{letter}axis{panel + 1 if panel else ''}"


def side_by_side(titles: Sequence[str], height: int, gap: float = 0.06) -> dict[str, Any]:
    """A layout with a panel for each title, from left to right; titles are plain text."""
    width = (1 - gap * (len(titles) - 1)) / len(titles)
    layout: dict[str, Any] = {"height": height, "annotations": []}
    for panel, title in enumerate(titles):
        start = panel * (width + gap)
        layout[axis_key("x", panel)] = {
            "domain": [start, start + width], "anchor": axis("y", panel),
        }  # fmt: skip
        layout[axis_key("y", panel)] = {"anchor": axis("x", panel)}
        if title:
            layout["annotations"].append(_title(title, start + width / 2))
    return layout


def _title(text: str, x: float) -> dict[str, Any]:
    return {
        "text": plain(text), "x": x, "y": 1, "xref": "paper", "yref": "paper", "yanchor": "bottom",
        "xanchor": "center", "showarrow": False, "font": {"size": 13},
    }  # fmt: skip
