"""The page: all sections in one HTML file that needs nothing else, neither a server nor a network.

Whatever comes from a run (names of classes, of runs, of folders) is text: escaped in HTML, and as
JSON inside a script that nothing in it can end. Should markup slip through all the same, the page's
security policy lets no script run but its own two, and nothing be loaded.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

from blockout import __version__
from blockout.report import (
    classes,
    compaction,
    comparison,
    confusion,
    convergence,
    distributions,
    flow,
    hierarchy,
    masks,
    mistakes,
    nodes,
    taxonomy,
    words,
)
from blockout.report.search import class_facts
from blockout.report.section import PALETTE, Figure, Section
from blockout.report.view import RunView
from blockout.training.files import write_atomically

SECTIONS = (
    words, convergence, distributions, nodes, classes, hierarchy, flow, confusion, masks, mistakes,
    taxonomy, compaction, comparison,
)  # fmt: skip
"""In the order of the page; each has ``section(runs)``."""
RENEWAL = 30
"""Seconds after which an open page of a run that still trains loads itself anew."""
HEIGHT = 450
"""Of a figure that does not say its own, in pixels."""
RISKY = "<>&\u2028\u2029"
"""What could end a script, or a line of it."""
TYPED = {"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4",
         "uint32": "u4", "float32": "f4", "float64": "f8"}  # fmt: skip
"""Kinds of numbers that Plotly reads as binary data."""


def write_page(views: Sequence[RunView], out: Path) -> None:
    """The page of these runs as one file, written in one step."""
    text = as_html(views)
    write_atomically(out, lambda path: path.write_text(text, encoding="utf-8", newline="\n"))


def as_html(views: Sequence[RunView]) -> str:
    """The page of these runs; the first is the one it is named after."""
    found = [s for s in (module.section(views) for module in SECTIONS) if s is not None]
    library, script = _newlines(get_plotlyjs()), _part("page.js")
    training = any(not view.finished for view in views)
    said = {
        "classes": class_facts(views), "palette": PALETTE, "renewal": RENEWAL if training else 0,
    }  # fmt: skip
    return Template(_part("page.html")).substitute(
        title=html.escape(_title(views)),
        policy=_policy(library, script),
        style=_part("page.css"),
        navigation="\n".join(map(_link, found)),
        sections="\n".join(map(_section, found)),
        training="" if training else "hidden",
        searching="" if said["classes"] else "hidden",
        written=f"{datetime.now():%Y-%m-%d, %H:%M}",
        seconds=RENEWAL,
        version=__version__,
        said=as_json(said),
        library=library,
        script=script,
    )  # fmt: skip


def as_json(value: Any) -> str:
    """JSON that can stand inside a ``script`` element; arrays of numbers as Plotly's binary data.

    >>> as_json({"name": "</script>", "x": np.zeros(2, np.uint8), "y": [float("nan")]})
    '{"name":"\\\\u003c/script\\\\u003e","x":{"dtype":"u1","bdata":"AAA="},"y":[null]}'
    """
    text = json.dumps(
        _packed(value), cls=PlotlyJSONEncoder, ensure_ascii=False, separators=(",", ":")
    )
    for character in RISKY:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _packed(value: Any) -> Any:
    """With arrays of numbers in base64: a third of the size of their digits, and read faster."""
    if isinstance(value, dict):
        return {k: _packed(v) for k, v in value.items() if k != "template"}
    if isinstance(value, list | tuple):
        return [_packed(v) for v in value]
    if not isinstance(value, np.ndarray) or not value.size:
        return value
    if value.dtype in (np.int64, np.uint64):
        value = value.astype(np.int32 if np.abs(value).max() < 2**31 else np.float64)
    if value.dtype.name not in TYPED:
        return value
    data = base64.b64encode(value.tobytes()).decode()
    shape = {"shape": ", ".join(map(str, value.shape))} if value.ndim > 1 else {}
    return {"dtype": TYPED[value.dtype.name], "bdata": data, **shape}


def _link(section: Section) -> str:
    return f'<li><a href="#{html.escape(section.id)}">{html.escape(section.title)}</a></li>'


def _section(section: Section) -> str:
    """Title, explanation, body, figures."""
    id = html.escape(section.id)
    figures = "\n".join(_figure(figure, section.title) for figure in section.figures)
    return (
        f'<section id="{id}" aria-labelledby="{id}-title">\n'
        f'<h2 id="{id}-title">{html.escape(section.title)}</h2>\n'
        f'<p class="lead">{html.escape(section.lead)}</p>\n{section.body}\n{figures}\n</section>'
    )


def _figure(figure: Figure, title: str) -> str:
    """A place for it and its data; the script draws it when it comes near."""
    id, height = html.escape(figure.id), figure.layout.get("height", HEIGHT)
    note = f"<figcaption>{_with_commands(figure.note)}</figcaption>" if figure.note else ""
    heading = f"<h3><bdi>{html.escape(figure.title)}</bdi></h3>" if figure.title else ""
    data = as_json({"data": figure.data, "layout": figure.layout})
    name = html.escape(figure.title or figure.note or title)
    return (
        f'<figure class="figure">{heading}<div class="plot" id="figure-{id}" role="group" '
        f'tabindex="0" aria-label="{name}" style="height:{height:g}px"></div>{note}'
        f'<script type="application/json">{data}</script></figure>'
    )


def _with_commands(text: str) -> str:
    """What stands between backticks as code.

    >>> _with_commands("`blockout compact` <5 s")
    '<code>blockout compact</code> &lt;5 s'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _title(views: Sequence[RunView]) -> str:
    more = f" and {len(views) - 1} more" if len(views) > 1 else ""
    return f"{views[0].name}{more}"


def _policy(*scripts: str) -> str:
    """Only these scripts run, and nothing is loaded; ``eval`` is how Plotly makes its shaders."""
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _part(name: str) -> str:
    return _newlines(resources.files("blockout.report").joinpath(name).read_text(encoding="utf-8"))


def _newlines(text: str) -> str:
    """As a browser reads them, which then hashes the same text."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
