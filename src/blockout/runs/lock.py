"""One process at a time works on a run folder.

The lock is the system's: it ends with the process that holds it, however that ends.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from blockout import files
from blockout.runs.errors import RunError
from blockout.runs.folder import LOCK, require_files
from blockout.terminal import tell

PATIENCE = 0.5
"""Seconds to wait for a process that only writes a file."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a folder, as its lock file says."""

    pid: int
    host: str
    since: str
    work: str

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"process {self.pid}{where}, {self.work} since {self.since}"


@contextlib.contextmanager
def held(folder: Path, work: str) -> Iterator[None]:
    """Inside, no other process works on the folder.

    Raises:
        RunError: one does; the message names it. Nothing has been touched.
    """
    require_files(folder)
    path = folder / LOCK
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout as error:
        raise RunError(
            f"{folder} is in use by {_holder(path)}; wait until it ends, stop it, or name another "
            "folder with --run"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise RunError(
                f"cannot write to {folder}: {error.strerror}; name another folder with --run"
            ) from error
        tell(f"note: the file system of {folder} has no locks; train there only once at a time")
    try:
        _sign(path, work)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
        lock.release()


def _sign(path: Path, work: str) -> None:
    """Says who holds the folder; without this the lock still holds."""
    since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    me = Holder(os.getpid(), socket.gethostname(), since, work)
    with contextlib.suppress(OSError):
        path.write_bytes(msgspec.json.encode(me))


def _holder(path: Path) -> Holder | str:
    try:
        return msgspec.json.decode(files.read_bytes(path), type=Holder)
    except (OSError, msgspec.DecodeError):
        return "another process"
