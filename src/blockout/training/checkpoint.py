"""State of a run, whole on one file, whether it is computed by one process or sharded over many."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from blockout.guidance import Guide
from blockout.training.files import RunError

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
FORMAT = 2


@dataclass
class Position:
    """How far a run has come. Draws, order and augmentation follow from the seed and ``step``."""

    step: int = 0
    seconds: float = 0.0
    """Time spent in training and evaluation so far."""
    loss_sum: float = 0.0
    """Over the images seen in this epoch, as ``hits`` and ``seen``."""
    hits: int = 0
    seen: int = 0
    unlogged: list[float] = field(default_factory=list)
    """Losses of the steps since the last entry of metrics."""
    best_accuracy: float = -1.0
    """On the hold-out."""
    best_step: int = 0
    said: list[str] = field(default_factory=list)
    """Warnings that have been given."""


def state_of(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    identity: dict[str, Any],
    averaged: nn.Module | None,
    guide: Guide | None,
) -> dict[str, Any]:
    """All that ``restore`` needs, gathered by all processes; whole on the first."""
    weights, moments = get_state_dict(module, optimizer, options=WHOLE)
    return {
        "format": FORMAT,
        "weights": weights,
        "optimizer": moments,
        "position": asdict(position),
        "identity": identity,
        "averaged": None if averaged is None else averaged.state_dict(),
        "guide": None if guide is None else guide.state_dict(),
    }


def restore(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: dict[str, Any],
    averaged: nn.Module | None,
    guide: Guide | None,
) -> Position:
    """Puts a checkpoint's state back; the start of a run where there is none."""
    if not path.exists():
        return Position()
    state = read(path)
    changed = [k for k, v in identity.items() if state["identity"].get(k, v) != v]
    if changed:
        raise RunError(
            f"{path} belongs to another config ({', '.join(changed)} changed); "
            "name another folder with --run, or say --restart"
        )
    set_model_state_dict(module, state["weights"], options=StateDictOptions(full_state_dict=True))
    # Parameters that never had a gradient have no state in the optimiser.
    loose = StateDictOptions(full_state_dict=True, strict=False)
    set_optimizer_state_dict(module, optimizer, state["optimizer"], options=loose)
    if averaged is not None:
        averaged.load_state_dict(state["averaged"])
    if guide is not None:
        guide.load_state_dict(state["guide"])
    return Position(**state["position"])


def read(path: Path) -> dict[str, Any]:
    """A checkpoint as plain tensors and numbers; nothing in it is executed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged files
        raise RunError(
            f"{path} is damaged and cannot be read ({type(error).__name__}); "
            "say --restart to begin anew"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise RunError(f"{path} is not a checkpoint of this version; say --restart to begin anew")
    return state


def whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """The state_dict on the CPU, gathered where it is sharded (then empty on other processes)."""
    state: Any = get_model_state_dict(module, options=WHOLE)
    return state


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
