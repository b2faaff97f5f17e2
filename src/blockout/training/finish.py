"""What a finished run leaves behind, and how a new run starts from its weights."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec
from jaxtyping import UInt8
from torch import Tensor, nn

from blockout.data import ImageData
from blockout.layers import memberships_of
from blockout.memberships import LOOSENED
from blockout.models import Head, ImageClassifier
from blockout.runs import folder as files
from blockout.runs import logs
from blockout.runs.config import TrainConfig
from blockout.runs.documents import as_json
from blockout.runs.errors import RunError
from blockout.runs.trained import description
from blockout.structure.groups import agreement, class_groups, different_classes, similarities
from blockout.training.checkpoint import Tally
from blockout.training.evaluation import Evaluation
from blockout.training.reference import chance_accuracy
from blockout.training.watch import doubts

THUMBNAILS_A_CLASS, THUMBNAIL_SIZE = 4, 48


def write_results(
    folder: Path,
    config: TrainConfig,
    model: nn.Module,
    data: ImageData,
    final: dict[str, Evaluation],
    memberships: dict[str, Tensor],
    tally: Tally,
    steps: int,
    beside: Mapping[str, msgspec.Struct | None],
) -> None:
    """Writes the files of a finished run; ``result.json``, written last, marks it as finished.

    ``beside`` are further parts of the result that are known already.
    """
    if isinstance(model, ImageClassifier) and isinstance(model.head, Head):
        files.write_json(folder / files.MODEL, as_json(description(model, data)))
    if not tally.best_step:  # no hold-out to choose by: the last weights count
        files.write_tensors(folder / files.BEST, files.read_tensors(folder / files.FINAL))
    if memberships:
        files.write_tensors(folder / files.MEMBERSHIPS, memberships)
    test = final["test"]
    files.write_tensors(
        folder / files.PREDICTIONS,
        {"labels": data.test.labels, "classes": test.classes, "probabilities": test.probabilities},
    )
    write_thumbnails(folder / files.THUMBNAILS, data)
    for name in files.LOGS:
        logs.seal(folder / name)
    best = {"holdout_accuracy": tally.best_accuracy, "step": tally.best_step}
    result = {
        **{name: evaluation.numbers() for name, evaluation in final.items()},
        **{name: as_json(part) for name, part in beside.items() if part is not None},
        "chance": chance_accuracy(data),
        "best": best if tally.best_step else None,
        "steps": steps,
        "seconds": round(tally.seconds, 1),
        "seed": config.optimisation.seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "groups": _agreement(memberships if config.model.learned else {}, data.groups),
        "warnings": tally.said,
        "images": {name: len(getattr(data, name)) for name in ("train", "holdout", "test")},
        "notes": [*data.notes, *doubts(data, config.data.holdout)],
    }
    files.write_json(folder / files.RESULT, result)


def _agreement(memberships: dict[str, Tensor], groups: tuple[int, ...] | None) -> dict | None:
    """How well groups of classes with similar memberships agree with the data's own groups."""
    if not memberships or groups is None:
        return None
    if len(list(memberships.values())[-1]) != len(groups):  # the last layer is not the classifier
        return None
    p = list(memberships.values())[-1].double().numpy()
    count = min(len(set(groups)), different_classes(p))
    found = class_groups(p, count)
    agreed = agreement(found, groups, alike=similarities(p))
    return {"count": count, "found": found.tolist(), **asdict(agreed)}


def initial_weights(model: nn.Module, run: Path) -> list[str]:
    """Copies every weight of an earlier run whose name and shape fit.

    Returns lines that say how many did not, and which memberships learn again.
    """
    path = run / files.FINAL
    if not path.exists():
        raise RunError(
            f"--init-from {run} holds no {files.FINAL}; name the folder of a finished run"
        )
    found, wanted = files.read_tensors(path), model.state_dict()
    fitting = {k: v for k, v in found.items() if k in wanted and wanted[k].shape == v.shape}
    if not fitting:
        raise RunError(f"--init-from {run}: none of its weights fit this model")
    model.load_state_dict(fitting, strict=False)
    loosened = [m for m in memberships_of(model).values() if m.loosen()]
    fresh = [k for k in wanted if k not in fitting]
    shown = ", ".join(fresh[:3]) + (", ..." if len(fresh) > 3 else "")
    note = f", {len(fresh)} start fresh: {shown}" if fresh else ""
    settled = (
        f"{len(loosened)} sets of memberships that were settled learn again, from P = "
        f"{LOOSENED} and {1 - LOOSENED:g}"
    )
    return [*([settled] if loosened else []), f"{len(fitting)} tensors taken from {run}{note}"]


def write_thumbnails(path: Path, data: ImageData) -> None:
    """One picture: a row per class with some of its test images."""
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
