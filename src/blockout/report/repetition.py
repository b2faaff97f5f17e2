"""How to train a run again: the command, and what it was made with."""

import html
import re
import shlex
from collections.abc import Sequence

from blockout.report.view import RunView
from blockout.training import TrainConfig

NO_PART_OF_IT = ("run", "restart", "cache", "workers")


def as_html(view: RunView) -> str:
    """The command to copy, with versions and machine below it."""
    return (
        "<p><b>To repeat it</b>:</p>\n"
        f'<pre class="command" tabindex="0">{html.escape(command(view))}</pre>\n'
        f'<p class="small">{html.escape(", ".join(_made_with(view)))}</p>'
    )


def command(view: RunView) -> str:
    """As it was typed, or from the config where it was trained from Python or by a config file;
    without the folder, which is taken."""
    words = _words(view.environment.get("command", ""))
    if words[1:2] == ["train"] and not any(word.startswith("--config") for word in words):
        return shlex.join(["blockout", *_without_folder(words[1:])])
    defaults = TrainConfig().flat()
    flags = []
    for name, value in view.config.items():
        if name in NO_PART_OF_IT or name not in defaults or value == defaults[name]:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        flags += [f"--{name.replace('_', '-')}", shlex.quote(text)]
    return " ".join(["blockout", "train", *flags])


def _words(command: str) -> list[str]:
    """As a shell takes it apart; at its spaces where somebody's quotes do not close."""
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


def _made_with(view: RunView) -> list[str]:
    versions, machine = view.environment.get("versions", {}), view.environment.get("machine", {})
    made = [
        f"{name} {versions[name]}" for name in ("blockout", "torch", "python") if name in versions
    ]
    if commit := view.environment.get("commit"):
        made.append(f"commit {commit}")
    if processor := machine.get("accelerator") or machine.get("processor"):
        made.append(processor)
    if cores := machine.get("cores"):
        made.append(f"{cores} cores")
    return made
