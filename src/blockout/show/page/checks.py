"""Images of the data to look at: copies of training images in the test, labels that look wrong."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from blockout.data import ImageData
from blockout.runs import Run
from blockout.runs import folder as files
from blockout.runs.documents import CopiedImage, DoubtedLabel
from blockout.show.page.mistakes import LARGEST, UNREADABLE, broken_name
from blockout.show.page.pictures import picture
from blockout.show.page.section import Section, bdi, html, in_detail, part

SHOWN = 12
"""Pairs of each kind that are shown."""
LEAD = """Photographs of the data to look at yourself. Nothing was changed or left out because of
this."""
COPIES = """A test image that training has seen, or nearly, says nothing about new photographs: the
accuracy is too good by its share. Remove one of the two, or put both on one side. If their labels
differ, one is wrong."""
DOUBTS = """On the left an image that looks like another class and not at all like its own, as a
classifier says that was not told its label; on the right the training image of that class that is
most like it. Mend the label if it is wrong. Some are right, and merely unusual."""
WHERE = {"train": "training image", "holdout": "held out", "test": "test image"}
Names = set[tuple[str, str]]
"""Parts of the data and names of images in them."""


def section(runs: Sequence[Run]) -> Section | None:
    """The copies and doubtful labels of each run that has some."""
    able = [run for run in runs if run.finished and run.classes and _found(run)]
    shown, left_out = in_detail(able, 2)
    if not shown:
        return None
    body = Markup().join(_run(run, len(runs) > 1) for run in shown)
    return Section("checks", "Images to check", LEAD + left_out, body)


def _found(run: Run) -> bool:
    return run.checks is not None and bool(run.checks.copies or run.checks.doubts)


def _run(run: Run, named: bool) -> Markup:
    assert run.checks is not None
    copies, doubts = run.checks.copies[:SHOWN], run.checks.doubts[:SHOWN]
    wanted = {(p, n) for c in copies for p, n in (("test", c.test), ("train", c.train))}
    wanted |= {(p, n) for d in doubts for p, n in ((d.part, d.image), ("train", d.beside))}
    images, complaint = _pictures(run, wanted)
    body = html("<h3>{}</h3>", bdi(run.name)) if named else Markup()
    body += html('<p class="small">{}</p>', complaint) if complaint else Markup()
    if copies:
        title = _title("Test images with a copy in training", len(copies), run.checks.copies_found)
        body += part("looked_at", title, COPIES, [_copy(run, c, images) for c in copies])
    if doubts:
        title = _title("Labels that look wrong", len(doubts), run.checks.doubts_found)
        body += part("looked_at", title, DOUBTS, [_doubt(run, d, images) for d in doubts])
    return body


def _title(text: str, shown: int, total: int) -> str:
    """
    >>> _title("Labels that look wrong", 12, 40)
    'Labels that look wrong: 40 (the first 12 are here, more in checks.csv)'
    """
    more = f" (the first {shown} are here, more in {files.CHECKS_TABLE})" if total > shown else ""
    return f"{text}: {total:,}{more}"


def _pictures(run: Run, wanted: Names) -> tuple[dict[tuple[str, str], str], str]:
    """These images by part and name, as data URIs; and why they cannot be shown."""
    try:
        data = run.images()
        found = dict(_places(data, wanted))
        return {key: _picture(data, key[0], place) for key, place in found.items()}, ""
    except UNREADABLE as error:
        return {}, f"The images are not shown, because the data cannot be read here: {error}"


def _places(data: ImageData, wanted: Names) -> Iterable[tuple[tuple[str, str], int]]:
    for name in {where for where, _ in wanted}:
        split = getattr(data, name)
        for place in range(len(split)):
            if (key := (name, split.pictures.name(place))) in wanted:
                yield key, place


def _picture(data: ImageData, name: str, place: int) -> str:
    return picture(getattr(data, name).images_at([place])[0].numpy(), LARGEST)


def _copy(run: Run, copy: CopiedImage, images: dict[tuple[str, str], str]) -> tuple[object, ...]:
    """For the template: heading, remark, both images."""
    kind = "Exact copy" if copy.exact else "Near copy"
    differ = copy.test_label != copy.train_label
    remark = "" if copy.exact else f"cosine of their features {copy.similarity:.2f}"
    sides = ("test", copy.test, copy.test_label), ("train", copy.train, copy.train_label)
    return (
        kind + (", with another label" if differ else ""),
        remark,
        [_side(run, images, *side) for side in sides],
    )


def _doubt(run: Run, doubt: DoubtedLabel, images: dict[tuple[str, str], str]) -> tuple[object, ...]:
    heading = html("Looks like {}", broken_name(run, doubt.looks_like))
    sides = (
        (doubt.part, doubt.image, doubt.label),
        ("train", doubt.beside, doubt.looks_like),
    )
    return heading, "", [_side(run, images, *side) for side in sides]


def _side(
    run: Run, images: dict[tuple[str, str], str], where: str, name: str, label: int
) -> tuple[object, ...]:
    """For the template: picture, file, part, label, what to call it."""
    uri, kind = images.get((where, name), ""), WHERE[where]
    return uri, name, kind.capitalize(), broken_name(run, label), kind
