"""The summary at the top of the page: what was trained, how well it does, what came out."""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from blockout.data import DataConfig
from blockout.runs import Run, TrainConfig
from blockout.runs import folder as files
from blockout.show.methods import METHODS, variant
from blockout.show.page.drawing import layer_called
from blockout.show.page.section import Section, bdi, html, part
from blockout.structure import Structure
from blockout.training.compaction import USUAL

LEAD = """Blockout trains a network whose nodes can belong to several branches, and learns for each
node the chance P that it belongs to each branch. Two nodes are connected if they share a branch, so
the network finds its own hierarchy while it trains. A branch is what the paper, the documentation
and the commands call a cluster."""
LEAD_WITHOUT = "An image classifier, trained without Blockout, to compare others with."
GUIDED = " Training was guided: towards few branches per node, with {alike} in the same ones."
UNGUIDED = " The branches were learned from the classification loss alone, as in the paper."
DRAWN = "Blockout, which draws new branches in every step"
FIXED = " P was not learned: it stayed at one half, so no branches are left in the end."
ONE_BRANCH = """each node has the same P for all {} branches, so they are one and the same; the size
of P only says how much a node counts."""
SOFT = " Branches that start alike and are never drawn (soft) have nothing to tell them apart."
GROUPS_SHOWN, NAMES_SHOWN = 3, 6
BY_CHANCE = 0.05
"""An agreement with a larger p-value says nothing."""
HEADS = (
    *("run", "data", "method", "nodes", "clusters", "length", "seed"),
    *("test accuracy", "connections left"),
)
NOT_REPEATED = ("run", "restart", "cache", "workers")


def section(runs: Sequence[Run]) -> Section:
    """The story of one run; for several, a table and the story of each to unfold."""
    lead = LEAD if any(run.method == "blockout" for run in runs) else LEAD_WITHOUT
    if len(runs) == 1:
        return Section("summary", "In short", lead, _story(runs[0]))
    table = part("table", "The runs", HEADS, [_row(run) for run in runs])
    body = part("stories", table, [(run.name, _story(run)) for run in runs])
    return Section("summary", "In short", lead, body)


def _story(run: Run) -> Markup:
    sentences = (_trained, _accuracy, _structure, _agreement, _compact, _missing)
    warnings = [entry.warning for entry in run.warnings]
    told = [sentence(run) for sentence in sentences]
    return part("story", _tiles(run), told, warnings, command(run), _made_with(run))


def _tiles(run: Run) -> list[tuple[str, str]]:
    """The numbers to remember."""
    tiles = []
    if run.test_accuracy is not None:
        so_far = "" if run.finished else " so far"
        tiles.append((f"{run.test_accuracy:.1f} %", f"of the test images correct{so_far}"))
    if run.structure is not None:
        if not run.one_branch:
            tiles.append((str(len(run.structure.class_groups)), "groups of classes"))
        tiles.append((_per_cent(run.structure.total.left), "of the connections left"))
        if small := _measured(run):
            times = small.dense_milliseconds / small.compact_milliseconds
            tiles.append((f"{times:.1f} ×", "as fast above the trunk, once compact"))
    return tiles


def _row(run: Run) -> tuple[str, ...]:
    so_far, accuracy, model = "" if run.finished else " so far", run.test_accuracy, run.config.model
    kind = variant(run.recipe)
    return (
        run.name,
        bdi(run.data_name),
        run.method + (f" ({kind})" if kind else ""),
        "–" if run.method == "baseline" else f"{model.nodes:,}",
        str(model.clusters) if run.method == "blockout" else "–",
        _planned(run) if run.finished else f"{len(run.epochs)} of {_planned(run)} so far",
        str(run.seed),
        "–" if accuracy is None else f"{accuracy:.2f} %{so_far}",
        "–" if run.structure is None else _per_cent(run.structure.total.left),
    )


# --- the sentences --------------------------------------------------------------------------------


def _trained(run: Run) -> Markup:
    classes = f", {len(run.classes)} classes" if run.classes else ""
    fixed = run.method == "blockout" and not run.learned
    method = DRAWN if fixed else METHODS[run.method].in_words
    text = html("<b>Trained</b> on {}{}, with {}", bdi(run.data_name), classes, method)
    if run.method != "baseline":
        text += f": two layers of {run.config.model.nodes:,} nodes"
    if run.method == "blockout":
        text += f" in {run.config.model.clusters} branches (clusters)"
    text += f". {_length(run)}, seed {run.seed}."
    if run.method != "blockout":
        return text
    known = run.config.optimisation.affinity_from == "groups"
    guided = GUIDED.format(alike="classes of one known group" if known else "similar classes")
    return text + (FIXED if fixed else guided if run.config.guided else UNGUIDED)


def _length(run: Run) -> str:
    planned = _planned(run)
    if run.result is None:
        step = max((entry.step for entry in (*run.steps, *run.epochs)), default=0)
        return f"So far it has reached step {step:,}; {planned} are planned"
    steps, minutes = run.result.steps, run.result.seconds / 60
    took = f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{60 * minutes:.0f} seconds"
    return f"{planned}{f' ({steps:,} steps)' if 'epoch' in planned else ''} took {took}"


def _planned(run: Run) -> str:
    steps, epochs = run.config.optimisation.steps, run.config.epochs
    return f"{steps:,} steps" if steps else f"{epochs} epoch{'s' if epochs != 1 else ''}"


def _accuracy(run: Run) -> Markup:
    if run.result is not None:
        test, classes = run.result.test, len(run.classes)
        guessing = f" (guessing: {100 / classes:.2g} %)" if classes else ""
        top = f"; {test.top5:.2f} % are among its first five guesses" if classes > 5 else ""
        correct = f"{test.accuracy:.2f} % of the test images are correct"
        return html("<b>Accuracy</b>: {}{}{}.", correct, guessing, top)
    if not run.epochs:
        return Markup("No epoch is finished yet, so there is no accuracy to show.")
    last, test = run.epochs[-1], run.test_accuracy
    tested = "" if test is None else f" and {test:.1f} % of the test images"
    so_far = f"{last.train_accuracy:.1f} % of the training images{tested} are correct"
    return html("<b>Accuracy so far</b>, after epoch {}: {}.", last.epoch, so_far)


def _structure(run: Run) -> Markup:
    found = run.structure
    if found is None:
        return Markup()
    shares = " and ".join(
        f"{_per_cent(cost.left)} of those of {layer_called(cost.layer.name)}"
        for cost in found.costs
    )
    left = (
        "Connections are left where two nodes share a branch with P of at least "
        f"{found.threshold:g}: {shares}."
    )
    if run.one_branch:
        told = ONE_BRANCH.format(found.class_set.clusters)
        soft = "" if run.config.model.hard else SOFT
        return html("<b>Structure</b>: {}{} {}", told, soft, left)
    groups, known = found.class_groups, len(set(found.taxonomy or ()))
    mean = sum(found.class_set.cluster_sizes) / len(found.classes)
    count = f"{len(groups)} group{'s' if len(groups) > 1 else ''}"
    chosen = " (as many as the known groups of the data)" if len(groups) == known else ""
    largest = Markup("; ").join(_names(found, group.members) for group in groups[:GROUPS_SHOWN])
    more = f" and {len(groups) - GROUPS_SHOWN} more" if len(groups) > GROUPS_SHOWN else ""
    average = f"{mean:.1f} of the {found.class_set.clusters} branches on average"
    return html(
        "<b>Structure</b>: by the branches they use, the classes fall into {}{}: {}{}. A class is "
        "in {} (P of at least {:g}). {}",
        *(count, chosen, largest, more, average, found.threshold, left),
    )


def _names(structure: Structure, members: Sequence[int]) -> Markup:
    shown = Markup(", ").join(bdi(structure.classes[c]) for c in members[:NAMES_SHOWN])
    rest = len(members) - NAMES_SHOWN
    return html("<i>{}{}</i>", shown, f" and {rest} more" if rest > 0 else "")


def _agreement(run: Run) -> Markup:
    found = None if run.result is None else run.result.groups
    if run.structure is None or run.one_branch or found is None:
        return Markup()
    if found.auc is None or found.auc_p_value is None:
        return Markup()
    said = "more often than by chance" if found.auc > 0.5 else "less often than by chance"
    if found.auc_p_value > BY_CHANCE:
        said = "no more often than chance would give"
    if found.adjusted_rand > 0.999:
        said = "cut into as many groups, they are the same"
    return html(
        "<b>Meaning</b>: two classes of one group of the data (superclass, folder) are more alike "
        "in their P than two of different groups in {} of cases (guessing: 50 %): {}.",
        *(_per_cent(found.auc), said),
    )


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


def _measured(run: Run) -> _Small | None:
    """By ``blockout compact`` if it was run, else by ``blockout report`` at the usual threshold."""
    if done := run.compacted:
        before, after = done.multiply_adds
        return _Small(after / before, *done.milliseconds, done.batch_size, done.test, "test")
    curve = run.compaction
    if curve is None or not curve.points:
        return None
    at = min(curve.points, key=lambda point: abs(point.threshold - USUAL))
    both = curve.points[0].accuracy, at.accuracy
    times = at.dense_milliseconds, at.compact_milliseconds
    return _Small(at.carried_out, *times, curve.batch_size, both, curve.images)


def _compact(run: Run) -> Markup:
    if run.structure is None:
        return Markup()
    command = html("<code>blockout compact {}</code>", shlex.quote(str(run.folder)))
    if small := _measured(run):
        before, after = small.accuracy
        return html(
            "<b>Once compact</b>, the layers that Blockout branches and the one before them carry "
            "out {} of their multiplications, and take {:.2f} ms instead of {:.2f} ms for {} "
            "images. {:.2f} % of the {} images are correct then, {:.2f} % before. {} makes that "
            "network.",
            *(_per_cent(small.share), small.compact_milliseconds, small.dense_milliseconds),
            *(small.batch_size, after, small.images, before, command),
        )
    costs = run.structure.costs
    before = sum(cost.multiply_adds_before for cost in costs)
    after = sum(cost.multiply_adds_after for cost in costs)
    return html(
        "<b>Once compact</b>, these layers would need {:,} of {:,} multiply-adds ({}); {} makes "
        "that network and measures it.",
        *(after, before, _per_cent(after / max(before, 1)), command),
    )


def _missing(run: Run) -> str:
    """Files that a finished run has lost, or never had: those of a user's own model."""
    if not run.finished:
        return ""
    there = {files.MODEL: run.description, files.PREDICTIONS: run.predictions}
    if run.learned:
        there[files.MEMBERSHIPS] = run.memberships or None
    lost = [name for name, value in there.items() if value is None]
    if not lost:
        return ""
    return f"The run folder holds no {' and no '.join(lost)}, so part of the page is missing."


def _per_cent(share: float) -> str:
    """
    >>> _per_cent(0.221), _per_cent(0.0042)
    ('22 %', '0.42 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else f"{100 * share:.2g} %"


# --- how to train it again ------------------------------------------------------------------------


def command(run: Run) -> str:
    """As it was typed, or from the config if it was trained from Python or with a config file.

    Leaves out the folder, which is taken.
    """
    words = _words(run.environment.command)
    if words[1:2] == ["train"] and not any(word.startswith("--config") for word in words):
        return shlex.join(["blockout", *_without_folder(words[1:])])
    flags = []
    for name, value in _chosen(run).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        flags += [f"--{name.replace('_', '-')}", text]
    return shlex.join(["blockout", "train", *flags])


def _chosen(run: Run) -> dict[str, object]:
    """Settings that differ from what training on the same images uses by default."""
    config = run.config
    by_default = TrainConfig(DataConfig(config.data.data)).resolved(
        image_size=config.data.image_size,
        steps=None if run.result is None else run.result.steps,
        stream=config.data.stream,
    )
    defaults = by_default.flat() | {"data": TrainConfig().data.data}
    return {
        name: value
        for name, value in config.flat().items()
        if name not in NOT_REPEATED and value is not None and value != defaults[name]
    }


def _words(command: str) -> list[str]:
    """As a shell splits it; at its spaces if quotes do not close."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _without_folder(words: Sequence[str]) -> list[str]:
    """
    >>> _without_folder(["train", "--run", "a", "--seed", "1", "--restart", "--run=b"])
    ['train', '--seed', '1']
    """
    left_out = [i for i, word in enumerate(words) if re.match(r"--(run|restart)(=|$)", word)]
    left_out += [i + 1 for i in left_out if words[i] == "--run"]
    return [word for i, word in enumerate(words) if i not in left_out]


def _made_with(run: Run) -> list[str]:
    made, machine = run.environment, run.environment.machine
    names = [name for name in ("blockout", "torch", "python") if name in made.versions]
    told = [f"{name} {made.versions[name]}" for name in names]
    told.append(f"commit {made.commit}" if made.commit else "")
    told.append(machine.accelerator or machine.processor)
    told.append(f"{machine.cores} cores" if machine.cores else "")
    return [text for text in told if text]
