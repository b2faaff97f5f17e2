"""What the page is made of: sections of words and figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from blockout.runs import Run

TEMPLATES = Environment(
    loader=PackageLoader("blockout.show.page", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
EMPTY = Markup()
DETAILED = 3
"""Runs with a figure of their own; more would bury what there is to see."""


@dataclass(frozen=True)
class Figure:
    """One Plotly figure.

    Background, text and grid have no colours of their own: the page sets them for light and dark.
    """

    id: str
    chart: go.Figure
    note: str = ""
    """A sentence below it; plain text, commands between backticks."""
    title: str = ""
    """A heading above it; plain text."""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    id: str
    title: str
    lead: str
    """What there is to see and how to read it, for readers who do not know the paper."""
    body: Markup = EMPTY
    """HTML above the figures."""
    figures: tuple[Figure, ...] = ()


def part(name: str, *values: object) -> Markup:
    """HTML from a macro in ``parts.html``, with everything escaped that is not ``Markup``."""
    return getattr(TEMPLATES.get_template("parts.html").module, name)(*values)


def html(text: str, *values: object, **named: object) -> Markup:
    """HTML with the values escaped.

    >>> print(html("<b>{}</b>", "a < b"))
    <b>a &lt; b</b>
    """
    return Markup(text).format(*values, **named)


def bdi(name: str) -> Markup:
    """A name as text, kept apart from the words around it if it is written from right to left."""
    return html("<bdi>{}</bdi>", name)


def paragraphs(texts: Sequence[str]) -> Markup:
    return Markup("\n").join(html("<p>{}</p>", text) for text in texts if text)


def in_detail(runs: Sequence[Run], most: int = DETAILED) -> tuple[list[Run], str]:
    """The first runs, and a sentence about the others; plain text."""
    shown, rest = list(runs[:most]), runs[most:]
    if not rest:
        return shown, ""
    names = ", ".join(run.name for run in rest[:5]) + (", …" if len(rest) > 5 else "")
    return shown, f" Not shown here: {names}. To see a run, name it first."


def some_names(names: Sequence[str], most: int) -> str:
    """
    >>> some_names(["ash", "elm", "oak", "fir"], 2)
    'ash, elm, +2'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f", +{rest}" if rest > 0 else "")
