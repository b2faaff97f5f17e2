"""The classes that are most often confused, within groups and between them, with images."""

from collections.abc import Sequence

from markupsafe import Markup

from blockout.data import DataError
from blockout.runs import Run, RunError
from blockout.show.groups import groups_to_show
from blockout.show.mistakes import Pair, confused_pairs
from blockout.show.page.pictures import picture
from blockout.show.page.section import Section, bdi, html, in_detail, part
from blockout.show.selection import with_predictions

PAIRS, IMAGES_PER_PAIR, MOST_IMAGES = 8, 4, 60
LARGEST = 96
"""Pixels per side of an image."""

LEAD = """The pairs of classes that are confused most often, in both directions together, with the
mistakes of which the network was most certain. Below each image: what it is, what it was taken for,
and how probable the network found that."""


def section(runs: Sequence[Run]) -> Section | None:
    """Confused pairs of each run that was tested."""
    able = [run for run in with_predictions(runs) if len(run.classes) > 1]
    shown, left_out = in_detail(able, 2)
    if not shown:
        return None
    parts = [_run(run, MOST_IMAGES // len(shown), len(shown) > 1) for run in shown]
    return Section("mistakes", "Mistakes", LEAD + left_out, Markup().join(parts))


def _run(run: Run, most_images: int, named: bool) -> Markup:
    groups = groups_to_show(run)
    within, between = (confused_pairs(run, together, PAIRS) for together in (True, False))
    each = min(IMAGES_PER_PAIR, most_images // max(len(within) + len(between), 1))
    images, complaint = _images(run, [i for p in (*within, *between) for i in p.images[:each]])
    kind = "learned group" if groups.learned else "group"
    titles = (f"Within a {kind}", f"Between {kind}s") if len(groups.names) > 1 else ("", "")
    body = html("<h3>{}</h3>", bdi(run.name)) if named else Markup()
    body += html("<p>{}</p>", complaint) if complaint else Markup()
    for title, pairs in zip(titles, (within, between), strict=True):
        body += part("pairs", title, [_card(run, pair, images, each) for pair in pairs])
    return body


def _images(run: Run, chosen: Sequence[int]) -> tuple[dict[int, str], str]:
    """Data URIs of these test images; if there are none, why."""
    if not chosen:
        return {}, ""
    try:
        test = run.images().test
        if not run.predictions or test.labels.tolist() != run.predictions.labels.tolist():
            raise DataError("it has changed since this run was tested")
        pixels = test.images_at(list(chosen)).numpy()
    except (DataError, RunError, OSError, ValueError, RuntimeError, TypeError) as error:
        return {}, f"The images are not shown, because the data cannot be read here: {error}"
    uris = [picture(image, LARGEST) for image in pixels]
    return dict(zip(chosen, uris, strict=True)), ""


def _card(run: Run, pair: Pair, images: dict[int, str], each: int) -> tuple[object, ...]:
    """For the template: both names, how often, each direction in words, the images."""
    assert run.confusion is not None
    (one, other), (a, b) = pair.classes, (_name(run, c) for c in pair.classes)
    counts = run.confusion[one, other], run.confusion[other, one]
    told = html("{0} taken for {1}: {2}; {1} taken for {0}: {3}", a, b, *counts)
    shown = [_mistake(run, i, images[i]) for i in pair.images[:each] if i in images]
    return a, b, pair.count, told, shown


def _mistake(run: Run, image: int, uri: str) -> tuple[str, ...]:
    assert run.predictions is not None
    labels, predicted, probabilities = run.predictions
    true, said = int(labels[image]), int(predicted[image, 0])
    alt = f"{run.classes[true]} taken for {run.classes[said]}"
    return uri, alt, _name(run, true), _name(run, said), f"{probabilities[image, 0]:.0%}"


def _name(run: Run, number: int) -> Markup:
    """A narrow line may break after an underscore."""
    return html("<bdi>{}</bdi>", Markup("_<wbr>").join(run.classes[number].split("_")))
