"""The images of an earlier run, recognised in a folder that has changed since."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from blockout.data.division import OPEN
from blockout.data.tables import TEST, TRAIN, Catalogue


class KnownImage(NamedTuple):
    """An image as a run knew it."""

    content: bytes
    """Digest of its file."""
    name: str
    label: int
    part: int
    """TRAIN, HOLDOUT or TEST."""


@dataclass(frozen=True)
class Kept:
    """How an earlier run divided its images.

    An image is recognised by its content, wherever it lies now; where a content occurs several
    times, also by its name.
    """

    classes: tuple[str, ...]
    images: tuple[KnownImage, ...]
    only: bool = True
    """New images are left out, as if they were not there; otherwise they are divided as well."""
    learned: bool = True
    """The run that divides its images alike starts from what that run has learned."""
    notes: tuple[str, ...] = ()
    """What was said of the division when it was drawn; it holds as long as no image is added."""

    def parts(self, catalogue: Catalogue, name: Callable[[int], str]) -> Int64[np.ndarray, " n"]:
        """The part that each image of a catalogue had; OPEN for new ones."""
        by_file = {(known.content, known.name): known.part for known in self.images}
        by_content: dict[bytes, int] = {}
        for known in self.images:  # an image that was trained on never counts as a test image
            part = by_content.get(known.content, known.part)
            by_content[known.content] = TRAIN if TRAIN in (part, known.part) else part
        assert catalogue.contents is not None
        found = np.full(len(catalogue.labels), OPEN)
        for place, row in enumerate(catalogue.contents):
            content = row.tobytes()
            if content in by_content:
                found[place] = by_file.get((content, name(place)), by_content[content])
        return found

    def trained_on(self, contents: Sequence[bytes]) -> int:
        """How many of these images the run has trained on."""
        known = self._contents(TRAIN)
        return sum(content in known for content in contents)

    def is_held_by(self, contents: Sequence[bytes]) -> bool:
        """Whether these are the run's own images, though some may be lost and others added: at
        least half of what it trained on and half of its test images are among them."""
        there = set(contents)
        parts = (self._contents(part) for part in (TRAIN, TEST))
        return all(known and 2 * len(known & there) >= len(known) for known in parts)

    def _contents(self, part: int) -> set[bytes]:
        return {known.content for known in self.images if known.part == part}

    def applied(
        self, catalogue: Catalogue, name: Callable[[int], str]
    ) -> tuple[Catalogue, "Changes"]:
        """The catalogue with the classes and parts of the run, and what has changed since.

        New images have no part (OPEN).
        """
        place = {label: i for i, label in enumerate(self.classes)}
        labels = np.array([place.get(c, OPEN) for c in catalogue.classes])[catalogue.labels]
        parts = np.where(labels == OPEN, OPEN, self.parts(catalogue, name))
        groups, group_names = self._groups(catalogue)
        known = replace(
            catalogue,
            classes=self.classes,
            groups=groups,
            group_names=group_names,
            labels=labels,
            parts=parts,
        )
        return known, self._changes(known, name)

    def _groups(
        self, catalogue: Catalogue
    ) -> tuple[tuple[int, ...] | None, tuple[str, ...] | None]:
        if catalogue.groups is None:
            return None, None
        group = dict(zip(catalogue.classes, catalogue.groups, strict=True))
        if not all(label in group for label in self.classes):
            return None, None
        return tuple(group[label] for label in self.classes), catalogue.group_names

    def _changes(self, known: Catalogue, name: Callable[[int], str]) -> "Changes":
        assert known.contents is not None
        contents = [row.tobytes() for row in known.contents]
        there, gone = Counter(contents), []
        was: dict[bytes, set[int]] = {}
        for image in self.images:
            was.setdefault(image.content, {OPEN}).add(image.label)
            there[image.content] -= 1
            if there[image.content] < 0:
                gone.append(image.name)
        new = [name(place) for place in np.flatnonzero(known.parts == OPEN).tolist()]
        classes = zip(contents, known.labels.tolist(), strict=True)
        moved = [i for i, (c, label) in enumerate(classes) if label not in was.get(c, {label})]
        changed = set(new) & set(gone)
        return Changes(
            new=tuple(image for image in new if image not in changed),
            gone=tuple(image for image in gone if image not in changed),
            changed=tuple(sorted(changed)),
            moved=tuple(name(place) for place in moved),
        )


class Changes(NamedTuple):
    """What has become of a run's images: their names."""

    new: tuple[str, ...] = ()
    """Left out."""
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Another image has their name now; left out."""
    moved: tuple[str, ...] = ()
    """They have another class now."""

    @property
    def harmless(self) -> bool:
        """Whether all images of the run are as they were."""
        return not (self.gone or self.changed or self.moved)

    def words(self) -> list[str]:
        """A sentence for each kind.

        >>> Changes(new=("cat/7.jpg",), gone=("cat/1.jpg", "dog/2.jpg")).words()[0]
        '2 images of the run are gone (cat/1.jpg, ...)'
        """
        kinds = (
            (self.gone, "of the run {} gone"),
            (self.changed, "of the run {} changed, and left out"),
            (self.moved, "of the run {} in another class now"),
            (self.new, "{} new since the run, and left out"),
        )
        return [_sentence(names, text) for names, text in kinds if names]


def _sentence(names: tuple[str, ...], text: str) -> str:
    if len(names) == 1:
        return f"1 image {text.format('is')} ({names[0]})"
    return f"{len(names)} images {text.format('are')} ({names[0]}, ...)"
