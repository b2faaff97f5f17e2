"""What a network loses and gains when it is cut along its branches: accuracy, work, time."""

import contextlib
import html
import shlex
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from blockout.report.history import layout
from blockout.report.methods import Group, by_method
from blockout.report.section import Figure, Section, plain
from blockout.report.view import RunView
from blockout.training import RunError, TrainConfig, load_images, load_trained
from blockout.training.compaction import (
    USUAL,
    CompactionPoint,
    curve,
    read_curve,
    write_curve,
)
from blockout.training.records import environment

LEAD = (
    "Nodes that share no branch need no connection. A threshold decides from which P on a node "
    "counts as belonging to a branch: the higher it is, the fewer connections stay. Good is a "
    "curve that stays level far to the left: less work, the same accuracy."
)
BATCH_SIZE = 256
STAR = (
    f"The star is the threshold of {USUAL:g}, which `blockout compact` takes unless told "
    "otherwise. The layers counted are those above the trunk."
)


def measure_if_missing(view: RunView, say: Callable[[str], object] = print) -> None:
    """Measures a finished Blockout run and keeps the result in its folder, unless it is there.

    What stands in the way (the images are not here, say) is kept in its place, for ``section`` to
    show, and is tried again the next time.
    """
    if not view.finished or not view.memberships or _kept(view)[0]:
        return
    say(f"measuring once how small and how fast {view.name} becomes ...")
    try:
        points, about = _measured(view)
    except Exception as error:  # data, hubs and trunks of one's own fail in many ways
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        points, about = [], {"reason": lines[0] if lines else type(error).__name__}
    with contextlib.suppress(RunError):  # a folder that cannot be written to
        write_curve(view.folder, points, **about)


def section(runs: Sequence[RunView]) -> Section | None:
    """Curves of all Blockout runs that were measured, and a word on the others."""
    views = [view for view in runs if view.method == "blockout" and view.learns]
    if not views:
        return None
    groups = [(view, group) for group in by_method(runs) for view in group.runs if view in views]
    kept = [(view, group, *_kept(view)) for view, group in groups]
    body = "\n".join(_in_words(view, points, about) for view, _, points, about in kept)
    measured = [one for one in kept if one[2]]
    figures = (_by_work(measured), _by_time(measured)) if measured else ()
    return Section("compaction", "Making it smaller", LEAD, body, figures)


Kept = tuple[RunView, Group, list[CompactionPoint], dict[str, Any]]


def _kept(view: RunView) -> tuple[list[CompactionPoint], dict[str, Any]]:
    """Points and what is said about them; no points where it was not or could not be measured."""
    try:
        return read_curve(view.folder) or ([], {})
    except RunError as error:
        return [], {"reason": str(error)}


def _measured(view: RunView) -> tuple[list[CompactionPoint], dict[str, Any]]:
    """On the hold-out, which nothing was learned from; on test images where there is none."""
    trained = load_trained(view.folder)
    data = load_images(TrainConfig.from_flat(view.config))
    if data.classes != trained.classes or trained.images not in (None, data.fingerprint()):
        raise RunError("the images of the run have changed since it was trained")
    data = data.normalised_by(trained.mean, trained.std)
    split, name = (data.holdout, "hold-out") if len(data.holdout) else (data.test, "test")
    about = {"images": name, "count": len(split), "batch_size": BATCH_SIZE}
    machine = environment()["machine"]
    return curve(trained.model, split, BATCH_SIZE), about | {"machine": machine}


def _in_words(view: RunView, points: list[CompactionPoint], about: dict[str, Any]) -> str:
    name = f"<b><bdi>{html.escape(view.name)}</bdi></b>"
    command = f"<code>blockout report {html.escape(shlex.quote(str(view.folder)))}</code>"
    if not view.finished:
        return f"<p>{name} is measured once it has finished.</p>"
    if not points and "reason" in about:
        reason = html.escape(about["reason"])
        return f"<p>{name} could not be measured ({reason}); {command} tries again.</p>"
    if not points:
        return f"<p>{name} has not been measured yet; {command} does it.</p>"
    whole, at = points[0], _usual(points)
    faster = at.dense_milliseconds / at.compact_milliseconds
    machine = about["machine"]
    return (
        f"<p>{name}, at a threshold of {at.threshold:g}: {at.needed:.0%} of the multiply-adds "
        f"are needed and {at.carried_out:.0%} carried out; {about['batch_size']} images take "
        f"{at.compact_milliseconds:.2f} ms in place of {at.dense_milliseconds:.2f} ms "
        f"({faster:.2f} times as fast, {html.escape(machine['processor'])}, threads: "
        f"{machine['threads']}); {at.accuracy:.2f} % of the {about['count']:,} {about['images']} "
        f"images are right, {whole.accuracy:.2f} % with all connections.</p>"
    )


def _usual(points: list[CompactionPoint]) -> CompactionPoint:
    """At the usual threshold; where no P reaches it, the nearest."""
    return min(points, key=lambda point: abs(point.threshold - USUAL))


def _by_work(measured: Sequence[Kept]) -> Figure:
    traces = [_curve(one, [100 * point.needed for point in one[2]]) for one in measured]
    _one_entry_each(traces)
    made = layout("Multiply-adds needed (% of all)", _y(measured), _entries(measured))
    made["xaxis"] |= {"range": [0, 103], "ticksuffix": " %"}
    return Figure("compaction-work", traces, made, STAR, "Accuracy against work")


def _by_time(measured: Sequence[Kept]) -> Figure:
    traces = []
    for one in measured:
        view, group, points, about = one
        sooner = sorted(points, key=lambda at: at.compact_milliseconds / at.dense_milliseconds)
        traces.append(_curve((view, group, sooner, about), _times(sooner)))
        traces.append(_dense(one))
    _one_entry_each(traces)
    size = measured[0][3]["batch_size"]
    x = f"Milliseconds for {size} images"
    made = layout(x, _y(measured), _entries(measured))
    made["xaxis"] |= {"rangemode": "tozero", "ticksuffix": " ms"}
    note = (
        "The diamond is all connections of the layers above the trunk, timed in turns with the "
        "compact ones: how many times faster each is tells more than its milliseconds, which other "
        "work on the machine changes."
    )
    return Figure("compaction-time", traces, made, note, "Accuracy against time")


def _dense_time(points: list[CompactionPoint]) -> float:
    return statistics.median(point.dense_milliseconds for point in points)


def _times(points: list[CompactionPoint]) -> list[float]:
    """Of the compact networks, as if the machine had been equally busy for all: each against the
    dense network in the same turns."""
    dense = _dense_time(points)
    return [dense * point.compact_milliseconds / point.dense_milliseconds for point in points]


def _curve(one: Kept, x: list[float]) -> dict[str, Any]:
    view, group, points, about = one
    usual = _usual(points)
    return _trace(group) | {
        "mode": "lines+markers", "x": x, "y": [point.accuracy for point in points],
        "line": {"width": 1.5, "color": group.colour},
        "marker": {
            "color": group.colour,
            "size": [15 if point is usual else 8 for point in points],
            "symbol": ["star" if point is usual else "circle" for point in points],
        },
        "customdata": [_row(point) for point in points],
        "hovertemplate": (
            "threshold %{customdata[0]:.3g}<br>%{y:.2f} % right (" + about["images"] + ")<br>"
            "multiply-adds: %{customdata[1]:.0f} % needed, %{customdata[2]:.0f} % carried out<br>"
            "%{customdata[3]:.2f} ms, dense %{customdata[4]:.2f} ms (%{customdata[5]:.2f} ×)"
            f"<extra>{plain(view.name)}</extra>"
        ),
    }  # fmt: skip


def _one_entry_each(traces: list[dict[str, Any]]) -> None:
    """In the legend, for the first trace of a method."""
    seen = set()
    for trace in traces:
        trace["showlegend"] = trace["legendgroup"] not in seen
        seen.add(trace["legendgroup"])


def _row(point: CompactionPoint) -> list[float]:
    dense, compact = point.dense_milliseconds, point.compact_milliseconds
    return [
        point.threshold, 100 * point.needed, 100 * point.carried_out, compact, dense,
        dense / compact,
    ]  # fmt: skip


def _dense(one: Kept) -> dict[str, Any]:
    view, group, points, _ = one
    return _trace(group) | {
        "mode": "markers", "y": [points[0].accuracy],
        "x": [_dense_time(points)],
        "marker": {"color": group.colour, "size": 12, "symbol": "diamond-open",
                   "line": {"width": 2}},
        "hovertemplate": f"dense: %{{x:.2f}} ms, %{{y:.2f}} %<extra>{plain(view.name)}</extra>",
    }  # fmt: skip


def _trace(group: Group) -> dict[str, Any]:
    return {"type": "scatter", "name": plain(group.label, 120), "legendgroup": group.label}


def _entries(measured: Sequence[Kept]) -> int:
    """Of the legend: a method each; none where there is nothing to tell apart."""
    return len({one[1].label for one in measured}) if len(measured) > 1 else 0


def _y(measured: Sequence[Kept]) -> str:
    used = " or ".join(dict.fromkeys(about["images"] for *_, about in measured))
    return f"{used.capitalize()} images correct (%)"
