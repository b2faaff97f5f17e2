"""On which side of each split an image goes: as an earlier run had it, or drawn with alike images.

`division` draws; `kept` recognises the images of a run; `duplicates` finds those that are alike.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from blockout.data import cache
from blockout.data.config import DataConfig
from blockout.data.division import Division, Index, divide, is_drawn, same_content
from blockout.data.duplicates import Alike, FindAlike, copies, joined
from blockout.data.folders import listed
from blockout.data.kept import Changes, Kept
from blockout.data.sources import Source
from blockout.data.splits import Pictures
from blockout.data.tables import HOLDOUT, TEST, TRAIN, Catalogue

MOST_COMPARED = 50_000
"""Images that are compared with each other before they are divided."""


NO_CHANGES = Changes()


class Dividing(NamedTuple):
    """How images are divided where the data leaves it open."""

    grouping: FindAlike = copies
    """Finds alike images, which go to one side."""
    kept: Kept | None = None
    """The division of an earlier run, which images keep."""
    expect: Callable[[Catalogue, int], object] = lambda catalogue, train: None
    """Told, before images are compared, of all of them and of about how many will be trained on."""


BY_CONTENT = Dividing()


def each_alone(_pictures: Pictures, labels: Index) -> Alike:
    return Alike(np.arange(len(labels)))


def remembered_groups(dividing: Dividing, source: Source, config: DataConfig) -> Dividing:
    """With the groups that were found the last time. In large sets only equal files are found:
    photographs that are much alike weigh little there, and decoding all takes long."""
    if dividing.grouping is not copies:
        return dividing

    def grouping(pictures: Pictures, labels: Index) -> Alike:
        if len(labels) > MOST_COMPARED:
            return each_alone(pictures, labels)
        key = cache.key_of(source.fingerprint, config.skip_corrupt, len(labels))
        groups, uniform = cache.remembered(
            config.cache_folder,
            f"alike-{key}",
            lambda: [part.tolist() for part in map(np.asarray, copies(pictures, labels))],
        )
        return Alike(np.array(groups, np.int64), tuple(uniform))

    return dividing._replace(grouping=grouping)


def sides_of(
    catalogue: Catalogue, config: DataConfig, dividing: Dividing, pictures: Pictures
) -> tuple[Catalogue, Division, Changes]:
    """The images as an earlier run divided them, or drawn with alike images on one side."""
    kept, before = dividing.kept, None
    if kept is not None and kept.only:
        known, changes = kept.applied(catalogue, pictures.name)
        train, holdout, test = (
            np.flatnonzero(known.parts == part) for part in (TRAIN, HOLDOUT, TEST)
        )
        return known, Division(train, holdout, test, kept.notes), changes
    if kept is not None:
        before = kept.parts(catalogue, pictures.name)
    notes, groups = _leaked(catalogue, before if kept and kept.learned else None), None
    if is_drawn(catalogue, config):
        pool = np.flatnonzero(catalogue.parts == TRAIN)
        groups = same_content(catalogue)
        dividing.expect(catalogue, len(divide(catalogue, config, before=before).train))
        alike = dividing.grouping(pictures.take(pool), catalogue.labels[pool])
        groups[pool] = len(groups) + joined(groups[pool], alike.groups)
        notes.extend(_doubted(catalogue, alike))
    division = divide(catalogue, config, groups, before)
    return catalogue, replace(division, notes=(*notes, *division.notes)), NO_CHANGES


def _doubted(catalogue: Catalogue, alike: Alike) -> list[str]:
    if not alike.uniform:
        return []
    names = listed({catalogue.classes[label] for label in alike.uniform}, most=3)
    return [
        f"in {len(alike.uniform)} of {len(catalogue.classes)} classes more than half of the "
        f"training images are nearly the same ({names}), so what is drawn from them for the "
        "hold-out or the test is easier than new photographs"
    ]


def _leaked(catalogue: Catalogue, before: Index | None) -> list[str]:
    """Says how many of the images that the data has for the test an earlier run has trained on."""
    if before is None or not (count := int(((before == TRAIN) & (catalogue.parts == TEST)).sum())):
        return []
    return [f"{count} test images were training images of the run that this one starts from"]
