"""``native.c`` as a library: compiled at first use, and kept in your cache folder.

Nothing of this is needed: without a compiler, or where anything is in the way, products are
computed by torch alone. ``found().told`` says which, and ``blockout doctor`` repeats it.

A kept library is loaded only if it is yours, nobody else may write to it, and it is whole.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

from blockout import files

SWITCH = "BLOCKOUT_NATIVE"
"""Set to 0, this variable switches compiled kernels off."""
SOURCE = Path(__file__).with_name("native.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-march=native", "-shared", "-fPIC", "-w"), ("-O2", "-shared", "-fPIC", "-w")
"""A compiler that does not know the processor it runs on still builds what is common to all."""
SECONDS = 60
"""A compiler that takes longer is stopped."""
FAST, THREADS = 1, 2
"""What ``blockout_abilities`` says."""


class Found(NamedTuple):
    """The library, and where it is; or None, and why."""

    code: ctypes.CDLL | None
    told: str
    threads: bool = False
    """Whether it can use torch's threads."""


class Unavailable(Exception):
    """There is no library that can be used; the message says why."""


@functools.cache
def found() -> Found:
    """Looks for the library, and compiles it if need be, at the first call of a process."""
    if os.environ.get(SWITCH) == "0":
        return Found(None, f"{SWITCH}=0 switches them off")
    if os.name != "posix":
        return Found(None, f"they are not made for {platform.system()}")
    try:
        path = _kept()
        code = ctypes.CDLL(str(path))
        abilities = code.blockout_abilities()
    except (Unavailable, OSError, RuntimeError, subprocess.SubprocessError) as error:
        return Found(None, str(error))
    if not abilities & FAST:
        return Found(None, "they are not faster than torch on this processor")
    return Found(code, str(path), bool(abilities & THREADS))


def _kept() -> Path:
    """A library for this source and this processor, compiled now if it is not there yet."""
    source, folder = SOURCE.read_bytes(), _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(folder)
    for flags in FLAGS:
        path = folder / f"{_digest(source, flags)}.so"
        try:
            if not _is_whole(path):
                files.write_atomically(path, functools.partial(_compile, flags))
            return path
        except Unavailable:
            if flags is FLAGS[-1]:
                raise
    raise AssertionError("the last flags return or raise")


def _folder() -> Path:
    return files.cache_folder() / "native"


def _digest(source: bytes, flags: tuple[str, ...]) -> str:
    """Changes with what the compiler is given and with the processor, which homes may share."""
    about = "\n".join((*flags, platform.system(), platform.machine(), _processor()))
    return hashlib.sha256(about.encode() + b"\0" + source).hexdigest()[:32]


def _processor() -> str:
    """Its name and what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    names = "model name", "flags", "Features", "CPU implementer", "CPU part"
    return "\n".join(line for line in lines if line.startswith(names))


def _require_private(place: Path) -> None:
    """Refuses what belongs to somebody else, and what others may write to."""
    status = place.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise Unavailable(f"{place} is a link; delete it")
    if status.st_uid != os.geteuid():
        raise Unavailable(f"{place} belongs to another user; set BLOCKOUT_CACHE_DIR")
    if status.st_mode & 0o022:
        raise Unavailable(f"others may write to {place}; chmod go-w it, or delete it")


def _is_whole(path: Path) -> bool:
    """Whether a library is there, ours, and as it was compiled: its digest stands at its end."""
    if not os.path.lexists(path):
        return False
    try:
        _require_private(path)
        content = files.read_bytes(path)
    except (Unavailable, OSError):
        return False
    return content[-32:] == hashlib.sha256(content[:-32]).digest()


def _compile(flags: tuple[str, ...], path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise Unavailable("there is no C compiler (cc, gcc or clang)")
    command = [compiler, *flags, "-o", str(path), str(SOURCE)]
    environment = os.environ | {"LC_ALL": "C"}
    run = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS
    )
    if run.returncode:
        said = run.stderr.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"{compiler} failed: {said[0] if said else run.returncode}")
    path.chmod(0o600)
    content = path.read_bytes()
    with path.open("ab") as file:
        file.write(hashlib.sha256(content).digest())
