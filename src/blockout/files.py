"""Files that are written whole or not at all."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Calls ``write`` on a temporary file beside ``path`` and moves the result into place.

    If anything fails, ``path`` stays as it was and the error is raised.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in one step; an ``OSError`` names the file."""
    try:
        write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}; choose another file") from error
