"""Runs the command in processes of their own: imports happen once, then each case is a fork.

A watched process has limits on time and memory, and is caught when it talks to the network, starts
a program, or writes outside its folder.
"""

import contextlib
import ctypes
import functools
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.calls import Supervisor, ask_before_calls

SECONDS, MEMORY = 30.0, 2 << 30
COLLAPSE, HUGE_PAGE = 25, 2 << 20
"""What to ask of the kernel (MADV_COLLAPSE, Linux 6.1), and the size of a huge page in bytes."""
BUSY_MACHINE = 4
"""A command that waits for a processor so many times as long as it may compute, hangs."""
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname")
PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")
ALLOWED_PROGRAMS = ("git",)
"""`train` notes the commit that it was made with."""
PRELOADED = (
    "torch", "blockout.commands.cli", "blockout.training", "blockout.training.fabric", "datasets",
    "blockout.show.page.page", "blockout.show.figures", "blockout.export", "onnx", "onnxruntime",
    "onnxscript", "torch.export", "torch.onnx", "lightning.fabric.loggers", "tensorboard.compat",
    "torch.utils.tensorboard", "PIL.Image", "jsonargparse", "transformers", "sklearn.cluster",
    "docstring_parser", "attrs", "rich._emoji_codes", "torch.utils.serialization.config",
    *(f"blockout.commands.{name}" for name in (
        "cache", "compact", "evaluate", "export", "figures", "predict", "report", "structure",
        "train",
    )),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it did meanwhile."""

    out: str
    err: str
    code: int
    """Exit code, or minus the number of the signal that ended it."""
    seconds: float
    peak: int
    """Most memory of one process, in bytes."""
    breaches: tuple[str, ...] = ()
    """Network, programs, files elsewhere."""
    stopped: str = ""
    """Why we ended it: a hang, or its memory."""
    left: tuple[int, ...] = field(default=(), compare=False)
    """Processes that were still there afterwards."""


def preload() -> None:
    """Imports what commands import, so that forks need not."""
    import importlib
    import warnings

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    for name in PRELOADED:
        importlib.import_module(name)
    import torch
    from PIL import Image

    Image.preinit()
    torch.set_num_threads(1)  # a fork cannot use threads that its parent has started
    _measure_briefly()
    _share_with_forks()
    warnings.resetwarnings()


def draw(run: Path) -> None:
    """Draws the page of a run here, so that forks need not load Plotly and the templates, nor parse
    the same paths of figures again."""
    from plotly import basedatatypes

    from blockout.runs import Run
    from blockout.show.page.page import as_html

    parse = basedatatypes._str_to_dict_path_full
    basedatatypes._str_to_dict_path_full = functools.cache(parse)
    as_html([Run.open(run)])
    _share_with_forks()


def _measure_briefly() -> None:
    """How fast something is does not matter here: what is timed runs once, not for a second."""
    from blockout.compact import layout
    from blockout.models import features
    from blockout.training import compaction, whole

    def once(runs: Sequence[Callable[[], object]], **_: object) -> list[list[float]]:
        return [[timeit.timeit(run, number=1)] for run in runs]

    for module in (layout, compaction, whole):
        module.in_turns = once  # pyright: ignore
    features.REPEATS, features.AT_LEAST = 1, 0.0


def _share_with_forks() -> None:
    """Forks do not copy what is here to count references; and fewer, larger pages fork faster."""
    import gc

    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    for start, end in _heaps():
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), COLLAPSE)  # if it can


def _heaps() -> list[tuple[int, int]]:
    """Addresses of memory that belongs to no file, in whole huge pages."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, _, *name = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in place.split("-"))
        start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if rights.startswith("rw") and name in ([], ["[heap]"]) and start < end:
            found.append((start, end))
    return found


def command(
    arguments: Sequence[str],
    folder: Path,
    *,
    supervisor: Supervisor | None = None,
    seconds: float = SECONDS,
    kill_after: float | None = None,
    kill_with: int = signal.SIGKILL,
    memory: int | None = None,
    fresh: bool = False,
) -> Outcome:
    """Runs ``blockout ARGUMENTS`` in ``folder`` to its end.

    Args:
        arguments: of the command.
        folder: where it works; nothing outside may be written.
        supervisor: asked before every system call that changes a file.
        seconds: of computing until it counts as hanging.
        kill_after: send a signal after so many seconds,
        kill_with: namely this one.
        memory: bytes that it may ask for beyond what imports take, as on a small machine.
        fresh: a new interpreter in place of a fork.
    """
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, ours:
        began, pid = time.monotonic(), os.fork()
        if pid == 0:
            if memory is not None:
                used = int(Path("/proc/self/statm").read_text().split()[0])
                most = used * os.sysconf("SC_PAGESIZE") + memory
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            _become(arguments, folder, (out.fileno(), err.fileno()), theirs, supervisor, fresh)
        theirs.close()
        watch = _Watch(pid, began, seconds)
        if kill_after is not None:
            watch.signal, watch.signal_at = kill_with, began + kill_after
        status, peak = watch.follow(ours, supervisor)
        left = _end_group(pid)
        said, complained = (os.pread(file.fileno(), 1 << 24, 0) for file in (out, err))
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            watch.told += ours.recv(1 << 16)
    breaches = tuple(dict.fromkeys(watch.told.decode(errors="replace").split("\n")[:-1]))
    code = os.waitstatus_to_exitcode(status)
    taken = time.monotonic() - began
    texts = said.decode(errors="replace"), complained.decode(errors="replace")
    return Outcome(*texts, code, taken, max(peak, watch.peak), breaches, watch.why, left)


class _Watch:
    """Follows one process: answers for its calls, and ends it when it takes too much."""

    def __init__(self, pid: int, began: float, seconds: float) -> None:
        self.pid, self.began, self.seconds = pid, began, seconds
        self.signal, self.signal_at = int(signal.SIGKILL), math.inf
        self.why, self.peak, self.told = "", 0, b""

    def follow(self, link: socket.socket, supervisor: Supervisor | None) -> tuple[int, int]:
        poll, ended = select.poll(), os.pidfd_open(self.pid)
        poll.register(ended, select.POLLIN)
        listener = None
        if supervisor is not None:
            listener = socket.recv_fds(link, 1, 1)[1][0]
            poll.register(listener, select.POLLIN)
        try:
            while True:
                ready = dict(poll.poll(50))
                if ended in ready:
                    break
                if listener is not None and ready.get(listener, 0) & select.POLLIN:
                    assert supervisor is not None
                    supervisor.answer(listener)
                self._limit()
        finally:
            os.close(ended)
            if listener is not None:
                os.close(listener)
        _, status, usage = os.wait4(self.pid, 0)
        return status, usage.ru_maxrss * 1024

    def _limit(self) -> None:
        now = time.monotonic()
        with contextlib.suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            self.peak = max(self.peak, pages * os.sysconf("SC_PAGESIZE"))
        if now > self.began + self.seconds and self._has_had(self.seconds, now):
            self.why = "hangs"
        elif self.peak > MEMORY:
            self.why = "takes too much memory"
        if self.why:
            os.kill(self.pid, signal.SIGKILL)
        elif now > self.signal_at:
            self.signal_at = math.inf
            os.kill(self.pid, self.signal)

    def _has_had(self, seconds: float, now: float) -> bool:
        """So much of a processor; or, where others need it, several times as long on the clock."""
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            return used > seconds or now > self.began + BUSY_MACHINE * seconds
        return True


def _end_group(leader: int, patience: float = 60.0) -> tuple[int, ...]:
    """Waits for what a command has started, then ends the rest; returns the rest."""
    until = time.monotonic() + patience
    while (rest := _members(leader)) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in rest:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return tuple(rest)


def _members(leader: int) -> list[int]:
    """Living processes of the session that a command has led."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if fields[3] == str(leader) and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def _become(
    arguments: Sequence[str],
    folder: Path,
    streams: tuple[int, int],
    link: socket.socket,
    supervisor: Supervisor | None,
    fresh: bool,
) -> None:
    """The fork turns into the command; never returns."""
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        (folder / "tmp").mkdir(exist_ok=True)
        os.environ |= {"TMPDIR": str(folder / "tmp"), "HOME": str(folder.parent), "COLUMNS": "100"}
        os.environ["BLOCKOUT_CACHE_DIR"] = str(folder / "cache")
        tempfile.tempdir = None
        if supervisor is not None:
            ask_before_calls(link)
        if fresh:
            os.execv(sys.executable, [sys.executable, "-m", "blockout", *arguments])
        _catch_breaches(folder, link)
        code = _main(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)


def _main(arguments: Sequence[str]) -> int:
    """What ``python -m blockout`` does, up to the end of the interpreter."""
    import atexit
    import importlib.util
    import threading

    from blockout.commands.cli import main

    sys.modules["__main__"].__spec__ = importlib.util.find_spec("blockout.__main__")
    sys.argv = ["blockout", *arguments]
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    code = main()
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()
    return code


def _catch_breaches(folder: Path, link: socket.socket) -> None:
    """Refuses what no command may do here, and tells the server of it."""
    others = f"{folder.parent}/"  # rooms of other cases, which may be in /dev/shm

    def tell(what: str) -> None:
        link.send(f"{what}\n".encode())
        raise PermissionError(what)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NETWORK and not (event == "socket.connect" and isinstance(arguments[1], str)):
            tell(f"network: {arguments}"[:200])
        elif event in PROGRAMS and arguments[0] not in ALLOWED_PROGRAMS:
            tell(f"program: {arguments[0]}"[:200])
        elif event == "open" and isinstance(arguments[0], str) and _writes(arguments):
            path = os.path.abspath(arguments[0])
            elsewhere = path.startswith(others) or not path.startswith(("/dev/", "/proc/self/"))
            if elsewhere and not path.startswith(str(folder)):
                tell(f"writes: {path}")

    sys.addaudithook(watch)


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 else 0
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def in_parallel(
    work: Callable[[Any], dict[str, Any]],
    tasks: Iterable[Any],
    workers: int,
    until: float = math.inf,
) -> Iterator[dict[str, Any]]:
    """Results of ``work`` as they come, each with its task under ``case``; whichever worker is free
    takes the next.

    After ``until`` (of the monotonic clock) none is begun. Workers share one pipe, where only short
    lines are whole: a result has at most ``select.PIPE_BUF`` bytes.
    """
    waiting = list(tasks)
    queue, put = os.pipe()
    results, tell = os.pipe()
    os.write(put, b"".join(i.to_bytes(4, "little") for i in range(len(waiting))))
    os.close(put)
    pids = []
    for _ in range(min(workers, len(waiting))):
        if (pid := os.fork()) == 0:
            os.close(results)
            _serve(work, waiting, queue, tell, until)
        pids.append(pid)
    os.close(queue)
    os.close(tell)
    with open(results, encoding="utf-8") as lines:
        for line in lines:
            found = json.loads(line)
            yield {"case": waiting[found.pop("number")], **found}
    for pid in pids:
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError("a worker of the torture itself has failed; see above")


def _serve(
    work: Callable[[Any], dict[str, Any]], tasks: list[Any], queue: int, tell: int, until: float
) -> None:
    try:
        while (number := os.read(queue, 4)) and time.monotonic() < until:
            place = int.from_bytes(number, "little")
            found = json.dumps({"number": place, **work(tasks[place])}).encode() + b"\n"
            assert len(found) <= select.PIPE_BUF, f"{len(found)} bytes may be torn"
            os.write(tell, found)
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
