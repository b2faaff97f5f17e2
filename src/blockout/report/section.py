"""What the page is made of: sections of words and figures, and the colours they share."""

import html
import unicodedata
from dataclasses import dataclass
from typing import Any

from blockout.nodesets import on_one_line

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#999999")
"""Okabe and Ito's: told apart by colour-blind people too, on light and on dark."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up")


@dataclass(frozen=True)
class Figure:
    """One Plotly figure, as JSON.

    Background, text and grid have no colours of their own: the page sets them for light and dark. A
    trace that shows classes has the ``meta`` of ``search.shows_classes`` and ``customdata`` whose
    first column is the index of the class, so that a class that is searched for is marked in all
    views.
    """

    id: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""
    """A sentence below it, plain text."""
    title: str = ""
    """A heading above it, plain text."""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    id: str
    title: str
    lead: str
    """What is to be seen and how to read it, for who has not read the paper; plain text."""
    body: str = ""
    """HTML above the figures; whatever comes from a run is escaped in it."""
    figures: tuple[Figure, ...] = ()


def cluster_colour(cluster: int) -> str:
    """The same colour for a cluster everywhere; they repeat where there are very many.

    >>> cluster_colour(0) == cluster_colour(8)
    True
    """
    return PALETTE[cluster % len(PALETTE)]


def plain(text: str, most: int = 80) -> str:
    """A name as text inside a Plotly figure, which reads tags and entities; long ones are cut.

    Names written from right to left are kept apart from the words around them.

    >>> plain("<b>bold</b> & co"), plain("abcdef", most=4)
    ('&lt;b&gt;bold&lt;/b&gt; &amp; co', 'abc…')
    """
    text = on_one_line(text)
    text = text if len(text) <= most else text[: most - 1].rstrip() + "…"
    turned = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in text)
    shown = html.escape(text, quote=False)
    return f"\u2068{shown}\u2069" if turned else shown
