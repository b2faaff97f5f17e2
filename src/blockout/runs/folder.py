"""Files that are never half-written, and what a run folder holds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from blockout import files

CONFIG, MODEL, RESULT, ENVIRONMENT = "config.json", "model.json", "result.json", "environment.json"
METRICS, DISTRIBUTIONS = "metrics.jsonl", "memberships.jsonl"
FINAL, BEST, MEMBERSHIPS = "final.safetensors", "best.safetensors", "memberships.safetensors"
PREDICTIONS, THUMBNAILS, CHECKPOINT = "predictions.safetensors", "thumbnails.png", "checkpoint.pt"
EVENTS, REPORT = "tensorboard", "report.html"
COMPACT_MODEL, COMPACT_WEIGHTS = "compact.json", "compact.safetensors"
COMPACTION = "compaction.json"
ALL = (
    CONFIG,
    MODEL,
    RESULT,
    ENVIRONMENT,
    METRICS,
    DISTRIBUTIONS,
    FINAL,
    BEST,
    MEMBERSHIPS,
    PREDICTIONS,
    THUMBNAILS,
    CHECKPOINT,
    EVENTS,
)
MADE_LATER = (
    REPORT,
    COMPACT_MODEL,
    COMPACT_WEIGHTS,
    COMPACTION,
    *(
        f"{name}.{form}"
        for name in ("model", "model-compact")
        for form in ("onnx", "pt2", "safetensors")
    ),
)
"""What `blockout compact`, `export` and `report` leave beside a run; `--restart` deletes it."""


class RunError(RuntimeError):
    """The work cannot go on; the message says why and what to do. What was there stays."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file in one step, or leaves everything as it was and says what to do."""
    try:
        files.write_atomically(path, write)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch.save wraps a full disk
        raise RunError(_cannot_write(path, error)) from error


def _cannot_write(path: Path, error: Exception) -> str:
    return (
        f"cannot write {path}: {error}; free some space or name another folder with --run. "
        "What was written before is intact, and the same command continues from it"
    )


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, lambda p: p.write_text(text + "\n", encoding="utf-8"))


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """As safetensors; tensors that share memory (tied weights) are written once for each name."""
    ready = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    write_atomically(path, lambda p: p.write_bytes(save(ready)))


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    write_atomically(path, lambda p: torch.save(state, p))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error


def append_line(path: Path, value: dict[str, Any]) -> None:
    try:
        with path.open("a") as file:
            file.write(json.dumps(value) + "\n")
    except OSError as error:
        raise RunError(_cannot_write(path, error)) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one that was cut off by a crash is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    if not all(isinstance(line, dict) for line in lines):
        raise RunError(f"{path} is damaged: a line of it holds no entry")
    return lines


def forget_after(path: Path, step: int) -> None:
    """Removes entries of later steps: a run that continues from ``step`` writes them anew."""
    kept = [line for line in read_lines(path) if line["step"] <= step]
    if path.exists():
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(path, lambda p: p.write_text(text))
