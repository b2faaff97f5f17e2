"""Digests of a run's files: what was damaged after it was written is noticed when it is read.

``digests.txt`` holds a line per write: SHA-256, number of bytes, name. Lines are only ever added,
each before the file that it describes appears. So a process that is killed at any moment leaves a
file that fits one of the lines, and processes that write at the same time do not disturb each
other.

A file that is replaced as a whole must fit any of its lines. A log that grows must begin with what
its last line says; what was logged since is not covered yet. A file without any line was written
before there were digests, or by hand.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from blockout import files
from blockout.runs.errors import RunError

DIGESTS = "digests.txt"
AS_IT_IS = f"; to read it as it is, delete its lines from {DIGESTS}"
LINE = re.compile(rb"([0-9a-f]{64}) {2}(\d{1,18}) {2}(\S+)")


class Digest(NamedTuple):
    """Of a file, or of the beginning of a log."""

    sha256: str
    size: int
    """Bytes."""


def digest_of(path: Path) -> Digest:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return Digest(found, file.tell())


def digest_of_content(content: bytes) -> Digest:
    return Digest(hashlib.sha256(content).hexdigest(), len(content))


def record(path: Path, digest: Digest) -> None:
    """Notes what the file will be, or how a log begins; on disk when this returns."""
    line = f"{digest.sha256}  {digest.size}  {path.name}\n".encode()
    kept = path.with_name(DIGESTS)
    if os.path.lexists(kept):  # a link to nothing is refused as well
        files.require_regular(kept)
    with kept.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a full disk or a power cut has torn the last line
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def recorded(path: Path) -> list[Digest]:
    """What is known of a file, oldest first. A line that is torn or damaged says nothing."""
    try:
        text = files.read_bytes(path.with_name(DIGESTS))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {path.with_name(DIGESTS)}: {error.strerror}") from error
    name, found = path.name.encode(), []
    for line in text.split(b"\n"):
        fits = LINE.fullmatch(line)
        if fits and fits[3] == name:
            found.append(Digest(fits[1].decode(), int(fits[2])))
    return found


def require_undamaged(path: Path, advice: str = AS_IT_IS) -> None:
    """Refuses a file that is not as it was written, and says what to do."""
    try:
        files.require_regular(path)
        size, known = path.stat().st_size, recorded(path)
        fits = any(size == digest.size for digest in known) and digest_of(path) in known
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    if known and not fits:
        raise RunError(_damaged(path, advice))


def require_content(path: Path, content: bytes) -> None:
    """Refuses what was read of a file if it is not what was written."""
    known = recorded(path)
    if known and digest_of_content(content) not in known:
        raise RunError(_damaged(path))


def require_beginning(path: Path, content: bytes, known: list[Digest]) -> None:
    """Refuses a log that does not begin as it was when ``known`` was read."""
    if known and digest_of_content(content[: known[-1].size]) != known[-1]:
        raise RunError(_damaged(path))


def unnoticed(folder: Path, names: Iterable[str]) -> str:
    """A line that says which of these files have no digest, so that damage goes unnoticed."""
    found = [name for name in names if (folder / name).is_file() and not recorded(folder / name)]
    if not found:
        return ""
    few = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    return f"note: damage to {few} in {folder} would go unnoticed: written without digests"


def _damaged(path: Path, advice: str = AS_IT_IS) -> str:
    return f"{path} is damaged: it is not as the run wrote it. Restore it from a copy{advice}"
