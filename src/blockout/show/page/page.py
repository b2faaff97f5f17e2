"""The page: all sections in one HTML file that needs neither a server nor a network.

Whatever comes from a run (names of classes, runs and folders) is text: the templates escape it, and
Plotly escapes what could end a script. Should markup slip through all the same, the page's security
policy runs no script but its own two and loads nothing.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path

import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from blockout import __version__
from blockout.runs import Run
from blockout.runs.folder import write_atomically
from blockout.show.colours import PALETTE
from blockout.show.page import (
    accuracy,
    checks,
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
    summary,
    taxonomy,
)
from blockout.show.page.search import class_facts
from blockout.show.page.section import TEMPLATES

SECTIONS = (
    *(summary, comparison, mistakes, checks, accuracy, confusion, taxonomy),
    *(hierarchy, flow, compaction, convergence, classes, nodes, distributions, masks),
)
"""In the order of the page, each with ``section(runs)``: what everybody asks first, then what was
learned, then how."""
RENEWAL = 30
"""Seconds after which an open page of a run that still trains reloads itself."""


def write_page(runs: Sequence[Run], out: Path) -> None:
    """Writes the page of these runs as one file, in one step."""
    text = as_html(runs)
    write_atomically(out, lambda path: path.write_text(text, encoding="utf-8", newline="\n"))


def as_html(runs: Sequence[Run]) -> str:
    """The page of these runs, named after the first."""
    library, script = _newlines(get_plotlyjs()), _file("page.js")
    training = any(not run.finished for run in runs)
    facts = class_facts(runs)
    said = {"classes": facts, "palette": PALETTE, "renewal": RENEWAL if training else 0}
    return TEMPLATES.get_template("page.html").render(
        title=runs[0].name + (f" and {len(runs) - 1} more" if len(runs) > 1 else ""),
        policy=_policy(library, script),
        style=Markup(_file("page.css")),
        sections=[found for module in SECTIONS if (found := module.section(runs)) is not None],
        training=training,
        searching=facts is not None,
        written=f"{datetime.now():%Y-%m-%d, %H:%M}",
        seconds=RENEWAL,
        version=__version__,
        said=as_json(said),
        library=Markup(library),
        script=Markup(script),
        as_json=as_json,
        with_commands=with_commands,
    )


def as_json(value: object) -> Markup:
    """JSON that can stand inside a ``script`` element; in figures, arrays become binary data.

    Not ``Figure.to_json``: it would repeat Plotly's template, seven kilobytes, in every figure.

    >>> print(as_json({"name": "</script>", "y": [float("nan")]}))
    {"name":"\\u003c\\u002fscript\\u003e","y":[null]}
    """
    if isinstance(value, go.Figure):
        value = value.to_dict()
        value["layout"].pop("template", None)  # the page has its own, for light and dark
    return Markup(to_json_plotly(value, engine="json"))


def with_commands(text: str) -> Markup:
    """Plain text with what stands between backticks as code.

    >>> print(with_commands("`blockout compact` <5 s"))
    <code>blockout compact</code> &lt;5 s
    """
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _policy(*scripts: str) -> str:
    """Only these scripts run, and nothing is loaded; Plotly needs ``eval`` to make its shaders."""
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _file(name: str) -> str:
    found = resources.files("blockout.show.page").joinpath(name)
    return _newlines(found.read_text(encoding="utf-8"))


def _newlines(text: str) -> str:
    """As a browser reads them, which then hashes the same text."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
