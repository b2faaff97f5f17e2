"""How to train a run again: the command, and what it was made with."""

import re
import shlex
from collections.abc import Sequence

from blockout.runs import Run, TrainConfig

NOT_REPEATED = ("run", "restart", "cache", "workers")


def command(run: Run) -> str:
    """As it was typed, or from the config if it was trained from Python or with a config file.

    Leaves out the folder, which is taken.
    """
    words = _words(run.environment.command)
    if words[1:2] == ["train"] and not any(word.startswith("--config") for word in words):
        return shlex.join(["blockout", *_without_folder(words[1:])])
    flags = []
    for name, value in _chosen(run).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        flags += [f"--{name.replace('_', '-')}", text]
    return shlex.join(["blockout", "train", *flags])


def _chosen(run: Run) -> dict[str, object]:
    """Settings that differ from what training on the same images uses by default; some defaults
    follow from other settings."""
    config, chosen = run.config, dict[str, object]()
    while True:
        by_default = TrainConfig.from_flat({"data": config.data.data, **chosen}).resolved(
            image_size=config.data.image_size,
            steps=None if run.result is None else run.result.steps,
            stream=config.data.stream,
        )
        defaults = by_default.flat() | ({} if chosen else {"data": TrainConfig().data.data})
        more = {
            name: value
            for name, value in config.flat().items()
            if name not in NOT_REPEATED and value is not None and value != defaults[name]
        }
        if not more.keys() - chosen.keys():
            return chosen
        chosen |= more


def _words(command: str) -> list[str]:
    """As a shell splits it; at its spaces if quotes do not close."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _without_folder(words: Sequence[str]) -> list[str]:
    """
    >>> _without_folder(["train", "--run", "a", "--seed", "1", "--restart", "--run=b"])
    ['train', '--seed', '1']
    """
    left_out = [i for i, word in enumerate(words) if re.match(r"--(run|restart)(=|$)", word)]
    left_out += [i + 1 for i in left_out if words[i] == "--run"]
    return [word for i, word in enumerate(words) if i not in left_out]


def made_with(run: Run) -> list[str]:
    made, machine = run.environment, run.environment.machine
    names = [name for name in ("blockout", "torch", "python") if name in made.versions]
    told = [f"{name} {made.versions[name]}" for name in names]
    told.append(f"commit {made.commit}" if made.commit else "")
    told.append(machine.accelerator or machine.processor)
    told.append(f"{machine.cores} cores" if machine.cores else "")
    return [text for text in told if text]
