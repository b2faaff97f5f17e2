"""What a run folder holds, and how its files are written: whole, with a digest, or not at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from blockout import files
from blockout.runs import digests
from blockout.runs.digests import DIGESTS
from blockout.runs.errors import RunError

CONFIG, MODEL, RESULT, ENVIRONMENT = "config.json", "model.json", "result.json", "environment.json"
LOGS = METRICS, DISTRIBUTIONS = "metrics.jsonl", "memberships.jsonl"
FINAL, BEST, MEMBERSHIPS = "final.safetensors", "best.safetensors", "memberships.safetensors"
PREDICTIONS, THUMBNAILS, CHECKPOINT = "predictions.safetensors", "thumbnails.png", "checkpoint.pt"
EVENTS, REPORT, SPLIT = "tensorboard", "report.html", "split.json"
CHECKS, CHECKS_TABLE = "checks.json", "checks.csv"
COMPACT_MODEL, COMPACT_WEIGHTS = "compact.json", "compact.safetensors"
COMPACTION = "compaction.json"
LOCK = ".lock"
"""Held by the process that trains in the folder; it stays there, empty, when nobody does."""
TRAINED = (
    RESULT,
    CHECKPOINT,
    MODEL,
    ENVIRONMENT,
    METRICS,
    DISTRIBUTIONS,
    FINAL,
    BEST,
    MEMBERSHIPS,
    PREDICTIONS,
    THUMBNAILS,
    CHECKS,
    CHECKS_TABLE,
    EVENTS,
)
"""What training leaves beside ``config.json``."""
MADE_LATER = (
    COMPACT_MODEL,
    COMPACT_WEIGHTS,
    COMPACTION,
    REPORT,
    *(
        f"{name}.{form}"
        for name in ("model", "model-compact")
        for form in ("onnx", "pt2", "safetensors")
    ),
)
"""What `blockout compact`, `export` and `report` leave beside a run."""
EVERYTHING = (*TRAINED, *MADE_LATER, SPLIT, DIGESTS, CONFIG)
"""In the order in which `--restart` deletes it: a killed one leaves a folder that can go on."""
READ_BACK = frozenset({CONFIG, SPLIT, *TRAINED, *MADE_LATER[:3]} - {EVENTS, CHECKS_TABLE})
"""What commands read again, and so has a digest."""


def require_files(folder: Path) -> None:
    """Refuses pipes and devices under the names of a run's files: to read one may never end.

    Raises:
        RunError: there is one; the message names it.
    """
    for name in (*EVERYTHING, LOCK):
        path = folder / name
        if path.exists() and not path.is_file() and not path.is_dir():
            raise RunError(
                f"{path} must be a file, but is a pipe, a socket or a device; delete it, or "
                "restore the file from a copy"
            )


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file in one step, or leaves everything as it was and says what to do.

    A file that is read back gets a digest. What killed processes have left of a run's files beside
    it is deleted.
    """

    def write_and_record(beside: Path) -> None:
        write(beside)
        if path.name in READ_BACK:
            digests.record(path, digests.digest_of(beside))

    try:
        if path.name in EVERYTHING:
            files.remove_litter(path.parent, EVERYTHING)
        files.write_atomically(path, write_and_record)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch.save wraps a full disk
        raise RunError(cannot_write(path, error)) from error


def cannot_write(path: Path, error: Exception) -> str:
    return (
        f"cannot write {path}: {error}; free some space or name another folder with --run. "
        "What was written before is intact, and the same command continues from it"
    )


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    write_atomically(path, lambda p: p.write_text(text + "\n", encoding="utf-8"))


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """As safetensors; tensors that share memory (tied weights) are written once for each name."""
    ready = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    write_atomically(path, lambda p: p.write_bytes(save(ready)))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What ``write_tensors`` wrote.

    Raises:
        RunError: the file is missing or damaged.
    """
    if not path.exists():
        raise RunError(f"{path} is missing")
    digests.require_undamaged(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} is damaged: {error}") from error


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    write_atomically(path, lambda p: torch.save(state, p))
