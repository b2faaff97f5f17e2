"""The command line: which command, and what its end means to the shell.

Exit codes: 0 done, 1 the work failed, 2 wrong usage, 130, 143 and 129 interrupted (Ctrl-C, SIGTERM,
SIGHUP), 141 nobody reads the output any more.
"""

import contextlib
import importlib
import re
import signal
import sys
import warnings
from collections.abc import Sequence

import blockout
from blockout import starting
from blockout.commands.endings import exit_code, flush_output, silence
from blockout.commands.flags import nearest
from blockout.terminal import shown_output, tell

OVERVIEW = """usage: blockout COMMAND [--help] ...

Networks that learn their own branching while they train.

  blockout train                          generated images, a couple of minutes
  blockout train --data cifar100          CIFAR-100, from $BLOCKOUT_DATA_DIR or the hub
  blockout train --data path/to/folder    your own images, one folder per class
  blockout evaluate RUN                   accuracy of a finished run
  blockout predict RUN image ...          what it sees in images or folders of images
  blockout structure RUN                  which classes and nodes belong together, what is left
  blockout report RUN ...                 a page to explore what runs have learned
  blockout figures RUN ... --out DIR      the paper's figures, drawn from runs
  blockout compact RUN                    a smaller network, and how fast the whole is
  blockout export RUN --format onnx       one file that runs elsewhere (or pt2, safetensors)
  blockout reproduce table1               the paper's tables again, with seeds and spread
  blockout cache                          what is kept for a faster start, and deleting it
  blockout doctor                         what this machine has, and what is in the way
  blockout --version

Each command explains its flags with --help, and shows the traceback of what fails with --debug.
The same `blockout train` continues what was interrupted; a finished run is not trained again.
"""
COMMANDS = tuple(dict.fromkeys(re.findall(r"^  blockout (\w+)", OVERVIEW, re.MULTILINE)))
"""Each is a module of ``blockout.commands``, loaded when it is asked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the ``blockout`` command; returns the exit code.

    Whatever goes wrong is said in one line; with ``--debug``, after its traceback.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    name = f"blockout {words[0]}" if words and words[0] in COMMANDS else "blockout"
    with contextlib.suppress(AttributeError):  # names of files and classes may not be printable
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore
    try:
        starting.over()
        with shown_output():
            code = _dispatch(words)
        flush_output()
    except BrokenPipeError as error:
        silence(sys.stdout)
        code = exit_code(name, error)
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(name, error, debug=debug)
    if arguments is None:  # the process ends now, whatever is pressed
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("--version", "-V"):
        print(f"blockout {blockout.__version__}")
        return 0
    if words[0] not in COMMANDS:
        hint = nearest(words[0], COMMANDS) or f"; there is {', '.join(COMMANDS)}"
        tell(f"blockout: no command {words[0]!r}{hint}")
        return 2
    warnings.filterwarnings("ignore", module="lightning")
    try:
        return importlib.import_module(f"blockout.commands.{words[0]}").run(words[1:])
    except SystemExit as stop:  # help has been printed, or usage was wrong
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


if __name__ == "__main__":
    sys.exit(main())
