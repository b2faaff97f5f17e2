"""The classes that are most often taken for each other, within groups and between them."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from blockout.data import DataError
from blockout.report.grouping import groups_to_show
from blockout.report.pictures import picture
from blockout.report.section import Section
from blockout.report.selection import in_detail, with_predictions
from blockout.report.view import RunView
from blockout.training import RunError, TrainConfig, load_images

PAIRS, IMAGES_A_PAIR, MOST_IMAGES = 8, 4, 60
LARGEST = 96
"""Pixels a side of an image."""

LEAD = (
    "The pairs of classes that are confused most often, in both directions together, with the "
    "mistakes of which the network was most certain. Under each image: what it is, what it was "
    "taken for, and how probable the network found that."
)
STYLE = """<style>
.mistakes{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,17em),1fr));gap:.8em}
.mistakes .pair{border:1px solid rgba(128,128,128,.35);border-radius:8px;padding:.5em .8em}
.mistakes .pair h4{margin:.1em 0 .4em;font-size:1em;overflow-wrap:anywhere}
.mistakes .images{display:flex;flex-wrap:wrap;gap:.5em}
.mistakes figure{margin:0;width:76px;font-size:.72em;line-height:1.25;
 overflow-wrap:break-word;hyphens:auto}
.mistakes img{width:76px;height:76px;object-fit:cover;border-radius:4px}
</style>"""


def section(runs: Sequence[RunView]) -> Section | None:
    """Confused pairs of each run that was tested."""
    able = [run for run in with_predictions(runs) if len(run.classes) > 1]
    shown, left_out = in_detail(able, 2)
    if not shown:
        return None
    parts = [_run(run, MOST_IMAGES // len(shown), len(shown) > 1) for run in shown]
    return Section("mistakes", "Mistakes", LEAD + left_out, STYLE + "".join(parts))


@dataclass(frozen=True)
class Pair:
    """Two classes, and the test images of the one that were taken for the other."""

    classes: tuple[int, int]
    count: int
    images: tuple[int, ...]
    """Indices of the mistakes, the most certain first."""


def confused_pairs(run: RunView, together: bool, most: int) -> list[Pair]:
    """The most confused pairs of classes of one group (``together``) or of two, the worst first."""
    assert run.confusion is not None
    group = groups_to_show(run).of_class
    both = np.triu(run.confusion + run.confusion.T, 1)
    both = both * ((group[:, None] == group[None, :]) == together)
    worst = np.argsort(-both, axis=None, kind="stable")[:most]
    found = [divmod(int(cell), len(both)) for cell in worst]
    return [Pair((a, b), int(both[a, b]), _mistaken(run, a, b)) for a, b in found if both[a, b] > 0]


def _mistaken(run: RunView, a: int, b: int) -> tuple[int, ...]:
    assert run.labels is not None and run.predicted is not None and run.probabilities is not None
    said = run.predicted[:, 0]
    own = np.flatnonzero(((run.labels == a) & (said == b)) | ((run.labels == b) & (said == a)))
    certain = np.argsort(-run.probabilities[own, 0], kind="stable")
    return tuple(own[certain].tolist())


def _run(run: RunView, most_images: int, named: bool) -> str:
    groups = groups_to_show(run)
    within = confused_pairs(run, True, PAIRS)
    between = confused_pairs(run, False, PAIRS)
    each = min(IMAGES_A_PAIR, most_images // max(len(within) + len(between), 1))
    chosen = [image for pair in (*within, *between) for image in pair.images[:each]]
    images, complaint = _images(run, chosen)
    kind = "learned group" if groups.learned else "group"
    titled = len(groups.names) > 1
    parts = [f"<h3><bdi>{html.escape(run.name)}</bdi></h3>" if named else ""]
    parts.append(f"<p>{html.escape(complaint)}</p>" if complaint else "")
    for title, pairs in ((f"Within a {kind}", within), (f"Between {kind}s", between)):
        if pairs:
            parts.append(f"<h3>{title}</h3>" if titled else "")
            cards = "".join(_card(run, pair, images, each) for pair in pairs)
            parts.append(f'<div class="mistakes">{cards}</div>')
        elif titled:
            parts.append(f"<h3>{title}</h3><p>No mistakes.</p>")
    return "".join(parts)


def _images(run: RunView, chosen: Sequence[int]) -> tuple[dict[int, str], str]:
    """Data URIs of these test images; without them, why there are none."""
    if not chosen:
        return {}, ""
    try:
        pixels = _load(run, chosen)
    except (DataError, RunError, OSError, ValueError, RuntimeError, TypeError) as error:
        return {}, f"The images are not shown, because the data cannot be read here: {error}"
    uris = [picture(image, LARGEST) for image in pixels]
    return dict(zip(chosen, uris, strict=True)), ""


def _load(run: RunView, chosen: Sequence[int]) -> UInt8[np.ndarray, "n height width 3"]:
    data = load_images(TrainConfig.from_flat(run.config))
    if run.labels is None or not np.array_equal(data.test.labels.numpy(), run.labels):
        raise DataError("it has changed since this run was tested")
    return data.test.images_at(list(chosen)).numpy()


def _card(run: RunView, pair: Pair, images: dict[int, str], each: int) -> str:
    a, b = (_name(run, c) for c in pair.classes)
    times = f"{pair.count} time{'s' if pair.count > 1 else ''}"
    shown = "".join(
        _mistake(run, image, images[image]) for image in pair.images[:each] if image in images
    )
    pictures = f'<div class="images">{shown}</div>' if shown else f"<p>{_directions(run, pair)}</p>"
    return f'<div class="pair"><h4>{a} ↔ {b}: {times}</h4>{pictures}</div>'


def _directions(run: RunView, pair: Pair) -> str:
    assert run.confusion is not None
    a, b = pair.classes
    return (
        f"{_name(run, a)} taken for {_name(run, b)}: {run.confusion[a, b]}; "
        f"{_name(run, b)} taken for {_name(run, a)}: {run.confusion[b, a]}"
    )


def _mistake(run: RunView, image: int, uri: str) -> str:
    assert run.labels is not None and run.predicted is not None and run.probabilities is not None
    true, said = int(run.labels[image]), int(run.predicted[image, 0])
    certain = float(run.probabilities[image, 0])
    alt = html.escape(f"{run.classes[true]} taken for {run.classes[said]}")
    return (
        f'<figure><img loading="lazy" alt="{alt}" src="{uri}"><figcaption>{_name(run, true)} '
        f"→ <b>{_name(run, said)}</b> {certain:.0%}</figcaption></figure>"
    )


def _name(run: RunView, number: int) -> str:
    name = html.escape(run.classes[number]).replace("_", "_<wbr>")  # where a narrow line may break
    return f"<bdi>{name}</bdi>"
