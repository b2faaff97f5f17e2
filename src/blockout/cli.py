"""The command line: flags to dataclasses to one call.

Exit codes: 0 done, 1 the work failed, 2 wrong usage, 130 and 143 interrupted (Ctrl-C, SIGTERM), 141
nobody reads the output any more.
"""

import argparse
import dataclasses
import difflib
import json
import os
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

import blockout

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from blockout.training import TrainConfig, TrainedModel

PLAIN_SPELLINGS = {"--soft": "--hard=false", "--fixed": "--learned=false"}
WITHOUT_VALUE = ("help", "print_config")
YES_NO = ("true", "false", "yes", "no")
OVERVIEW = """usage: blockout COMMAND [--help] ...

Networks that learn their own branching while they train.

  blockout train                          generated images, about five minutes
  blockout train --data cifar100          CIFAR-100, from $BLOCKOUT_DATA_DIR or the hub
  blockout train --data path/to/folder    your own images, one folder a class
  blockout evaluate RUN                   accuracy of a finished run
  blockout predict RUN image ...          what it sees in images or folders of images
  blockout doctor                         what this machine has, and what is in the way
  blockout --version

Each command explains its flags with --help. The same `blockout train` continues what was
interrupted; a finished run is not trained again.
"""
TRAIN = """Trains a classifier of images and writes everything to a run folder. The same command
continues a run that was interrupted. Flags that take true or false may stand alone: --restart,
--no-tensorboard. --soft is --hard false, --fixed is --learned false."""


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
        hint = _nearest(words[0], COMMANDS) or f"; there is {', '.join(COMMANDS)}"
        print(f"blockout: no command {words[0]!r}{hint}", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore", module="lightning")
    try:
        return COMMANDS[words[0]](words[1:])
    except SystemExit as stop:  # help has been printed, or usage was wrong
        return int(stop.code or 0)


# --- commands -----------------------------------------------------------------------------------


def _train(arguments: list[str]) -> int:
    _require_training()
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from blockout.training import TrainConfig, files, train

    values = _train_flags(arguments)
    try:
        config = TrainConfig.from_flat(values)
    except ValueError as error:
        _refuse("blockout train", str(error))
    finished = (config.folder / files.RESULT).exists() and not config.run.restart
    folder = train(config)
    if getattr(rank_zero_only, "rank", 0) == 0:
        if finished:
            print(f"this run is finished already; --restart begins anew. It is in {folder}")
        with _damaged(folder / files.RESULT):
            _summarise(folder)
    return 0


def _evaluate(arguments: list[str]) -> int:
    parser = _Parser("evaluate", "Accuracy of a finished run on the images it was made with.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--split", default="test", choices=["test", "holdout", "train"],
                        help="which images (default: test)")  # fmt: skip
    parser.add_argument("--weights", default="final", choices=["final", "best"],
                        help="the last, or the best on the hold-out (default: final)")  # fmt: skip
    parser.add_argument("--draws", type=_at_least(2), metavar="N",
                        help="average over N sampled architectures instead of using the expected "
                        "weights")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    values = parser.parse_args(arguments)
    trained, config = _load_run(values.folder, values.weights)
    from blockout.sampling import SampledModel
    from blockout.training import RunError, evaluate, load_images

    split = getattr(load_images(config), values.split)
    if not len(split):
        raise RunError(
            f"the run in {values.folder} has no images in its {values.split} split "
            f"(--holdout {config.data.holdout:g}); choose another with --split"
        )
    model = SampledModel(trained.model, values.draws) if values.draws else trained.model
    torch.manual_seed(config.optimisation.seed)  # the same draws each time
    result = evaluate(model, split)
    if values.json:
        print(json.dumps({"split": values.split, "images": len(split), **result.numbers()}))
    else:
        print(f"{values.split}: {result.accuracy:.2f} % of {len(split)} images right, "
              f"{result.top5:.2f} % among the first five, loss {result.loss:.4f}")  # fmt: skip
    return 0


def _predict(arguments: list[str]) -> int:
    parser = _Parser("predict", "What a finished run sees in images, or in folders of images.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE",
                        help="image files, and folders of them")  # fmt: skip
    parser.add_argument("--top", type=_at_least(1), default=5, metavar="N",
                        help="how many classes to name (default: 5)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a JSON object for each image")
    values = parser.parse_args(arguments)
    trained, _ = _load_run(values.folder)
    from blockout.prediction import find_images, predict

    for found in predict(trained, find_images(values.images), values.top):
        if values.json:
            print(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
        else:
            rows = zip(found.classes, found.probabilities, strict=True)
            print(found.image + "".join(f"\n  {p:6.1%}  {name}" for name, p in rows))
    return 0


def _doctor(arguments: list[str]) -> int:
    description = "What this machine has, and what is in the way: exit code 1 where something is."
    _Parser("doctor", description).parse_args(arguments)
    from blockout.doctor import diagnose

    marks = {"ok": "  ok     ", "note": "  note   ", "problem": "  PROBLEM"}
    states = set()
    for finding in diagnose():
        states.add(finding.state)
        print(marks[finding.state], finding.text)
    return int("problem" in states)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train, "evaluate": _evaluate, "predict": _predict, "doctor": _doctor,
}  # fmt: skip


def _load_run(folder: Path, weights: str = "final") -> tuple["TrainedModel", "TrainConfig"]:
    """The model and the config of a finished run; what is missing or damaged is named."""
    _require_training()
    from blockout.training import RunError, TrainConfig, files, load_trained

    if folder.is_dir() and not (folder / files.CONFIG).exists():
        raise RunError(f"{folder} is not the folder of a run: there is no {files.CONFIG} in it")
    if (folder / files.RESULT).exists() and not (folder / files.MODEL).exists():
        raise RunError(
            f"the run in {folder} has no {files.MODEL}: it was trained from Python with a model of "
            f"its own; build that model there and load {files.FINAL} into it"
        )
    with _damaged(folder / files.MODEL):
        trained = load_trained(folder, weights=f"{weights}.safetensors")
        names, outputs = len(trained.classes), trained.model.describe()["head"]["classes"]
        if names != outputs:
            raise KeyError(f"{names} classes are named and {outputs} predicted")
    with _damaged(folder / files.CONFIG):
        return trained, TrainConfig.from_flat(files.read_json(folder / files.CONFIG))


def _summarise(folder: Path) -> None:
    """Where everything is, how good it is, and how its groups of classes compare with the truth."""
    from blockout.training import files

    result = files.read_json(folder / files.RESULT)
    test = result["test"]
    print(f"test accuracy {test['accuracy']:.2f} % (first five: {test['top5']:.2f} %)"
          f" after {result['steps']} steps in {result['seconds'] / 60:.1f} minutes")  # fmt: skip
    if groups := result["groups"]:
        print(f"learned class memberships in {groups['count']} groups against the true groups: "
              f"adjusted Rand {groups['adjusted_rand']:.2f}, normalised mutual information "
              f"{groups['nmi']:.2f}, "
              f"p = {groups['p_value']:.3g} by permutation")  # fmt: skip
    print(f"everything is in {folder}:")
    for names, what in (
        ((files.RESULT, files.METRICS), "how well it does, and how it came there"),
        ((files.FINAL, files.BEST, files.MODEL), "the network: weights and description"),
        ((files.MEMBERSHIPS,), "the learned P of every set of nodes"),
        ((files.PREDICTIONS, files.THUMBNAILS), "what it said of test images, and some of them"),
    ):
        if there := [name for name in names if (folder / name).exists()]:
            print(f"  {', '.join(there):<50}  {what}")
    board = f"; tensorboard --logdir {folder}" if (folder / files.EVENTS).exists() else ""
    print(f"next: blockout evaluate {folder}; blockout predict {folder} IMAGE{board}")


# --- flags --------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Plain flags, for commands that should work where little is installed."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(f"blockout {command}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        _refuse(self.prog, _plainly(message, self._option_string_actions))


def _at_least(least: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, got {text}"
            )
        return int(text)

    return whole_number


def _train_flags(arguments: list[str]) -> dict[str, Any]:
    """Values by field name; each dataclass field is a flag, with its docstring as help."""
    from blockout.training.config import PARTS

    kinds = {k: v for part in PARTS for k, v in typing.get_type_hints(part).items()}
    parser = _train_parser(kinds)
    parser.add_argument(
        "--config", action="config", metavar="FILE",
        help="YAML or JSON file of flags, such as a run's config.json; flags override it.",
    )  # fmt: skip
    for part in PARTS:
        parser.add_class_arguments(part, None)
    switches = {name for name, kind in kinds.items() if kind in (bool, bool | None)}
    values = parser.parse_args(_normalised(arguments, switches))
    return {k: v for k, v in vars(values).items() if k != "config"}


def _train_parser(kinds: dict[str, Any]) -> "ArgumentParser":
    from jsonargparse import ArgumentParser, set_parsing_settings

    class Parser(ArgumentParser):
        def format_help(self) -> str:
            return _readable(super().format_help())

        def error(self, message: str, *rest: Any, **more: Any) -> NoReturn:
            _refuse(self.prog, _plainly(message, self._option_string_actions, kinds))

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    usage = "blockout train [--config FILE] [--flag value ...]"
    return Parser("blockout train", description=TRAIN, usage=usage, allow_abbrev=False)


def _normalised(arguments: Sequence[str], switches: set[str]) -> list[str]:
    """``--name=value`` for each flag, however it is spelled; a config file first, for flags to win.

    >>> _normalised(["--lr", "-1e-3", "--no-tensorboard", "--config", "a.yaml"], {"tensorboard"})
    ['--config=a.yaml', '--lr=-1e-3', '--tensorboard=false']
    """
    words, result = list(arguments), []
    while words:
        word = words.pop(0)
        name, equals, value = PLAIN_SPELLINGS.get(word, word).partition("=")
        if not name.startswith("--"):
            result.append(word)
            continue
        name, following = name[2:].replace("-", "_"), words[0] if words else "--"
        if not equals and name.removeprefix("no_") in switches and name.startswith("no_"):
            name, equals, value = name[3:], "=", "false"
        elif not equals and name in switches and following.lower() not in YES_NO:
            equals, value = "=", "true"
        elif not equals and name not in WITHOUT_VALUE and not following.startswith("--"):
            equals, value = "=", words.pop(0)
        result.append(f"--{name}{equals}{value}")
    return sorted(result, key=lambda word: not word.startswith("--config="))


def _readable(text: str) -> str:
    """Flags with dashes, and without the types of Python where the text says what they mean."""
    text = re.sub(r"--(?!print_config)[a-z][a-z_]*", lambda m: m[0].replace("_", "-"), text)
    text = re.sub(r",\s+default:\s+null\)", ")", text)
    text = text.replace("{true,false,null}", "{true,false}")
    text = re.sub(r"type:\s+Literal\[[^\]]*\],\s+", "", text)
    return re.sub(r"\(type:\s+(\w+)\s+\|\s+null", r"(type: \1", text)


# --- errors -------------------------------------------------------------------------------------


def _plainly(message: str, flags: Iterable[str], kinds: dict[str, Any] | None = None) -> str:
    """A parser's complaint in one line that names the flag, in the words of this program."""
    message = " ".join(message.split())
    known = [flag for flag in flags if flag.startswith("--")]
    if unknown := re.match(r"unrecognized arguments: (\S+)", message):
        word = unknown[1].partition("=")[0]
        text = f"no flag {word}" if word.startswith("--") else f"unexpected argument {word!r}"
        return _readable(text + _nearest(word, known))
    if key := re.match(r"Option '(\S+)' is not accepted", message):
        near = _nearest(key[1].replace("-", "_"), [flag[2:] for flag in known])
        return f"--config names no flag {key[1]!r}{near}"
    if key := re.match(r'Parser key "(\w+)": ', message):
        got = re.search(r"G(?:iven|ot) value: (.*)", message)
        if got is None or not kinds or key[1] not in kinds:
            return _readable(f"--{key[1]}: {message[key.end() :]}")
        return _readable(f"--{key[1]} must be {_in_words(kinds[key[1]])}, got {got[1]}")
    message = message.replace("required: folder", "required: RUN").replace("images", "IMAGE")
    message = re.sub(r"^argument (\S+): (?=must)", r"\1 ", message)
    message = re.sub(r"^argument (\S+): expected one argument", r"\1 needs a value", message)
    return _readable(message.removeprefix("argument "))


def _in_words(kind: Any) -> str:
    """
    >>> _in_words(int | None)
    'a whole number'
    """
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(typing.get_args(kind))
    words = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
    return words.get(kind, "a text")


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _refuse(name: str, message: str) -> NoReturn:
    """Wrong usage."""
    print(f"{name}: {message}\n{name} --help explains the flags", file=sys.stderr)
    raise SystemExit(2)


def _failed(name: str, error: Exception) -> int:
    """The work cannot be done."""
    print(f"{name}: {_one_line(error)}", file=sys.stderr)
    return 1


def _one_line(error: BaseException) -> str:
    """The first line of the message, and the next where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def _require_training() -> None:
    try:
        import blockout.training  # noqa: F401
    except Exception as error:  # foreign packages that do not fit each other fail in many ways
        raise ImportError(
            f"a package that this needs is missing or broken ({_one_line(error)}); "
            "`blockout doctor` says what is in the way"
        ) from error


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Says of a JSON file that it is not what we wrote, wherever that comes to light."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        from blockout.training import RunError

        raise RunError(f"{path} is damaged ({type(error).__name__}: {error})") from error


if __name__ == "__main__":
    sys.exit(main())
