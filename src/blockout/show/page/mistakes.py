"""The classes that are most often confused, with images and what in them was misleading."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from blockout.data import DataError
from blockout.runs import Run, RunError
from blockout.show.evidence import evidence
from blockout.show.groups import groups_to_show
from blockout.show.mistakes import Pair, confused_pairs
from blockout.show.page.pictures import picture, veil
from blockout.show.page.section import Section, bdi, html, in_detail, part
from blockout.show.selection import with_predictions

PAIRS, IMAGES_PER_PAIR, MOST_IMAGES = 8, 3, 48
LARGEST = 160
"""Pixels per side of an image."""

LEAD = """The pairs of classes that are confused most often, with the mistakes of which the network
was most certain. Below each image: what it is, what it was taken for, and how sure the network was.
Is the label wrong, is the thing hard to see, or do the classes look alike? Then mend the label, add
such photographs to the training images, or join the classes."""
NONE_LEAD = "All test images are right."
NO_MAP = """Which part of an image misled the network is not shown: its trunk gives tokens or pooled
features, not a map of the image."""
UNREADABLE = (DataError, RunError, OSError, ValueError, RuntimeError, TypeError, ImportError)
"""What stands in the way of data and networks that come from elsewhere."""


class _Image(NamedTuple):
    """A mistake, to be drawn."""

    uri: str
    veil: str
    """Over it: clear where it misled the network; empty if that is not known."""


def section(runs: Sequence[Run]) -> Section | None:
    """Confused pairs of each run that was tested."""
    able = [run for run in with_predictions(runs) if len(run.classes) > 1]
    shown, left_out = in_detail(able, 2)
    if not shown:
        return None
    parts = [_run(run, MOST_IMAGES // len(shown), len(shown) > 1) for run in shown]
    body = Markup().join(parts)
    switch = part("veil_switch") if 'class="veil"' in body else Markup()
    wrong = any(np.trace(run.confusion) < run.confusion.sum() for run in shown)  # pyright: ignore
    lead = LEAD if wrong else NONE_LEAD
    return Section("mistakes", "What it gets wrong", lead + left_out, switch + body)


def _run(run: Run, most_images: int, named: bool) -> Markup:
    groups = groups_to_show(run)
    within, between = (confused_pairs(run, together, PAIRS) for together in (True, False))
    each = min(IMAGES_PER_PAIR, most_images // max(len(within) + len(between), 1))
    images, complaint = _images(run, [i for p in (*within, *between) for i in p.images[:each]])
    kind = "learned group" if groups.learned else "group"
    titles = ("", "")
    if len(groups.names) > 1:
        titles = (f"Confused within a {kind}", f"Confused across {kind}s")
    body = html("<h3>{}</h3>", bdi(run.name)) if named else Markup()
    body += html('<p class="small">{}</p>', complaint) if complaint else Markup()
    for title, pairs in zip(titles, (within, between), strict=True):
        body += part("pairs", title, [_card(run, pair, images, each) for pair in pairs])
    return body


def _images(run: Run, chosen: Sequence[int]) -> tuple[dict[int, _Image], str]:
    """These test images with what misled the network; and what of it cannot be shown, and why."""
    if not chosen:
        return {}, ""
    assert run.predictions is not None
    try:
        test = run.images().test
        if test.labels.tolist() != run.predictions.labels.tolist():
            raise DataError("it has changed since this run was tested")
        pixels = test.images_at(list(chosen)).numpy()
    except UNREADABLE as error:
        return {}, f"The images are not shown, because the data cannot be read here: {error}"
    veils, complaint = _veils(run, pixels, run.predictions.classes[list(chosen), 0].tolist())
    drawn = [_Image(picture(p, LARGEST), v) for p, v in zip(pixels, veils, strict=True)]
    return dict(zip(chosen, drawn, strict=True)), complaint


def _veils(run: Run, pixels: np.ndarray, said: Sequence[int]) -> tuple[list[str], str]:
    """A veil per image, empty without; if there are none, why."""
    nothing = [""] * len(pixels)
    try:
        maps = evidence(run, pixels, said)
    except UNREADABLE as error:
        told = "Which part of an image misled the network is not shown, because the network cannot"
        return nothing, f"{told} be used here: {error}"
    if maps is None:
        return nothing, NO_MAP
    return [veil(found) if found.any() else "" for found in maps], ""


def _card(run: Run, pair: Pair, images: dict[int, _Image], each: int) -> tuple[object, ...]:
    """For the template: both classes, how often, each direction in words, the images."""
    assert run.confusion is not None
    shown = [_mistake(run, i, images[i]) for i in pair.images[:each] if i in images]
    ways = [_direction(run, a, b) for a, b in (pair.classes, pair.classes[::-1])]
    names = [(c, broken_name(run, c)) for c in pair.classes]
    return names, pair.count, Markup("; ").join(way for way in ways if way), shown


def _direction(run: Run, true: int, said: int) -> Markup:
    """How many images of one class were taken for the other, in words; empty if none."""
    assert run.confusion is not None
    count, of = run.confusion[true, said], run.confusion[true].sum()
    if not count:
        return Markup()
    return html(
        "{} of {} {} taken for {}", count, of, broken_name(run, true), broken_name(run, said)
    )


def _mistake(run: Run, image: int, drawn: _Image) -> tuple[object, ...]:
    assert run.predictions is not None
    labels, predicted, probabilities = run.predictions
    true, said = int(labels[image]), int(predicted[image, 0])
    sure = f"{100 * probabilities[image, 0]:.0f} % sure"
    alt = f"{run.classes[true]} taken for {run.classes[said]}"
    return (
        drawn,
        alt,
        broken_name(run, true),
        broken_name(run, said),
        sure,
    )


def broken_name(run: Run, number: int) -> Markup:
    """A narrow line may break after an underscore."""
    return html("<bdi>{}</bdi>", Markup("_<wbr>").join(run.classes[number].split("_")))
