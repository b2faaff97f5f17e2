"""The command line: which command, and what its end means to the shell.

Exit codes: 0 done, 1 the work failed, 2 wrong usage, 130 and 143 interrupted (Ctrl-C, SIGTERM), 141
nobody reads the output any more.
"""

import importlib
import os
import re
import sys
import warnings
from collections.abc import Sequence

import torch

import blockout
from blockout.commands.flags import nearest
from blockout.commands.runs import one_line

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
  blockout compact RUN                    a smaller network that is really faster
  blockout export RUN --format onnx       one file that runs elsewhere (or pt2, safetensors)
  blockout cache                          what is kept for a faster start, and deleting it
  blockout doctor                         what this machine has, and what is in the way
  blockout --version

Each command explains its flags with --help. The same `blockout train` continues what was
interrupted; a finished run is not trained again.
"""
COMMANDS = tuple(dict.fromkeys(re.findall(r"^  blockout (\w+)", OVERVIEW, re.MULTILINE)))
"""Each is a module of ``blockout.commands``, loaded when it is asked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the ``blockout`` command; returns the exit code.

    What a user can mend is said in a line, without a traceback.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = f"blockout {words[0]}" if words and words[0] in COMMANDS else "blockout"
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ImportError, ValueError, OSError, MemoryError) as error:
        return _failed(name, error)
    except RuntimeError as error:
        from blockout.training import Interrupted, RunError

        if isinstance(error, Interrupted):
            if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
                print(f"\n{error}", file=sys.stderr)
            return error.exit_code
        if isinstance(error, RunError | torch.OutOfMemoryError):
            return _failed(name, error)
        raise


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("--version", "-V"):
        print(f"blockout {blockout.__version__}")
        return 0
    if words[0] not in COMMANDS:
        hint = nearest(words[0], COMMANDS) or f"; there is {', '.join(COMMANDS)}"
        print(f"blockout: no command {words[0]!r}{hint}", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore", module="lightning")
    try:
        return importlib.import_module(f"blockout.commands.{words[0]}").run(words[1:])
    except SystemExit as stop:  # help has been printed, or usage was wrong
        return int(stop.code or 0)


def _failed(name: str, error: Exception) -> int:
    """The work cannot be done."""
    print(f"{name}: {one_line(error)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
