"""The summary at the top of the page: how well it does, bad news first, and what to do next."""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from blockout.runs import Run
from blockout.runs import folder as files
from blockout.runs.documents import Result
from blockout.show.methods import METHOD_NAMES, variant
from blockout.show.mistakes import WEAK, weakest_classes
from blockout.show.page.drawing import layer_called
from blockout.show.page.repeating import command, made_with
from blockout.show.page.section import Section, bdi, html, part
from blockout.show.verdict import bad_news, guessing, margin
from blockout.structure import Structure
from blockout.training.compaction import USUAL
from blockout.training.whole import gain

LEAD = """An image classifier: how good it is, what it gets wrong, and how its network has divided
itself into branches. The further down, the more it is about how Blockout works."""
LEAD_WITHOUT = """An image classifier, trained without Blockout: how good it is, and what it gets
wrong."""
WORDS = (
    ("Blockout", """trains a network that divides itself into branches: parts that specialise in
some of the classes. Two nodes of its layers are connected only if they share a branch."""),
    ("branch", "what the paper, the documentation and the commands call a cluster."),
    ("node", "one of the numbers that a layer computes. Every class is a node too, the last one."),
    ("P", """the chance that a node belongs to a branch; training learns it. 0 is never, 1 is
always."""),
    ("trunk, head", """the trunk turns an image into features; the head turns features into a class.
Branches are in the head."""),
    ("test images", "images that training never saw; all results are about them."),
    ("hold-out", """training images set aside to choose by: the best moment of training, and
thresholds."""),
    ("epoch", "one pass over all training images."),
)  # fmt: skip
GUIDED = " Training was guided: towards few branches per node, with {alike} in the same ones."
LEFT_WHOLE = " Training was guided, but the guide left the network whole."
UNGUIDED = " The branches were learned from the classification loss alone, as in the paper."
BESIDE = "; beside them a linear classifier, and the answer is the mean of both"
DRAWN = "Blockout, which draws new branches in every step"
FIXED = " P was not learned: it stayed at one half, so no branches are left in the end."
ONE_BRANCH = """each node has the same P for all {} branches, so they are one and the same; the size
of P only says how much a node counts."""
UNDIVIDED = """every node is in all {} branches, so nothing divides the network and all its
connections are left."""
SOFT = " Branches that start alike and are never drawn (soft) have nothing to tell them apart."
GROUPS_SHOWN, NAMES_SHOWN = 3, 6
BRANCH_WORDS = ("Blockout", "branch", "node", "P", "trunk, head")
FLAGS = re.compile(
    r"(?<![\w-])(--[a-z][a-z0-9-]*(?: (?:[\d.]*\d|baseline|efficientnet-lite0))?|\w+\.safetensors)"
)
"""As they stand in warnings, with the values that those propose."""
FASTER = 1.1
"""Below so many times as fast, nothing is gained."""
WEAKEST = 6
"""Classes that are named as weak."""
BY_CHANCE = 0.05
"""An agreement with a larger p-value says nothing."""
HEADS = (
    *("run", "data", "method", "nodes", "clusters", "length", "seed"),
    *("test accuracy", "connections left"),
)


def section(runs: Sequence[Run]) -> Section:
    """The story of one run; for several, a table and the story of each to unfold."""
    branched = any(run.method == "blockout" for run in runs)
    lead = LEAD if branched else LEAD_WITHOUT
    if len(runs) == 1:
        body = _story(runs[0])
    else:
        table = part("table", "The runs", HEADS, [_row(run) for run in runs])
        body = part("stories", table, [(run.name, _story(run)) for run in runs])
    used = [row for row in WORDS if branched or row[0] not in BRANCH_WORDS]
    return Section("summary", "In short", lead, body + part("words", used))


def _story(run: Run) -> Markup:
    sentences = (_accuracy, _trained, _structure, _agreement, _compact, _missing)
    told = [sentence(run) for sentence in sentences]
    news = [_with_flags(text) for text in bad_news(run)]
    return part(
        *("story", _tiles(run), news, _weakest(run), told),
        *(_next_steps(run), command(run), made_with(run)),
    )


def _with_flags(text: str) -> Markup:
    """Plain text with its flags and file names as code.

    >>> print(_with_flags("use --epochs <5>, see best.safetensors"))
    use <code>--epochs</code> &lt;5&gt;, see <code>best.safetensors</code>
    """
    return Markup(FLAGS.sub(r"<code>\1</code>", str(escape(text))))


def _weakest(run: Run) -> tuple[str, list[tuple[object, ...]]]:
    """What to call them; for each its number, name, accuracy, images, and what it is taken for."""
    weak = weakest_classes(run, WEAKEST, WEAK) or weakest_classes(run, 3)
    title = "It is more often wrong than right about"
    if weak and weak[0].accuracy >= WEAK:
        title = "Its weakest classes"
    rows = []
    for one in weak:
        other = "" if one.taken_for is None else run.classes[one.taken_for]
        rows.append((one.number, run.classes[one.number], f"{one.accuracy:.0f}", one.count, other))
    return title, rows


def _next_steps(run: Run) -> list[tuple[str, str]]:
    """What to do with it, and the command."""
    if not run.finished or run.description is None:
        return []
    folder = shlex.quote(str(run.folder))
    steps = [("Try it on your own images", f"blockout predict {folder} IMAGE")]
    steps.append(("Score it on other labelled images", f"blockout evaluate {folder} --data FOLDER"))
    small = _measured(run)
    if run.learned and not run.whole and (small is None or small.share < 1):
        steps.append(("Make it smaller and faster", f"blockout compact {folder}"))
    steps.append(
        ("Take it to another program or device", f"blockout export {folder} --format onnx")
    )
    return steps


def _tiles(run: Run) -> list[tuple[str, str]]:
    """The numbers to remember."""
    tiles = []
    if run.test_accuracy is not None:
        so_far = "" if run.finished else " so far"
        tiles.append((f"{run.test_accuracy:.1f} %", f"of the test images correct{so_far}"))
    if run.structure is not None and not run.whole:
        if not run.one_branch:
            tiles.append((str(len(run.structure.class_groups)), "groups of classes"))
        tiles.append((_per_cent(run.structure.total.left), "of the connections left"))
        if small := _measured(run):
            times = small.dense_milliseconds / small.compact_milliseconds
            if times >= FASTER and small.share < 1:
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
    method = DRAWN if fixed else METHOD_NAMES[run.method].in_words
    counts = None if run.result is None else run.result.images
    images = "" if counts is None else f", {counts.train:,} training images"
    text = html("<b>Trained</b> on {}{}{}, with {}", bdi(run.data_name), classes, images, method)
    if run.method != "baseline":
        text += f": two layers of {run.config.model.nodes:,} nodes"
    if run.method == "blockout":
        text += f" in {run.config.model.clusters} branches (clusters)"
    if run.config.model.with_linear:
        text += BESIDE
    text += f". {_length(run)}, seed {run.seed}."
    if run.method != "blockout":
        return text
    known = run.config.optimisation.affinity_from == "groups"
    guided = GUIDED.format(alike="classes of one known group" if known else "similar classes")
    guided = LEFT_WHOLE if run.whole else guided
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
    steps, epochs = run.config.steps, run.config.epochs
    return f"{steps:,} steps" if steps else f"{epochs} epoch{'s' if epochs != 1 else ''}"


def _accuracy(run: Run) -> Markup:
    if run.result is not None:
        test, classes = run.result.test, len(run.classes)
        top = f"; {test.top5:.2f} % are among its first five guesses" if classes > 5 else ""
        count = 0 if run.predictions is None else len(run.predictions.labels)
        of = f" {count:,}" if count else ""
        sure = f" (give or take {margin(test.accuracy, count):.1f} points)" if count else ""
        correct = f"{test.accuracy:.2f} % of the{of} test images are correct{sure}"
        return html(
            "<b>Accuracy</b>: {}{}. {}",
            correct,
            top,
            _beside(run.result, classes, bool(run.config.model.with_linear)),
        )
    if not run.epochs:
        return Markup("No epoch is finished yet, so there is no accuracy to show.")
    last, test = run.epochs[-1], run.test_accuracy
    tested = "" if test is None else f" and {test:.1f} % of the test images"
    so_far = f"{last.train_accuracy:.1f} % of the training images{tested} are correct"
    return html("<b>Accuracy so far</b>, after epoch {}: {}.", last.epoch, so_far)


def _beside(result: Result, classes: int, with_linear: bool) -> str:
    """What the accuracy stands beside: a simpler method on the same features, and guessing."""
    told = []
    if result.linear is not None:
        ahead = result.test.accuracy - result.linear.accuracy
        than = f"{abs(ahead):.1f} points {'less' if ahead >= 0 else 'more'}"
        which = "The linear classifier beside the layers, alone," if with_linear else ""
        features = "the same features" if result.tuning is None else "features before fine-tuning"
        which = which or f"A linear classifier on {features}"
        told.append(f"{which} gets {result.linear.accuracy:.2f} % ({than})")
    if result.layers is not None:
        which = "the layers without it" if told else "The layers without their linear classifier"
        told.append(f"{which} get {result.layers.accuracy:.2f} %")
    if (chance := guessing(result, classes)) is not None:
        told.append(f"{'guessing' if told else 'Guessing'} gets {chance:.1f} %")
    return " ".join([*([f"{', '.join(told)}."] if told else []), *_tuned(result)])


def _tuned(result: Result) -> list[str]:
    """What fine-tuning of the trunk changed, in a sentence."""
    tuning = result.tuning
    if tuning is None:
        return []
    was, now = (scores.accuracy for scores in tuning.test)
    text = f"Before the trunk was fine-tuned it was {was:.2f} %, after it {now:.2f} %"
    by = (
        "on the hold-out both do equally well but for chance; by the loss,"
        if tuning.tied
        else "by the hold-out,"
    )
    which = "of before" if tuning.kept == "start" else "of after"
    told = tuning.tied or tuning.kept == "start"
    return [f"{text}; {by} the network {which} was kept." if told else f"{text}."]


def _structure(run: Run) -> Markup:
    found = run.structure
    if found is None:
        return Markup()
    if run.whole:
        return html("<b>Structure</b>: {}", UNDIVIDED.format(found.class_set.clusters))
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
    count = f"{len(groups)} group{'s' if len(groups) > 1 else ''}"
    chosen = " (as many as the known groups of the data)" if len(groups) == known else ""
    largest = Markup("; ").join(_names(found, group.members) for group in groups[:GROUPS_SHOWN])
    more = f" and {len(groups) - GROUPS_SHOWN} more" if len(groups) > GROUPS_SHOWN else ""
    return html(
        "<b>Structure</b>: by the branches they use, the classes fall into {}{}: {}{}. {}. {}",
        *(count, chosen, largest, more, _branches_of_classes(found), left),
    )


def _branches_of_classes(found: Structure) -> str:
    """How many branches classes have; an average only where it says something."""
    counts = [len(code) for code in found.class_set.codes]
    of, least = (
        f"of the {found.class_set.clusters} branches",
        f"(P of at least {found.threshold:g})",
    )
    if min(counts) == max(counts):
        return f"Every class is in {counts[0] or 'none'} {of} {least}"
    return f"A class is in {sum(counts) / len(counts):.1f} {of} on average {least}"


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


def _whole(run: Run) -> str:
    """What that is worth for the whole network, trunk and head."""
    for measured in (run.compacted, run.compaction):
        if measured is not None and measured.network is not None:
            return f"{gain(measured.network)} "
    return ""


def _compact(run: Run) -> Markup:
    if run.structure is None or run.whole:
        return Markup()
    command = html("<code>blockout compact {}</code>", shlex.quote(str(run.folder)))
    small = _measured(run)
    if small is not None and small.share >= 1:
        return html(
            "<b>Once compact</b>, the head (the layers above the trunk) stays as it is: with {} of "
            "its connections left, separate blocks would not be faster.",
            _per_cent(run.structure.total.left),
        )
    if small is not None:
        before, after = small.accuracy
        return html(
            "<b>Once compact</b>, the head (the layers above the trunk) carries out {} of its "
            "multiplications, and takes {:.2f} ms instead of {:.2f} ms for {} images. {}{:.2f} % "
            "of the {} images are correct then, {:.2f} % before. {} makes that network.",
            *(_per_cent(small.share), small.compact_milliseconds, small.dense_milliseconds),
            *(small.batch_size, _whole(run), after, small.images, before, command),
        )
    total = run.structure.total
    before, after = total.multiply_adds_before, total.multiply_adds_after
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
