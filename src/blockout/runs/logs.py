"""The logs of a run, ``metrics.jsonl`` and ``memberships.jsonl``: they grow by a line at a time.

A process that is killed may leave half a line at the end; nothing else may be wrong with a log.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from blockout import files
from blockout.runs import digests
from blockout.runs.documents import Entry, content_of, parsed
from blockout.runs.errors import RunError
from blockout.runs.folder import cannot_write, write_atomically


def append(path: Path, entry: dict[str, Any]) -> None:
    """Adds an entry."""
    line = json.dumps(entry, allow_nan=False) + "\n"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise RunError(cannot_write(path, error)) from error


def seal(path: Path) -> None:
    """Puts the log on disk as it is now; from now on damage to it is noticed."""
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        now = digests.digest_of(path)
        if now not in digests.recorded(path)[-1:]:
            digests.record(path, now)
    except OSError as error:
        raise RunError(cannot_write(path, error)) from error


def read_lines(path: Path) -> list[bytes]:
    """A JSON object per line, without a last line that was cut off. Empty without a file.

    Raises:
        RunError: a line is damaged or missing; the message names it.
    """
    return [line for line, _ in _lines(path)]


def rewind(path: Path, count: int | None, step: int) -> None:
    """Removes what was logged after a checkpoint: a run that continues from it logs it again.

    Args:
        path: of the log.
        count: how many entries it had then. None for a checkpoint that does not say: then all up to
            its step.
        step: of the checkpoint.

    Raises:
        RunError: entries are missing or damaged.
    """
    if path.exists():
        _require_regular(path)
    found = _lines(path) if count != 0 else []
    if count is None:
        entries = [
            parsed(line, path, Entry, f" at line {i}") for i, (line, _) in enumerate(found, 1)
        ]
        count = sum(entry.step <= step for entry in entries)
    if len(found) < count:
        raise RunError(
            f"{path} has {len(found)} of the {count} entries that the run logged before its "
            "checkpoint. Restore it from a copy, or say --restart to start over"
        )
    size = found[count - 1][1] if count else 0
    if path.exists() and path.stat().st_size != size:
        with path.open("rb") as file:
            content = file.read(size).rstrip(b"\n") + b"\n" * (size > 0)
        write_atomically(path, lambda beside: beside.write_bytes(content))


def _require_regular(path: Path) -> None:
    try:
        files.require_regular(path)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error


def _lines(path: Path) -> list[tuple[bytes, int]]:
    """Each line, and where it ends in the file."""
    known = digests.recorded(path)  # before the file, which may grow meanwhile
    content = content_of(path) if path.exists() else b""
    found, end = [], 0
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        end += len(line) + 1
        parsed(line, path, Entry, f" at line {number}")
        found.append((line, end))
    digests.require_beginning(path, content, known)
    with contextlib.suppress(RunError):  # the last line may be torn
        parsed(rest, path, Entry)
        found.append((rest, len(content)))
    return found
