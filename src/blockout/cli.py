"""The command line: flags to dataclasses to one call.

Exit codes: 0 done, 1 the work failed, 2 wrong usage, 130 and 143 interrupted (Ctrl-C, SIGTERM).
"""

import dataclasses
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, set_parsing_settings

import blockout

PLAIN_SPELLINGS = {"--soft": "--hard=false", "--fixed": "--learned=false"}
OVERVIEW = """usage: blockout COMMAND [--help] ...

Networks that learn their own branching while they train.

  blockout train                          generated images, a couple of minutes
  blockout train --data cifar100          CIFAR-100, from $BLOCKOUT_DATA_DIR or the hub
  blockout train --data path/to/folder    your own images, one folder a class
  blockout evaluate RUN                   accuracy of a finished run
  blockout predict RUN image ...          what it sees in images or folders of images
  blockout doctor                         what this machine has, and what is in the way
  blockout --version

Each command explains its flags with --help. The same `blockout train` continues what was
interrupted; a finished run is not trained again.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the ``blockout`` command; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
        return 0 if arguments else 2
    if arguments[0] in ("--version", "-V"):
        print(f"blockout {blockout.__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there is {', '.join(COMMANDS)}"
        print(f"blockout: no command {command!r}{hint}", file=sys.stderr)
        return 2
    return COMMANDS[command](rest)


# --- commands -----------------------------------------------------------------------------------


def _train(arguments: list[str]) -> int:
    from blockout.training import TrainConfig, train
    from blockout.training.config import PARTS

    parser = _Parser(
        "train", "Trains a classifier of images and writes everything to a run folder."
    )
    parser.add_argument(
        "--config", action="config", help="YAML or JSON file of flags; a run's config.json too."
    )
    for part in PARTS:
        parser.add_class_arguments(part, None)
    switches = {
        f.name for part in PARTS for f in dataclasses.fields(part) if f.type in (bool, "bool")
    }
    values = _parse(parser, arguments, switches)

    def config() -> TrainConfig:
        return TrainConfig.from_flat({k: v for k, v in values.items() if k != "config"})

    chosen = _usage("train", config)
    if isinstance(chosen, int):
        return chosen

    def work() -> int:
        finished = (chosen.folder / "result.json").exists() and not chosen.run.restart
        folder = train(chosen)
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            if finished:
                print(f"this run is finished already; --restart begins anew. It is in {folder}")
            _summarise(folder)
        return 0

    return _work("train", work)


def _evaluate(arguments: list[str]) -> int:
    parser = _Parser("evaluate", "Accuracy of a finished run.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="Folder of a finished run.")
    parser.add_argument(
        "--split", default="test", choices=["test", "holdout", "train"], help="Which images."
    )
    parser.add_argument(
        "--weights",
        default="final",
        choices=["final", "best"],
        help="Which weights: the last, or the best on the hold-out.",
    )
    parser.add_argument(
        "--draws",
        type=int,
        default=0,
        help="Average over so many sampled architectures instead of using expected weights.",
    )
    parser.add_argument("--json", type=bool, default=False, help="Print JSON.")
    values = _parse(parser, arguments, {"json"})

    def work() -> int:
        from blockout.data import load
        from blockout.sampling import SampledModel
        from blockout.training import TrainConfig, evaluate, load_trained
        from blockout.training.files import CONFIG, read_json

        trained = load_trained(values["folder"], weights=f"{values['weights']}.safetensors")
        config = TrainConfig.from_flat(read_json(values["folder"] / CONFIG))
        data = load(config.data)
        split = {"test": data.test, "holdout": data.holdout, "train": data.train}[values["split"]]
        model = SampledModel(trained.model, values["draws"]) if values["draws"] else trained.model
        result = evaluate(model, split)
        if values["json"]:
            print(json.dumps({"split": values["split"], "images": len(split), **result.numbers()}))
        else:
            print(f"{values['split']}: {result.accuracy:.2f} % of {len(split)} images right, "
                  f"{result.top5:.2f} % among the first five, loss {result.loss:.4f}")  # fmt: skip
        return 0

    return _work("evaluate", work)


def _predict(arguments: list[str]) -> int:
    parser = _Parser("predict", "What a finished run sees in images, or in folders of images.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="Folder of a finished run.")
    parser.add_argument(
        "images", type=Path, nargs="+", metavar="IMAGE", help="Image files and folders."
    )
    parser.add_argument("--top", type=int, default=5, help="How many classes to name.")
    parser.add_argument(
        "--json", type=bool, default=False, help="Print a JSON object for each image."
    )
    values = _parse(parser, arguments, {"json"})

    def work() -> int:
        from blockout.prediction import find_images, predict
        from blockout.training import load_trained

        trained = load_trained(values["folder"])
        for found in predict(trained, find_images(values["images"]), max(values["top"], 1)):
            if values["json"]:
                print(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
            else:
                rows = zip(found.classes, found.probabilities, strict=True)
                print(found.image + "".join(f"\n  {p:6.1%}  {name}" for name, p in rows))
        return 0

    return _work("predict", work)


def _doctor(arguments: list[str]) -> int:
    parser = _Parser("doctor", "What this machine has, and what is in the way.")
    _parse(parser, arguments, set())

    def work() -> int:
        from blockout.doctor import diagnose

        marks = {"ok": "  ok     ", "note": "  note   ", "problem": "  PROBLEM"}
        states = set()
        for finding in diagnose():
            states.add(finding.state)
            print(marks[finding.state], finding.text)
        return int("problem" in states)

    return _work("doctor", work)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train, "evaluate": _evaluate, "predict": _predict, "doctor": _doctor,
}  # fmt: skip


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
    print(f"""everything is in {folder}:
  {files.RESULT}, {files.METRICS}      how well it does, and how it came there
  {files.FINAL}, {files.MODEL}    the network: weights and description
  {files.MEMBERSHIPS}           the learned P of every set of nodes
  {files.PREDICTIONS}, {files.THUMBNAILS}   what it said of the test images, and some of them
next: blockout evaluate {folder}; blockout predict {folder} IMAGE; tensorboard --logdir {folder}""")


# --- flags --------------------------------------------------------------------------------------


class _Parser(ArgumentParser):
    """Flags are spelled with dashes; a docstring under a dataclass field is its help."""

    def __init__(self, command: str, description: str) -> None:
        set_parsing_settings(docstring_parse_attribute_docstrings=True)
        super().__init__(prog=f"blockout {command}", description=description)

    def format_help(self) -> str:
        return _dashed(super().format_help())

    def format_usage(self) -> str:
        return f"usage: {self.prog} [--help] ...\n"

    def error(self, message: str, *rest: Any, **more: Any) -> Any:
        first = _dashed(message).strip()
        print(f"{self.prog}: {first}\n{self.prog} --help explains the flags", file=sys.stderr)
        raise SystemExit(2)


def _dashed(text: str) -> str:
    def flag(match: re.Match[str]) -> str:
        name = match.group(0)
        return name if name == "--print_config" else name.replace("_", "-")

    return re.sub(r"--[a-z][a-z_]*", flag, text)


def _parse(parser: ArgumentParser, arguments: list[str], switches: set[str]) -> dict[str, Any]:
    values = parser.parse_args(_normalised(arguments, switches))
    return dict(vars(values))


def _normalised(arguments: list[str], switches: set[str]) -> list[str]:
    """Dashes or underscores, ``--restart`` for ``--restart true``, ``--no-...``, ``--soft``."""
    result = []
    for place, word in enumerate(arguments):
        word = PLAIN_SPELLINGS.get(word, word)
        if not word.startswith("--"):
            result.append(word)
            continue
        name, equals, value = word.partition("=")
        name = "--" + name[2:].replace("-", "_")
        following = arguments[place + 1] if place + 1 < len(arguments) else "--"
        if not equals and name[2:] in switches and following.lower() not in ("true", "false"):
            name, equals, value = name, "=", "true"
        elif not equals and name.startswith("--no_") and name[5:] in switches:
            name, equals, value = "--" + name[5:], "=", "false"
        result.append(name + equals + value)
    return result


# --- errors -------------------------------------------------------------------------------------


def _usage(command: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        print(f"blockout {command}: {error}", file=sys.stderr)
        return 2


def _work(command: str, work: Callable[[], int]) -> int:
    """Runs the command; what a user can mend is said in a line, without a traceback."""
    from blockout.training.files import RunError
    from blockout.training.loop import Interrupted

    warnings.filterwarnings("ignore", module="lightning")
    try:
        return work()
    except Interrupted as stop:
        print(f"\n{stop}", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (RunError, ValueError, OSError) as error:
        print(f"blockout {command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
