"""What a network loses and gains when it is cut along its branches: accuracy, work, time."""

import shlex
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from markupsafe import Markup

from blockout.runs import Run, RunError
from blockout.runs.documents import CompactionCurve, CompactionPoint
from blockout.runs.folder import COMPACTION
from blockout.show.methods import Group, by_method
from blockout.show.page.drawing import curves, plain
from blockout.show.page.section import Figure, Section, html, paragraphs, part
from blockout.training.compaction import USUAL
from blockout.training.whole import meaning, table

LEAD = """Nodes that share no branch need no connection. A threshold decides from which P on a node
counts as belonging to a branch: the higher it is, the fewer connections stay. The curves are about
the head, the layers above the trunk. Look for one that stays level far to the left: less work, the
same accuracy."""
STAR = f"""The star is the threshold of {USUAL:g}, the default of `blockout compact`."""
TIME_NOTE = """The diamond is the head with all connections, timed in turns with the compact ones.
Compare how many times faster each is rather than the milliseconds, which depend on what else the
machine was doing."""
SAME = """Compact or dense or with a linear classifier, the trunk is the same; times of one trunk
that differ by more than the head takes say how busy the machine was."""
NOT_WHOLE = """<b><bdi>{}</bdi></b> was measured before the whole network was; delete
<code>{}</code> to measure again."""
HOVER = (
    "threshold %{customdata[0]:.3g}<br>%{y:.2f} % right<br>"
    "multiply-adds: %{customdata[1]:.0f} % needed, %{customdata[2]:.0f} % carried out<br>"
    "%{customdata[3]:.2f} ms, dense %{customdata[4]:.2f} ms (%{customdata[5]:.2f} ×)"
)


class _Measured(NamedTuple):
    run: Run
    group: Group
    curve: CompactionCurve


def section(runs: Sequence[Run]) -> Section | None:
    """Curves of all Blockout runs that were measured, and a word about the others; nothing of runs
    that were left whole."""
    found = [
        _Measured(run, group, _curve_of(run))
        for group in by_method(runs)
        for run in group.runs
        if run.learned and not run.whole
    ]
    if not found:
        return None
    body = paragraphs([_in_words(one.run, one.curve) for one in found])
    body += Markup().join(_whole(one.run, one.curve) for one in found)
    measured = [one for one in found if one.curve.points]
    figures = (_by_work(measured), _by_time(measured)) if measured else ()
    return Section("compaction", "Making it smaller", LEAD, body, figures)


def _curve_of(run: Run) -> CompactionCurve:
    """Without points if it was not or could not be measured."""
    try:
        return run.compaction or CompactionCurve()
    except RunError as error:
        return CompactionCurve(reason=str(error))


def _in_words(run: Run, curve: CompactionCurve) -> Markup:
    name = html("<b><bdi>{}</bdi></b>", run.name)
    command = html("<code>blockout report {}</code>", shlex.quote(str(run.folder)))
    if not run.finished:
        return name + " will be measured once it has finished."
    if not curve.points and curve.reason:
        return name + html(" could not be measured ({}); {} tries again.", curve.reason, command)
    if not curve.points:
        return name + html(" has not been measured yet; {} does it.", command)
    at, machine = _usual(curve.points), curve.machine
    faster = at.dense_milliseconds / at.compact_milliseconds
    right = (
        f"{at.accuracy:.2f} % of the {curve.count:,} {curve.images} images are right, "
        f"{curve.points[0].accuracy:.2f} % with all connections."
    )
    if at.carried_out >= 1:
        return name + (
            f" at a threshold of {at.threshold:g}: {at.needed:.0%} of the head's multiply-adds are "
            "needed, but leaving out the others would not be faster, so all are carried out; "
            f"{right}"
        )
    return name + (
        f", its head alone at a threshold of {at.threshold:g}: {at.needed:.0%} of the "
        f"multiply-adds are needed and {at.carried_out:.0%} carried out; {curve.batch_size} images "
        f"take {at.compact_milliseconds:.2f} ms instead of {at.dense_milliseconds:.2f} ms "
        f"({faster:.2f} times as fast, {machine.processor}, threads: {machine.threads}); {right}"
    )


def _whole(run: Run, curve: CompactionCurve) -> Markup:
    """The whole network, trunk and head: what ships."""
    if curve.points and curve.network is None:
        return paragraphs([html(NOT_WHOLE, run.name, run.folder / COMPACTION)])
    if curve.network is None:
        return Markup()
    heads, rows = table(curve.network)
    title = f"{run.name}: time and size of the whole network"
    return part("table", title, heads, rows) + paragraphs([f"{meaning(curve.network)} {SAME}"])


def _usual(points: Sequence[CompactionPoint]) -> CompactionPoint:
    """At the usual threshold, or the nearest if no P reaches it."""
    return min(points, key=lambda point: abs(point.threshold - USUAL))


def _by_work(measured: Sequence[_Measured]) -> Figure:
    traces = []
    for one in measured:
        points = one.curve.points
        traces.append(_curve(one, points, [100 * point.needed for point in points]))
    chart = _curves(traces, "Multiply-adds of the head needed (% of all)", measured)
    chart.update_xaxes(range=[0, 103], ticksuffix=" %")
    return Figure("compaction-work", chart, STAR, "Accuracy against work")


def _by_time(measured: Sequence[_Measured]) -> Figure:
    """Times as if the machine had been equally busy for all: each against the dense network."""
    traces = []
    for one in measured:
        points = sorted(
            one.curve.points, key=lambda at: at.compact_milliseconds / at.dense_milliseconds
        )
        dense = statistics.median(point.dense_milliseconds for point in points)
        x = [dense * point.compact_milliseconds / point.dense_milliseconds for point in points]
        traces.append(_curve(one, points, x))
        traces.append(_dense(one, dense))
    title = f"Milliseconds of the head for {measured[0].curve.batch_size} images"
    chart = _curves(traces, title, measured)
    chart.update_xaxes(rangemode="tozero", ticksuffix=" ms")
    return Figure("compaction-time", chart, TIME_NOTE, "Accuracy against time")


def _curves(traces: Sequence[go.Scatter], x: str, measured: Sequence[_Measured]) -> go.Figure:
    """With one legend entry per group; none if there is nothing to tell apart."""
    seen = set()
    for trace in traces:
        trace.showlegend = trace.legendgroup not in seen
        seen.add(trace.legendgroup)
    used = " or ".join(dict.fromkeys(one.curve.images for one in measured))
    entries = len(seen) if len(measured) > 1 else 0
    return curves(traces, x, f"{plain(used.capitalize())} images correct (%)", entries)


def _curve(one: _Measured, points: Sequence[CompactionPoint], x: list[float]) -> go.Scatter:
    stars = [point is _usual(points) for point in points]
    marker = {
        "color": one.group.colour,
        "size": [15 if star else 8 for star in stars],
        "symbol": ["star" if star else "circle" for star in stars],
    }
    line = {"width": 1.5, "color": one.group.colour}
    y, rows = [point.accuracy for point in points], [_row(point) for point in points]
    look = {"mode": "lines+markers", "line": line, "marker": marker, "customdata": rows}
    return _trace(one, HOVER, x=x, y=y, **look)


def _row(point: CompactionPoint) -> list[float]:
    dense, compact = point.dense_milliseconds, point.compact_milliseconds
    shares = 100 * point.needed, 100 * point.carried_out
    return [point.threshold, *shares, compact, dense, dense / compact]


def _dense(one: _Measured, milliseconds: float) -> go.Scatter:
    marker = {"color": one.group.colour, "size": 12, "symbol": "diamond-open", "line_width": 2}
    at = {"x": [milliseconds], "y": [one.curve.points[0].accuracy]}
    return _trace(one, "dense: %{x:.2f} ms, %{y:.2f} %", mode="markers", marker=marker, **at)


def _trace(one: _Measured, hover: str, **look: Any) -> go.Scatter:
    label, template = one.group.label, f"{hover}<extra>{plain(one.run.name)}</extra>"
    return go.Scatter(name=plain(label, 120), legendgroup=label, hovertemplate=template, **look)
