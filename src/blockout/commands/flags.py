"""Flags: from what the user types to values, and complaints in the words of this program."""

import argparse
import contextlib
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from blockout.terminal import printable, tell

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

PLAIN_SPELLINGS = {
    "--soft": "--hard=false",
    "--fixed": "--learned=false",
    "--guided": "--paper=false",
}
ALONE = {"finetune": "3"}
"""What a flag that takes a number means without one."""
WITHOUT_VALUE = ("help", "print_config")
LONGEST_WORD = 4096
"""Characters; as long as a path may be. Values are YAML, which takes hours for long nonsense."""
LARGEST_CONFIG = 1 << 20
"""Bytes; one that names every flag has about a thousand."""
TRAIN = """Trains an image classifier and writes everything to a run folder. Repeat the command to
continue a run that was interrupted. Flags that take true or false can stand alone: --restart,
--no-tensorboard. --soft means --hard false, --fixed means --learned false, --guided means
--paper false."""


class Parser(argparse.ArgumentParser):
    """Plain flags, for commands that should work where little is installed."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(f"blockout {command}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        refuse(self.prog, _plainly(message, self._option_string_actions))


def flag(
    to: Any, words: str, help: str, kind: Any = None, default: Any = None, **more: Any
) -> None:
    """Adds ``--name VALUE`` to a parser or to a group of it; ``--name`` alone is a switch.

    ``kind`` turns the text of a value into what it means, or lists the words to choose from. A
    default is said in the help.
    """
    name, _, value = words.partition(" ")
    if isinstance(kind, tuple):
        more["choices"] = kind
    else:
        more |= {"type": kind, "metavar": value} if value else {"action": "store_true"}
    if default is not None:
        said = default if isinstance(default, str | int) else " ".join(default)
        help, more["default"] = f"{help} (default: {said})", default
    to.add_argument(name, help=help, **more)


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    expected = f"of at least {least}" if most is None else f"from {least} to {most}"

    def whole_number(text: str) -> int:
        is_whole = re.fullmatch(r"[+-]?\d+", text)
        if not is_whole or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"must be a whole number {expected}, got {text}")
        return int(text)

    return whole_number


def between(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"must be a number from {least:g} to {most:g}, got {text}"
            )
        return value

    return number


def train_flags(arguments: list[str]) -> dict[str, Any]:
    """Values by field name; each dataclass field is a flag, with its docstring as help."""
    from blockout.runs.config import PARTS

    kinds = {k: v for part in PARTS for k, v in typing.get_type_hints(part).items()}
    parser = _train_parser(kinds)
    parser.add_argument(
        "--config",
        action="config",
        metavar="FILE",
        help="YAML or JSON file of flags, such as a run's config.json; flags override it.",
    )
    for part in PARTS:
        parser.add_class_arguments(part, None)
    switches = {name for name, kind in kinds.items() if kind in (bool, bool | None)}
    words = _normalised(arguments, switches)
    for word in words:
        if len(word) > LONGEST_WORD:
            refuse(parser.prog, f"{word[:20]}... must be at most {LONGEST_WORD:,} characters long")
        if word.startswith("--config="):
            _require_plain(Path(word.removeprefix("--config=")))
    try:
        values = {k: v for k, v in vars(parser.parse_args(words)).items() if k != "config"}
    except Exception as error:  # foreign parsers of YAML and JSON fail on nonsense in many ways
        refuse(parser.prog, f"a flag or a config cannot be read: {error}")
    for name, value in values.items():
        flag = _readable(f"--{name}")
        if value is None and types.NoneType not in typing.get_args(kinds[name]):
            refuse(parser.prog, f"{flag} must be {_in_words(kinds[name])}, got null")
        if isinstance(value, Path) and "\0" in str(value):
            refuse(parser.prog, f"{flag} must be a path, and paths have no null characters")
    return values


def _require_plain(path: Path) -> None:
    """Refuses a config that is nested or refers to itself: a few lines of that can fill the memory.

    What else is wrong with it, the parser says.
    """
    import yaml

    name, depth = f"--config {path}", 0
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        if path.exists() and not path.is_file():
            refuse("blockout train", f"{name} is not a regular file")
        if path.stat().st_size > LARGEST_CONFIG:
            refuse("blockout train", f"{name} must be at most {LARGEST_CONFIG:,} bytes long")
        for event in yaml.parse(path.read_text("utf-8"), Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > 2 or isinstance(event, yaml.AliasEvent):
                refuse("blockout train", f"{name} must name flags with plain values, as name: 3")


def _train_parser(kinds: dict[str, Any]) -> "ArgumentParser":
    from jsonargparse import ArgumentParser, set_parsing_settings

    class TrainParser(ArgumentParser):
        def format_help(self) -> str:
            return _readable(super().format_help())

        def error(self, message: str, *rest: Any, **more: Any) -> NoReturn:
            refuse(self.prog, _plainly(message, self._option_string_actions, kinds))

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    usage = "blockout train [--config FILE] [--flag value ...]"
    return TrainParser("blockout train", description=TRAIN, usage=usage, allow_abbrev=False)


def _normalised(arguments: Sequence[str], switches: set[str]) -> list[str]:
    """``--name=value`` for each flag, however it is spelled; a config file first, for flags to win.

    >>> _normalised(["--lr", "-1e-3", "--no-tensorboard", "--config", "a.yaml"], {"tensorboard"})
    ['--config=a.yaml', '--lr=-1e-3', '--tensorboard=false']
    >>> _normalised(["--restart", "--ema", "0.9", "--restart", "maybe"], {"restart"})
    ['--restart=true', '--ema=0.9', '--restart=maybe']
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
        elif not equals and name in ALONE and following.startswith("--"):
            equals, value = "=", ALONE[name]
        elif not equals and name in switches and following.startswith("--"):
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


def _plainly(message: str, flags: Iterable[str], kinds: dict[str, Any] | None = None) -> str:
    """A parser's complaint in one line that names the flag, in the words of this program."""
    message = " ".join(message.split())
    known = [flag for flag in flags if flag.startswith("--")]
    if unknown := re.match(r"unrecognized arguments: (\S+)", message):
        word = unknown[1].partition("=")[0]
        text = f"no flag {word}" if word.startswith("--") else f"unexpected argument {word!r}"
        return _readable(text + nearest(word, known))
    if key := re.match(r"Option '(\S+)' is not accepted", message):
        near = nearest(key[1].replace("-", "_"), [flag[2:] for flag in known])
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


def nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def refuse(name: str, message: str) -> NoReturn:
    """Wrong usage."""
    tell(f"{name}: {printable(message)}\n{name} --help explains the flags")
    raise SystemExit(2)
