"""Classes that a figure points at, and their pictures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import SubFigure

from blockout.runs import Run
from blockout.show.figures import style
from blockout.structure.groups import similarities


def telling_classes(run: Run) -> list[int]:
    """Up to four classes, like the paper's sharks and drum.

    Two of one group with the most similar memberships, the nearest class of another group, and the
    least similar class of their own. Between equally similar pairs, the last class decides: the
    less similar, the better. Without known groups, all classes are one group.
    """
    p = run.class_memberships
    assert p is not None
    alike = similarities(p.astype(np.float64)).round(9)
    known = None if run.description is None else run.description.groups
    groups = np.array(known) if known else np.zeros(len(p), dtype=int)
    kin = groups[:, None] == groups[None]
    others = kin & ~np.eye(len(p), dtype=bool)
    if not others.any():  # each class is its own group
        kin, others = np.ones_like(kin), ~others
    nearest, farthest = np.where(others, alike, -np.inf), np.where(others, alike, np.inf)
    first = int(np.lexsort((farthest.min(1), -nearest.max(1)))[0])
    chosen = [first, int(nearest[first].argmax())]
    if not kin[first].all():
        chosen.append(int(np.where(kin[first], -np.inf, alike[first]).argmax()))
    return list(dict.fromkeys([*chosen, int(farthest[first].argmin())]))


def indices_of(names: Sequence[str], run: Run) -> list[int]:
    """The classes with these names."""
    unknown = [name for name in names if name not in run.classes]
    if unknown:
        raise ValueError(f"--classes: {run.name} has no class {unknown[0]!r}")
    return [run.classes.index(name) for name in names]


def pictures(run: Run, classes: Sequence[int]) -> list[list[np.ndarray]]:
    """Test images of each class from the run's thumbnails; none without that file."""
    if run.thumbnails is None:
        return [[] for _ in classes]
    strips = [run.thumbnails[c] for c in classes]
    return [np.split(strip, strip.shape[1] // len(strip), axis=1) for strip in strips]


def height(run: Run) -> float:
    """Inches that ``show`` needs."""
    return 0.3 if run.thumbnails is None else 0.75


def show(figure: SubFigure, run: Run, classes: Sequence[int], *, each: int) -> None:
    """A row of numbered names, with ``each`` pictures per class."""
    shown = pictures(run, classes)
    for place, (c, images) in enumerate(zip(classes, shown, strict=True)):
        name = style.plain(style.shortened(run.classes[c].replace("_", " "), 22))
        left, wide = place / len(classes), 1 / len(classes)
        figure.text(left + wide / 2, 0.08, f"{place + 1}. {name}", ha="center", va="bottom")
        size = 0.075
        start = left + wide / 2 - size * min(each, len(images)) / 2
        for number, image in enumerate(images[:each]):
            axes = figure.add_axes((start + number * size, 0.3, size * 0.94, 0.68))
            axes.imshow(image, interpolation="none")
            axes.set_axis_off()
