"""The checkpoint of a run: one whole file, however many processes share the weights."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from blockout.runs.folder import RunError
from blockout.training.engine import Engine

FORMAT = 3


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
    best_accuracy: float = -1.0
    """On the hold-out."""
    best_step: int = 0
    said: list[str] = field(default_factory=list)
    """Warnings already given."""


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
        return Tally()
    state = read(path)
    changed = [k for k, v in identity.items() if state["identity"].get(k, v) != v]
    if changed:
        raise RunError(
            f"{path} belongs to another config ({', '.join(changed)} changed); "
            "name another folder with --run, or say --restart"
        )
    engine.load_state_dict(state["engine"])
    return Tally(**state["tally"])


def read(path: Path) -> dict[str, Any]:
    """A checkpoint as plain tensors and numbers; nothing in it is executed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged files
        raise RunError(
            f"{path} is damaged and cannot be read ({type(error).__name__}); "
            "say --restart to start over"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise RunError(f"{path} was written by another version; say --restart to start over")
    return state
