"""The checkpoint of a run: one whole file, however many processes share the weights."""

import warnings
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from blockout.runs import digests
from blockout.runs.errors import RunError
from blockout.runs.folder import BEST, LOGS
from blockout.training.engine import Engine

FORMAT, BEFORE = 5, 4
"""Checkpoints of before are read too."""
NAMED_OTHERWISE = ("trunk", "steps", "epochs")
"""In the identity of before; ``config.json`` says the same, and is compared as well."""
OR_RESTART = ", or say --restart to start over"


@dataclass
class Tally:
    """What a run has counted and said so far, beyond the state of its engine."""

    seconds: float = 0.0
    """Time spent on training and evaluation."""
    loss_sum: float = 0.0
    """Sum of the losses of all images seen in this epoch."""
    hits: int = 0
    """How many of them were classified correctly."""
    seen: int = 0
    """How many there were."""
    unlogged: list[float] = field(default_factory=list)
    """Losses of the steps since the last line of metrics."""
    train_accuracy: float = 0.0
    """Of the last whole epoch, in per cent."""
    best_accuracy: float = -1.0
    """On the hold-out."""
    best_step: int = 0
    said: list[str] = field(default_factory=list)
    """Warnings already given."""
    logged: dict[str, int] = field(default_factory=dict)
    """How many entries each log has."""


def state_of(engine: Engine, tally: Tally, identity: dict[str, Any]) -> dict[str, Any]:
    """All that ``restore`` needs, gathered by all processes; whole on the first."""
    return {
        "format": FORMAT,
        "identity": identity,
        "engine": engine.state_dict(),
        "tally": asdict(tally),
    }


def restore(path: Path, engine: Engine, identity: dict[str, Any]) -> Tally:
    """Puts the engine back where the checkpoint stands; a run without one starts from nothing."""
    if not path.exists():
        if len(digests.recorded(path)) > 1:  # one may be of a first that never appeared
            raise RunError(f"{path} is missing; restore it from a copy{OR_RESTART}")
        return Tally(logged=dict.fromkeys(LOGS, 0))
    state = read(path)
    was = state["identity"]
    if state["format"] == BEFORE:
        was = {k: v for k, v in was.items() if k not in NAMED_OTHERWISE}
    changed = [k for k, v in identity.items() if was.get(k, v) != v]
    if changed:
        raise RunError(
            f"{path} belongs to another config ({', '.join(changed)} changed); "
            "name another folder with --run, or say --restart"
        )
    try:
        engine.load_state_dict(state["engine"])
    except (ValueError, RuntimeError) as error:  # names or shapes that do not fit the module
        raise RunError(_unreadable(path, error)) from error
    tally = Tally(**state["tally"])
    if tally.best_step:
        _require_best(path.with_name(BEST))
    return tally


def _require_best(path: Path) -> None:
    """The best weights so far: if no later ones are better, the run ends with this very file."""
    if not path.exists():
        raise RunError(f"{path} is missing; restore it from a copy{OR_RESTART}")
    digests.require_undamaged(path, OR_RESTART)


def read(path: Path) -> dict[str, Any]:
    """A checkpoint as plain tensors and numbers; nothing in it is executed."""
    digests.require_undamaged(path, OR_RESTART)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is damaged, torch says more than one line
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged files
        raise RunError(_unreadable(path, error)) from error
    if not isinstance(state, dict) or state.get("format") not in (FORMAT, BEFORE):
        raise RunError(f"{path} was written by another version; say --restart to start over")
    parts = [state.get(name) for name in ("identity", "engine", "tally")]
    tally = {f.name for f in fields(Tally)}
    if not all(isinstance(part, dict) for part in parts) or not state["tally"].keys() <= tally:
        raise RunError(_unreadable(path, KeyError()))
    return state


def _unreadable(path: Path, error: Exception) -> str:
    return (
        f"{path} is damaged and cannot be read ({type(error).__name__}); restore it from a copy"
        f"{OR_RESTART}"
    )
