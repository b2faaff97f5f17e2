"""How a command ends: an exit code, and one line about what went wrong.

What a user can mend is said as it is. Anything else is our mistake: its traceback is saved.
"""

import contextlib
import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
from importlib import metadata
from pathlib import Path

import torch

import blockout
from blockout.commands.runs import one_line
from blockout.starting import is_first_process
from blockout.terminal import printable_lines

SOURCE = str(Path(blockout.__file__).parent)
NO_MEMORY = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
"""What torch's allocator for the CPU says, in a RuntimeError."""

CONTINUED = ("train", "reproduce")
CONTINUES = ": what is done is kept, and the same command continues"

LOST_WORKER = "DataLoader worker (pid"
"""What torch says of one that was killed, wherever it notices."""
NOT_CONNECTED = "a process was lost while they connected; the same command continues"
"""Later, a run itself notices that, and says which."""
WORKER_WAS_LOST = (
    "a process that reads images was killed, often because memory is short: --workers 0 reads them "
    "without. The same command continues"
)


def exit_code(name: str, error: BaseException, *, debug: bool = False) -> int:
    """Says how a command ended, and returns what that means to the shell.

    Args:
        name: of the command.
        error: what ended it.
        debug: show the traceback.
    """
    if isinstance(error, BrokenPipeError):
        return 141
    if debug:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        kept = CONTINUES if name.endswith(CONTINUED) else ""
        return _said(f"\ninterrupted{kept}", 130) if is_first_process() else 130
    if isinstance(error, RuntimeError):
        from blockout.runs.errors import RunError, ToldElsewhere
        from blockout.training.interrupts import Interrupted

        if isinstance(error, Interrupted):
            code = error.exit_code
            return _said(f"\n{error}", code) if is_first_process() else code
        if isinstance(error, ToldElsewhere):
            return 1
        if isinstance(error, RunError):
            return _said(f"{name}: {one_line(error)}", 1)
        if isinstance(error, torch.distributed.DistError):
            return _said(f"{name}: {NOT_CONNECTED}", 1) if is_first_process() else 1
        if str(error).startswith(LOST_WORKER):
            return _said(f"{name}: {WORKER_WAS_LOST}", 1)
    if _is_out_of_memory(error):
        return _said(f"{name}: there is not enough memory{_asked_for(error)}", 1)
    if _can_be_mended(error):
        return _said(f"{name}: {one_line(error)}", 1)
    return _said(f"{name}: {_unexpected(error)}", 1)


def flush_output() -> None:
    """Writes what is left; whoever read it may be gone, or the disk full."""
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
        raise


def silence(stream: object) -> None:
    """Python flushes once more when it ends; nobody is to hear of that."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # pyright: ignore


def _said(line: str, code: int) -> int:
    try:
        print(printable_lines(line), file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)
    return code


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)


def _asked_for(error: BaseException) -> str:
    """How much, in the words of torch's allocator or of whoever else refuses."""
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    if asked:
        return f" for {int(asked[1]) / 1e9:,.1f} GB at once; a smaller model or batch needs less"
    return f": {one_line(error)}" if str(error) else ""


def _can_be_mended(error: BaseException) -> bool:
    """Files and packages that are missing, and wrong values that we ourselves refuse."""
    return isinstance(error, ImportError | OSError) or (
        isinstance(error, ValueError) and _raised_by_us(error)
    )


def _raised_by_us(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return not frames or frames[-1].filename.startswith(SOURCE)


def _unexpected(error: BaseException) -> str:
    told = f"unexpected error, a mistake in blockout: {type(error).__name__}: {one_line(error)}"
    try:
        where = f"the traceback is in {_save(error)}"
    except OSError:
        where = "--debug shows the traceback"
    return f"{told}; {where}; please report it{_where_to_report()}"


def _save(error: BaseException) -> Path:
    """Puts all that a report needs into a file for temporary ones."""
    descriptor, name = tempfile.mkstemp(prefix="blockout-error-", suffix=".txt", text=True)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{shlex.join(sys.argv)}\nblockout {blockout.__version__}, ")
        file.write(f"torch {torch.__version__}, Python {platform.python_version()}\n\n")
        file.writelines(traceback.format_exception(error))
    return Path(name)


def _where_to_report() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        for entry in metadata.metadata("blockout").get_all("Project-URL") or []:
            name, _, address = entry.partition(", ")
            if name.lower() in ("issues", "bug tracker"):
                return f" at {address}"
    return ""
