"""The end of a run, and how to begin from one: weights, descriptions, predictions, thumbnails."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from blockout.analysis import agreement, class_groups, different_classes, similarities
from blockout.data import ImageData
from blockout.layers import memberships_of
from blockout.memberships import LOOSENED
from blockout.models import Head, ImageClassifier, from_description
from blockout.training import files
from blockout.training.checkpoint import Position
from blockout.training.config import TrainConfig
from blockout.training.evaluation import Evaluation
from blockout.training.files import RunError

FORMAT = 1
THUMBNAILS_A_CLASS, THUMBNAIL_SIZE = 4, 48


def write_results(
    folder: Path,
    config: TrainConfig,
    model: nn.Module,
    data: ImageData,
    final: dict[str, Evaluation],
    memberships: dict[str, Tensor],
    position: Position,
) -> None:
    """All that a finished run leaves behind; ``result.json``, written last, says it is finished."""
    if isinstance(model, ImageClassifier) and isinstance(model.head, Head):
        files.write_json(folder / files.MODEL, description(model, data))
    if not (folder / files.BEST).exists():  # no hold-out to choose by: the last is the best known
        files.write_tensors(folder / files.BEST, load_file(folder / files.FINAL))
    if memberships:
        files.write_tensors(folder / files.MEMBERSHIPS, memberships)
    test = final["test"]
    files.write_tensors(
        folder / files.PREDICTIONS,
        {"labels": data.test.labels, "classes": test.classes, "probabilities": test.probabilities},
    )
    write_thumbnails(folder / files.THUMBNAILS, data)
    files.write_json(folder / files.RESULT, {
        **{name: evaluation.numbers() for name, evaluation in final.items()},
        "best": {"holdout_accuracy": position.best_accuracy, "step": position.best_step}
        if position.best_step else None,
        "steps": position.step, "seconds": round(position.seconds, 1),
        "seed": config.optimisation.seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "groups": _agreement(memberships if config.model.learned else {}, data.groups),
        "warnings": position.said,
    })  # fmt: skip


def _agreement(memberships: dict[str, Tensor], groups: tuple[int, ...] | None) -> dict | None:
    """How groups of classes by their learned memberships compare with the data's own groups."""
    if not memberships or groups is None:
        return None
    if len(list(memberships.values())[-1]) != len(groups):  # the last layer is not the classifier
        return None
    p = list(memberships.values())[-1].double().numpy()
    count = min(len(set(groups)), different_classes(p))
    found = class_groups(p, count)
    agreed = agreement(found, groups, alike=similarities(p))
    return {"count": count, "found": found.tolist(), **asdict(agreed)}


def description(model: ImageClassifier, data: ImageData) -> dict[str, Any]:
    """What classifying takes beside the weights: architecture, names, preprocessing."""
    return {
        "format": FORMAT,
        "model": model.describe(),
        "classes": data.classes,
        "groups": data.groups,
        "group_names": data.group_names,
        "data": data.name,
        "images": data.fingerprint(),
        "image_size": data.image_size,
        "mean": data.mean,
        "std": data.std,
    }


@dataclass(frozen=True)
class TrainedModel:
    """A model in eval mode with what belongs to it."""

    model: ImageClassifier
    classes: tuple[str, ...]
    groups: tuple[int, ...] | None
    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    images: str | None = None
    """Fingerprint of the data it was trained and tested on."""


def load_trained(
    folder: Path, *, weights: str = files.FINAL, trunk: nn.Module | None = None
) -> TrainedModel:
    """The model of a finished run, from safetensors and JSON; nothing is unpickled.

    Args:
        folder: of the run.
        weights: which of its files.
        trunk: one like the run's own, where it was trained with ``train(..., trunk=...)``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"there is no run folder {folder}; `blockout train` makes one")
    if not (folder / files.RESULT).exists():
        raise RunError(
            f"the run in {folder} is not finished; the same `blockout train` continues it"
        )
    return read_trained(folder / files.MODEL, folder / weights, trunk)


def read_trained(about: Path, weights: Path, trunk: nn.Module | None = None) -> TrainedModel:
    """A network from its description and its weights; what is missing or damaged is named."""
    said = files.read_json(about)
    if said.get("format") != FORMAT:
        raise RunError(f"{about} was written by another version of blockout")
    model = from_description(said["model"], trunk)
    try:
        model.load_state_dict(load_file(weights))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise RunError(f"{weights} is missing or damaged: {error}") from error
    groups = said["groups"]
    return TrainedModel(
        model.eval().to(memory_format=torch.channels_last),  # pyright: ignore
        tuple(said["classes"]), None if groups is None else tuple(groups),
        said["image_size"], tuple(said["mean"]), tuple(said["std"]), said.get("images"),
    )  # fmt: skip


def initial_weights(model: nn.Module, run: Path, say: Callable[[str], object]) -> None:
    """Copies every weight of an earlier run whose name and shape fit; says how many did not."""
    path = run / files.FINAL
    if not path.exists():
        raise RunError(
            f"--init-from {run} holds no {files.FINAL}; name the folder of a finished run"
        )
    try:
        found, wanted = load_file(path), model.state_dict()
    except (OSError, SafetensorError) as error:
        raise RunError(f"--init-from: {path} is damaged: {error}") from error
    fitting = {k: v for k, v in found.items() if k in wanted and wanted[k].shape == v.shape}
    if not fitting:
        raise RunError(f"--init-from {run}: none of its weights fits this model")
    model.load_state_dict(fitting, strict=False)
    loosened = [m for m in memberships_of(model).values() if m.loosen()]
    if loosened:
        say(f"{len(loosened)} sets of memberships that were settled learn again, from P = "
            f"{LOOSENED} and {1 - LOOSENED:g}")  # fmt: skip
    fresh = [k for k in wanted if k not in fitting]
    shown = ", ".join(fresh[:3]) + (", ..." if len(fresh) > 3 else "")
    say(
        f"{len(fitting)} tensors taken from {run}"
        + (f", {len(fresh)} start fresh: {shown}" if fresh else "")
    )


def write_thumbnails(path: Path, data: ImageData) -> None:
    """A picture with a row a class, some test images each."""
    from PIL import Image

    labels = data.test.labels
    side = min(data.image_size, THUMBNAIL_SIZE)
    sheet = Image.new("RGB", (side * THUMBNAILS_A_CLASS, side * len(data.classes)), "white")
    for row in range(len(data.classes)):
        chosen = (labels == row).nonzero()[:THUMBNAILS_A_CLASS, 0].tolist()
        images: UInt8[Tensor, "n h w 3"] = data.test.images_at(chosen)
        for column, pixels in enumerate(images):
            tile = Image.fromarray(pixels.numpy()).resize((side, side), Image.Resampling.LANCZOS)
            sheet.paste(tile, (column * side, row * side))
    files.write_atomically(path, lambda p: sheet.save(p, "PNG", optimize=True))
