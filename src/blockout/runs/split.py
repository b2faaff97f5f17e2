"""Which images a run trains on, holds out and is tested on: kept in its folder.

Every later command divides the images as the run did, whatever has been added to them since.
"""

from pathlib import Path

from blockout.data import ImageData
from blockout.data.kept import Kept, KnownImage
from blockout.runs import folder as files
from blockout.runs.documents import SplitImage, SplitImages, as_json, read_document


def write_split(folder: Path, images: ImageData) -> None:
    """Writes ``split.json``."""
    parts: tuple[list[SplitImage], ...] = ([], [], [])
    kept = images.kept()
    for known in kept.images:
        parts[known.part].append(SplitImage(known.name, known.label, known.content.hex()))
    train, holdout, test = map(tuple, parts)
    split = SplitImages(images.place, images.classes, train, holdout, test, kept.notes)
    files.write_json(folder / files.SPLIT, as_json(split), indent=None)


def read_split(folder: Path) -> SplitImages | None:
    """``split.json``; None in folders of older runs."""
    path = folder / files.SPLIT
    return read_document(path, SplitImages) if path.exists() else None


def kept_split(split: SplitImages, *, only: bool = True, learned: bool = True) -> Kept:
    """To divide images as a run did.

    Args:
        split: of the run.
        only: leave out images that are new since; otherwise they are divided as well.
        learned: whether what is divided alike starts from the weights of the run.
    """
    parts = (split.train, split.holdout, split.test)
    images = [
        KnownImage(bytes.fromhex(image.content), image.name, image.label, part)
        for part, some in enumerate(parts)
        for image in some
    ]
    return Kept(split.classes, tuple(images), only, learned, split.notes)
