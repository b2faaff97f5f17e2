"""The summary at the top of the page, in plain words: what was trained, how well, what came out."""

import html
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from blockout.models.config import paper_defaults
from blockout.report import repetition
from blockout.report.naming import layer_called
from blockout.report.section import Section
from blockout.report.view import RunView
from blockout.structure import Structure
from blockout.training import files
from blockout.training.compaction import ABOUT, USUAL, read_curve
from blockout.training.config import EPOCHS, EPOCHS_SHAPES

LEAD = (
    "Blockout trains a network whose nodes may belong to several branches (clusters), and learns "
    "for every node the chance P that it belongs to each. Two nodes are connected where they share "
    "a branch, so the network finds its own hierarchy while it trains."
)
LEAD_WITHOUT = "A classifier of images, trained without Blockout, to compare others with."
METHODS = {
    "blockout": "Blockout, which learns how the network branches",
    "dropout": "Dropout",
    "dropconnect": "DropConnect",
    "fc": "plain fully-connected layers",
    "baseline": "nothing but a classifier above the trunk",
}
GUIDED = " The branches were guided: towards few for each node, with {alike} together."
UNGUIDED = " The branches were learned from the classification loss alone, as in the paper."
DRAWN = "Blockout, which draws anew how the network branches in every step"
FIXED = (
    " The chances P were not learned: each stayed at one half, so that no branches are left in the "
    "end."
)
ONE_BRANCH = (
    "every node has the same P for all {clusters} branches, so that they are one and the same, and "
    "how large P is says only how much a node counts."
)
SOFT = " Nothing tells branches apart that start alike and are never drawn (soft)."
GROUPS_SHOWN, NAMES_SHOWN = 3, 6
BY_CHANCE = 0.05
"""Above this p-value an agreement says nothing."""


def section(runs: Sequence[RunView]) -> Section:
    """Of one run its story; of several a table, and each one's story to unfold."""
    lead = LEAD if any(view.method == "blockout" for view in runs) else LEAD_WITHOUT
    if len(runs) == 1:
        return Section("summary", "In short", lead, _story(runs[0]))
    stories = "\n".join(
        f"<details><summary>{_text(view.name)}</summary>\n{_story(view)}</details>" for view in runs
    )
    return Section("summary", "In short", lead, f"{_table(runs)}\n{stories}")


def _story(view: RunView) -> str:
    """Tiles with the numbers to remember, then sentences, then how to repeat it."""
    sentences = [_trained(view), _accuracy(view), _structure(view), _agreement(view), _small(view),
                 _missing(view)]  # fmt: skip
    told = "\n".join(f"<p>{text}</p>" for text in sentences if text)
    return f"{_tiles(view)}\n{told}\n{_warnings(view)}\n{repetition.as_html(view)}"


def _tiles(view: RunView) -> str:
    tiles = []
    if (accuracy := _test_accuracy(view)) is not None:
        so_far = "" if view.finished else " so far"
        tiles.append((f"{accuracy:.1f} %", f"of the test images correct{so_far}"))
    if view.structure is not None:
        if not view.one_branch:
            tiles.append((str(len(view.structure.class_groups)), "groups of classes"))
        tiles.append((_per_cent(_left(view.structure)), "of the connections left"))
    if view.structure is not None and (small := _measured(view)):
        times = small.dense_milliseconds / small.compact_milliseconds
        tiles.append((f"{times:.1f} ×", "as fast above the trunk, made compact"))
    cells = "".join(f"<div><dt>{what}</dt><dd>{number}</dd></div>" for number, what in tiles)
    return f'<dl class="tiles">{cells}</dl>' if tiles else ""


# --- the sentences --------------------------------------------------------------------------------


def _trained(view: RunView) -> str:
    classes = f", {len(view.classes)} classes" if view.classes else ""
    method = METHODS.get(view.method, view.method) if view.learns else DRAWN
    text = f"<b>Trained</b> on {_text(_data(view))}{classes}, with {_text(method)}"
    if view.method != "baseline":
        text += f": two layers of {_of_head(view, 'nodes'):,} nodes"
    if view.method == "blockout":
        text += f" in {_of_head(view, 'clusters')} clusters (branches)"
    text += f". {_length(view)}, seed {view.seed}."
    if view.method != "blockout":
        return text
    if not view.learns:
        return text + FIXED
    if not view.guided:
        return text + UNGUIDED
    known = view.config.get("affinity_from") == "groups"
    return text + GUIDED.format(alike="classes of one known group" if known else "similar classes")


def _length(view: RunView) -> str:
    planned = _planned(view)
    if not view.finished:
        step = max((line["step"] for line in (*view.steps, *view.epochs)), default=0)
        return f"So far it has come to step {step:,}; {planned} are planned"
    steps, minutes = view.result["steps"], view.result["seconds"] / 60
    took = f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{60 * minutes:.0f} seconds"
    return f"{planned} ({steps:,} steps) took {took}" if "epoch" in planned else (
        f"{planned} took {took}"
    )  # fmt: skip


def _planned(view: RunView) -> str:
    if view.config["steps"]:
        return f"{view.config['steps']:,} steps"
    epochs = view.config["epochs"] or (EPOCHS_SHAPES if _data(view) == "shapes" else EPOCHS)
    return f"{epochs} epoch{'s' if epochs != 1 else ''}"


def _accuracy(view: RunView) -> str:
    accuracy, classes = _test_accuracy(view), len(view.classes)
    if view.finished:
        text = f"<b>Accuracy</b>: {accuracy:.2f} % of the test images are correct"
        text += f" (guessing: {100 / classes:.2g} %)" if classes else ""
        top = view.result["test"]["top5"]
        return text + (f"; {top:.2f} % among its first five guesses." if classes > 5 else ".")
    if not view.epochs:
        return "No epoch is finished yet, so there is no accuracy to show."
    last = view.epochs[-1]
    tested = "" if accuracy is None else f" and {accuracy:.1f} % of the test images"
    return (
        f"<b>Accuracy so far</b>, after epoch {last['epoch']}: {last['train_accuracy']:.1f} % of "
        f"the training images{tested} are correct."
    )


def _test_accuracy(view: RunView) -> float | None:
    """In the end, or of the last epoch."""
    if view.finished:
        return view.result["test"]["accuracy"]
    return view.epochs[-1].get("test_accuracy") if view.epochs else None


def _structure(view: RunView) -> str:
    found = view.structure
    if found is None:
        return ""
    shares = " and ".join(
        f"{_per_cent(cost.left)} of those of {_text(layer_called(cost.layer.name))}"
        for cost in found.costs
    )
    left = (
        f"Connections are left where two nodes share a branch with P of at least "
        f"{found.threshold:g}: {shares}."
    )
    if view.one_branch:
        told = ONE_BRANCH.format(clusters=found.class_set.clusters)
        return f"<b>Structure</b>: {told}{'' if view.config.get('hard', True) else SOFT} {left}"
    groups = found.class_groups
    largest = "; ".join(_names(found, group.members) for group in groups[:GROUPS_SHOWN])
    more = f" and {len(groups) - GROUPS_SHOWN} more" if len(groups) > GROUPS_SHOWN else ""
    mean = sum(found.class_set.branch_sizes) / len(found.classes)
    known = len(set(found.taxonomy or ()))
    chosen = " (as many as the known groups of the data)" if len(groups) == known else ""
    return (
        f"<b>Structure</b>: by the branches they use, the classes fall into {len(groups)} "
        f"group{'s' if len(groups) > 1 else ''}{chosen}: {largest}{more}. A class is in {mean:.1f} "
        f"of the {found.class_set.clusters} branches on average (P of at least "
        f"{found.threshold:g}). {left}"
    )


def _missing(view: RunView) -> str:
    """What a finished run has lost, or never had, as one trained from Python with its own model."""
    if not view.finished:
        return ""
    needed = {files.MODEL: bool(view.about), files.PREDICTIONS: view.labels is not None}
    if view.method == "blockout" and view.learns:
        needed[files.MEMBERSHIPS] = bool(view.memberships)
    lost = [name for name, there in needed.items() if not there]
    if not lost:
        return ""
    return f"The run folder holds no {' and no '.join(lost)}: what they tell is not shown here."


def _names(structure: Structure, members: Sequence[int]) -> str:
    shown = ", ".join(_text(structure.classes[c]) for c in members[:NAMES_SHOWN])
    rest = len(members) - NAMES_SHOWN
    return f"<i>{shown}{f' and {rest} more' if rest > 0 else ''}</i>"


def _agreement(view: RunView) -> str:
    told = view.structure is not None and not view.one_branch
    found = view.result.get("groups") if told else None
    if not found or found.get("auc") is None:
        return ""
    said = "more often than by chance" if found["auc"] > 0.5 else "less often than by chance"
    if found["auc_p_value"] > BY_CHANCE:
        said = "no more than chance would give"
    if found["adjusted_rand"] > 0.999:
        said = "cut into as many groups, they are the same"
    return (
        "<b>Meaning</b>: two classes of one group of the data (superclass, folder) are more alike "
        f"in their P than two of different groups in {_per_cent(found['auc'])} of cases (guessing: "
        f"50 %): {said}."
    )


# --- compaction -----------------------------------------------------------------------------------


class _Small(NamedTuple):
    """What the compact network was measured to be."""

    share: float
    """Of the multiply-adds of the layers above the trunk."""
    dense_milliseconds: float
    compact_milliseconds: float
    batch_size: int
    accuracy: tuple[float, float]
    """In per cent: with all connections, compact."""
    images: str


def _measured(view: RunView) -> _Small | None:
    """By ``blockout compact`` where it was run, or for this page at the usual threshold."""
    path = view.folder / ABOUT
    if path.exists() and (done := files.read_json(path).get("compaction")):
        before, after = done["multiply_adds"]
        dense, compact = done["milliseconds"]
        was, now = done["test"]
        return _Small(after / before, dense, compact, done["batch_size"], (was, now), "test")
    points, about = read_curve(view.folder) or ([], {})
    if not points:
        return None
    at = min(points, key=lambda point: abs(point.threshold - USUAL))
    return _Small(
        at.carried_out, at.dense_milliseconds, at.compact_milliseconds, about["batch_size"],
        (points[0].accuracy, at.accuracy), about["images"],
    )  # fmt: skip


def _small(view: RunView) -> str:
    if view.structure is None:
        return ""
    command = f"<code>blockout compact {html.escape(shlex.quote(str(view.folder)))}</code>"
    if small := _measured(view):
        before, after = small.accuracy
        return (
            f"<b>Made compact</b>, the layers that Blockout branches and the one before them carry "
            f"out {_per_cent(small.share)} of their multiplications, and take "
            f"{small.compact_milliseconds:.2f} ms in place of "
            f"{small.dense_milliseconds:.2f} ms for {small.batch_size} images. {after:.2f} % of "
            f"the {small.images} images are correct then, {before:.2f} % before. {command} makes "
            "that network."
        )
    costs = view.structure.costs
    before = sum(cost.multiply_adds_before for cost in costs)
    after = sum(cost.multiply_adds_after for cost in costs)
    return (
        f"<b>Made compact</b>, these layers would need {after:,} of {before:,} multiply-adds "
        f"({_per_cent(after / max(before, 1))}); {command} makes that network and measures it."
    )


# --- several runs, and what the above shares ------------------------------------------------------


def _table(runs: Sequence[RunView]) -> str:
    heads = ("run", "data", "method", "nodes", "clusters", "length", "seed", "test accuracy",
             "connections left")  # fmt: skip
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in _row(view)) + "</tr>"
        for view in runs
    )
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="The runs"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _row(view: RunView) -> tuple[str, ...]:
    accuracy = _test_accuracy(view)
    return (
        view.name,
        _data(view),
        view.method + _variant(view),
        "–" if view.method == "baseline" else f"{_of_head(view, 'nodes'):,}",
        str(_of_head(view, "clusters")) if view.method == "blockout" else "–",
        _planned(view) if view.finished else f"{len(view.epochs)} of {_planned(view)} so far",
        str(view.seed),
        "–" if accuracy is None else f"{accuracy:.2f} %" + ("" if view.finished else " so far"),
        "–" if view.structure is None else _per_cent(_left(view.structure)),
    )


def _variant(view: RunView) -> str:
    if view.method != "blockout":
        return ""
    kinds = {"soft": not view.config.get("hard", True), "fixed": not view.learns}
    said = ", ".join(kind for kind, holds in kinds.items() if holds)
    return f" ({said})" if said else ""


def _warnings(view: RunView) -> str:
    said = [line["warning"] for line in view.steps if "warning" in line]
    rows = "".join(f"<li>{_text(text)}</li>" for text in said)
    return f'<ul class="warnings">{rows}</ul>' if said else ""


def _left(structure: Structure) -> float:
    before = sum(cost.pairs_before for cost in structure.costs)
    return sum(cost.pairs_after for cost in structure.costs) / before


def _data(view: RunView) -> str:
    return view.about.get("data") or view.config["data"]


def _of_head(view: RunView, name: str) -> int:
    """Nodes or clusters, as built; while it trains, as they will have been chosen."""
    head = view.about.get("model", {}).get("head", {})
    chosen = head.get(name) or view.config.get(name)
    return chosen or getattr(paper_defaults(view.config["data"]), name)


def _per_cent(share: float) -> str:
    """
    >>> _per_cent(0.221), _per_cent(0.0042)
    ('22 %', '0.42 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else f"{100 * share:.2g} %"


def _text(text: str) -> str:
    """As text in HTML, whatever its script and direction."""
    return f"<bdi>{html.escape(text)}</bdi>"
