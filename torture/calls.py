"""Every system call that changes a file passes here, whoever makes it: Python, C++, Rust, a thread.

The kernel asks before each of them (seccomp user notification, Linux 5.5 or newer): let it happen,
let it fail, or kill the process. Nothing is preloaded or patched, and child processes are included.
A kill before a call is a kill after the one before it: nothing on the disk changes in between.
"""

import array
import ctypes
import errno
import fcntl
import os
import platform
import re
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# On the file descriptor in the first argument, on the path in the given argument.
BY_DESCRIPTOR = ("write", "writev", "pwrite64", "ftruncate", "fallocate", "fsync", "fdatasync")
BY_PATH = {"openat": 1, "mkdirat": 1, "unlinkat": 1, "renameat": 3, "renameat2": 3, "linkat": 3}
OLD_BY_PATH = {"open": 0, "mkdir": 0, "rmdir": 0, "unlink": 0, "rename": 1, "link": 1}
NUMBERS = {
    "x86_64": {
        "seccomp": 317, "write": 1, "writev": 20, "pwrite64": 18, "ftruncate": 77, "fsync": 74,
        "fallocate": 285, "fdatasync": 75, "openat": 257, "mkdirat": 258, "unlinkat": 263,
        "renameat": 264, "renameat2": 316, "linkat": 265, "open": 2, "mkdir": 83, "rmdir": 84,
        "unlink": 87, "rename": 82, "link": 86,
    },
    "aarch64": {
        "seccomp": 277, "write": 64, "writev": 66, "pwrite64": 68, "ftruncate": 46, "fsync": 82,
        "fallocate": 47, "fdatasync": 83, "openat": 56, "mkdirat": 34, "unlinkat": 35,
        "renameat": 38, "renameat2": 276, "linkat": 37,
    },
}  # fmt: skip
NOTIFICATION, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
RANDOM = re.compile(r"\b[0-9a-f]{16,}\b|((?<=[.-])|(?<=tmp/))[a-z0-9_]{8}(?=/|$)|\d{3,}")
"""Parts of names that differ from run to run: keys, process numbers, times, temporary folders."""
MISSED = "missed: the call never came"
KILL = -1
"""An answer beside the numbers of errors."""


class Call(NamedTuple):
    """The nth call of its kind on a file; temporary names without what differs between runs."""

    name: str
    file: str
    nth: int


def available() -> bool:
    """Whether this kernel can ask us."""
    pid = os.fork()
    if pid == 0:
        try:
            _install()
        except (OSError, KeyError):
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def ask_before_calls(link: socket.socket) -> None:
    """In the process to watch, and before it starts work: hands our questions to the other end."""
    listener = _install()
    socket.send_fds(link, [b"."], [listener])
    os.close(listener)


def _install() -> int:
    """Installs the filter on this process and all its children; returns the listener."""
    libc, numbers = ctypes.CDLL(None, use_errno=True), NUMBERS[platform.machine()]
    asked = [number for name, number in numbers.items() if name != "seccomp"]
    load, allow, ask = (0x20, 0, 0, 0), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x7FC00000)
    jumps = [(0x15, len(asked) - i, 0, number) for i, number in enumerate(asked)]
    program = b"".join(struct.pack("HBBI", *line) for line in (load, *jumps, allow, ask))
    code = ctypes.create_string_buffer(program)
    lines = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    if libc.prctl(38, 1, 0, 0, 0):  # no new privileges
        raise OSError(ctypes.get_errno(), "prctl")
    listener = libc.syscall(numbers["seccomp"], 1, 8, lines)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


class Supervisor:
    """Answers for one command: ``decide`` gives an errno, ``KILL``, or None to go on."""

    def __init__(self, below: Path, decide: Callable[[Call], int | None]) -> None:
        self.below, self.decide = str(below.resolve()) + "/", decide
        self.names = {number: name for name, number in NUMBERS[platform.machine()].items()}
        self.calls: list[Call] = []
        self.times: Counter[tuple[str, str]] = Counter()
        self.met = self.killed = False

    def answer(self, listener: int) -> None:
        """Takes one question of the kernel and answers it."""
        question = array.array("B", bytes(NOTIFICATION.size))
        try:
            fcntl.ioctl(listener, RECEIVE, question)
            ident, pid, _, number, _, _, *arguments = NOTIFICATION.unpack(question.tobytes())
            code = self._decided(self.names[number], pid, arguments)
            if code == KILL:
                self.killed = True
                os.kill(pid, signal.SIGKILL)
            reply = ANSWER.pack(ident, 0, -(code or 0) if code != KILL else -errno.EIO, not code)
            fcntl.ioctl(listener, SEND, reply)
        except FileNotFoundError:  # the process has gone meanwhile
            pass

    def _decided(self, name: str, pid: int, arguments: list[int]) -> int | None:
        path = self._path(name, pid, arguments)
        if path is None or not path.startswith(self.below):
            return None
        file = RANDOM.sub("#", path.removeprefix(self.below))
        self.times[name, file] += 1
        call = Call(name, file, self.times[name, file])
        self.calls.append(call)
        answer = self.decide(call)
        self.met |= answer is not None
        return answer

    def _path(self, name: str, pid: int, arguments: list[int]) -> str | None:
        """Of the file that is about to change; None where none is."""
        try:
            if name in BY_DESCRIPTOR:
                return os.readlink(f"/proc/{pid}/fd/{arguments[0]}")
            place = (OLD_BY_PATH | BY_PATH)[name]
            if name.startswith("open") and not arguments[place + 1] & (os.O_CREAT | os.O_TRUNC):
                return None
            given = _text(pid, arguments[place])
            at = arguments[place - 1] if name in BY_PATH else -100
            base = f"/proc/{pid}/cwd" if ctypes.c_int(at).value < 0 else f"/proc/{pid}/fd/{at}"
            return os.path.normpath(os.path.join(os.readlink(base), given))
        except OSError:
            return None


def _text(pid: int, address: int) -> str:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        found = os.pread(memory.fileno(), 4096 - address % 4096, address)
        if b"\0" not in found:
            found += os.pread(memory.fileno(), 4096, address + len(found))
    return os.fsdecode(found.partition(b"\0")[0])
