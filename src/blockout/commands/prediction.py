"""Classifying single images with a trained run or an exported file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from blockout.data import DataError, prepare
from blockout.data.folders import SUFFIXES
from blockout.export import ExportedModel
from blockout.training import RunError, TrainedModel

TOP, BATCH = 5, 64
PIXELS = BATCH * 224**2
"""Of all images of a batch, so that large ones take no more memory than many."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, best first."""

    image: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and every image below the folders that is not hidden, in order."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if _is_image(p.relative_to(path), path))
            if not inside:
                raise DataError(f"there are no images in {path}")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"there is no image or folder {path}")
    return found


def _is_image(inside: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in inside.parts)
    return not hidden and inside.suffix.lower() in SUFFIXES and (folder / inside).is_file()


@torch.no_grad()
def predict(
    trained: TrainedModel | ExportedModel,
    images: Sequence[Path],
    top: int = TOP,
    skipped: list[str] | None = None,
) -> Iterator[Prediction]:
    """Top classes with probabilities for each image, in batches.

    A file that cannot be read is an error, or what is wrong with it is added to ``skipped``.
    """
    top = min(top, len(trained.classes))
    batch = max(min(BATCH, PIXELS // trained.image_size**2), 1)
    for start in range(0, len(images), batch):
        chunk, pixels = _readable(trained, images[start : start + batch], skipped)
        if not chunk:
            continue
        logits = trained.model(torch.stack(pixels))
        for path, finite in zip(chunk, logits.isfinite().all(1).tolist(), strict=True):
            if not finite:
                raise RunError(f"for {path} the network's outputs are not finite (nan or infinite)")
        probabilities, classes = logits.softmax(1).topk(top)
        for path, p, c in zip(chunk, probabilities.tolist(), classes.tolist(), strict=True):
            yield Prediction(str(path), tuple(trained.classes[i] for i in c), tuple(p))


def _readable(
    trained: TrainedModel | ExportedModel, paths: Sequence[Path], skipped: list[str] | None
) -> tuple[list[Path], list[torch.Tensor]]:
    """The files that can be read, and their images as the network expects them."""
    found, pixels = [], []
    for path in paths:
        try:
            pixels.append(
                prepare(path, trained.image_size, trained.mean, trained.std, trained.crop)
            )
            found.append(path)
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(str(error))
    return found, pixels
