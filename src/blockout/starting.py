"""Ctrl-C while the ``blockout`` command starts: one line, not a traceback from the imports.

The package is imported before the command can catch anything, and torch takes seconds. Imported by
anything but the command, this module does nothing.
"""

import os
import signal
import sys


def is_first_process() -> bool:
    """Whether this process speaks for a training run of several."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def leave(*_: object) -> None:
    """Ends the process at once: nothing has been begun."""
    if is_first_process():
        os.write(2, b"\ninterrupted\n")
    os._exit(130)


def over() -> None:
    """From now on Ctrl-C is a ``KeyboardInterrupt``."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_the_command() -> bool:
    """``-m`` stands there while ``python -m blockout`` imports the package."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name == "-m" or os.path.splitext(name)[0] == "blockout"


if _is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, leave)
