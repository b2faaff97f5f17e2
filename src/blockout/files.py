"""Files that are written whole or not at all, and the leftovers of processes that were killed.

And files that are read: regular ones only, for a pipe or a device might never end. And where they
are kept that make the next start faster.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

CACHE_DIR_VARIABLE = "BLOCKOUT_CACHE_DIR"
LARGEST_TEXT = 1 << 28
"""Bytes of a JSON file, a log or a table: they are read as a whole."""
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)


def cache_folder() -> Path:
    """Yours for what can be made again; it may not exist yet."""
    if named := os.environ.get(CACHE_DIR_VARIABLE):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blockout"


def require_regular(path: Path, most: int | None = None) -> None:
    """Raises OSError for anything but a regular file, and for one of more than ``most`` bytes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if most is not None and status.st_size > most:
        what = f"it has {status.st_size:,} bytes; at most {most:,} are read"
        raise OSError(errno.EFBIG, what, str(path))


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """All of a regular file; an OSError says why not."""
    require_regular(path, most)
    return path.read_bytes()


def parsed_json(text: str | bytes) -> Any:
    """As ``json.loads``; a text that is nested too deeply is a ValueError like other damage."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Calls ``write`` on a temporary file beside ``path`` and moves the result into place.

    If anything fails, ``path`` stays as it was and the error is raised. What killed processes have
    left of earlier attempts is deleted. A device or a pipe is refused: it would be replaced.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if path.exists() and not path.is_dir():
        require_regular(path)
    remove_litter(path.parent, [path.name])
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _marked_as_living(beside):
            write(beside)
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in one step; an ``OSError`` names the file."""
    try:
        write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}; choose another file") from error


def remove_litter(folder: Path, names: Iterable[str] | None = None) -> None:
    """Deletes what processes that are gone were writing.

    A file of a process that lives stays: here, by its number; on other machines that share the
    folder, by the lock that it holds.

    Args:
        folder: where to look, not below it.
        names: of the files that they were writing; any in a folder that is ours alone.
    """
    wanted = None if names is None else set(names)
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            stem, _, pid = entry.rpartition(".")
            ours = stem[:1] == "." and (wanted is None or stem[1:] in wanted)
            if ours and pid.isdecimal() and _is_gone(int(pid)):
                _remove_unlocked(folder / entry)


@contextlib.contextmanager
def _marked_as_living(path: Path) -> Iterator[None]:
    """Inside, this process holds a lock on the file, which ends with the process."""
    if fcntl is None:
        yield
        return
    with path.open("ab") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _remove_unlocked(path: Path) -> None:
    assert fcntl is not None
    with contextlib.suppress(OSError), path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def _is_gone(pid: int) -> bool:
    """Whether no process on this machine has this number."""
    if fcntl is None or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _sync_folder(folder: Path) -> None:
    """Makes a rename survive a power cut."""
    if fcntl is None:
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(opened)
