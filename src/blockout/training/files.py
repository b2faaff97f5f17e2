"""Files that are never half-written, and what a run folder holds."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

CONFIG, MODEL, RESULT, ENVIRONMENT = "config.json", "model.json", "result.json", "environment.json"
METRICS, DISTRIBUTIONS = "metrics.jsonl", "memberships.jsonl"
FINAL, BEST, MEMBERSHIPS = "final.safetensors", "best.safetensors", "memberships.safetensors"
PREDICTIONS, THUMBNAILS, CHECKPOINT = "predictions.safetensors", "thumbnails.png", "checkpoint.pt"
EVENTS, REPORT = "tensorboard", "report.html"
ALL = (CONFIG, MODEL, RESULT, ENVIRONMENT, METRICS, DISTRIBUTIONS, FINAL, BEST, MEMBERSHIPS,
       PREDICTIONS, THUMBNAILS, CHECKPOINT, EVENTS)  # fmt: skip
MADE_LATER = (REPORT, "compact.safetensors", "compact.json", "compaction.json", *(
    f"{name}.{form}" for name in ("model", "model-compact")
    for form in ("onnx", "pt2", "safetensors")
))  # fmt: skip
"""What `blockout compact`, `export` and `report` leave beside a run; `--restart` deletes it."""


class RunError(RuntimeError):
    """The work cannot go on; the message says why and what to do. What was there stays."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """``write`` a file beside ``path`` and put it in place in one step, or leave all as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch.save wraps a full disk
        raise RunError(_cannot_write(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


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


def _require_a_run(folder: Path) -> None:
    """``--restart`` deletes nothing from a folder that something else has written."""
    config = folder / CONFIG
    if any(folder.iterdir()) and not (config.exists() and "method" in read_json(config)):
        raise RunError(
            f"--restart: {folder} is not the folder of a run; name another with --run, or empty it"
        )


def open_folder(
    folder: Path, identity: dict[str, Any], config: dict[str, Any], restart: bool
) -> None:
    """Makes the folder of a run, or checks that it is the same run's; deletes it on ``restart``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot make the run folder {folder}: {error.strerror}; name another with --run"
        ) from error
    if restart:
        _require_a_run(folder)
        for name in (*ALL, *MADE_LATER):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for name in (*ALL, REPORT):  # what a killed process was writing
        for half_written in folder.glob(f".{name}.*"):
            half_written.unlink(missing_ok=True)
    path = folder / CONFIG
    if not path.exists():
        write_json(path, config | {"restart": False})
        return
    before = read_json(path)
    changed = [k for k, v in identity.items() if k in before and before[k] != v]
    if changed:
        what = ", ".join(f"{k} was {before[k]!r} and is {identity[k]!r}" for k in changed[:4])
        raise RunError(
            f"{folder} holds another run ({what}); give the same flags, name another folder with "
            "--run, or say --restart to begin anew there"
        )
