"""Turns a config into the parts of an engine, and checks that they fit together."""

from dataclasses import fields

import torch
from torch import nn

from blockout.data import ImageData
from blockout.guidance import Guide
from blockout.layers import memberships_of
from blockout.runs.config import TrainConfig
from blockout.training.engine import Engine, Recipe
from blockout.training.processes import Processes

FINETUNING_NORM = 10.0
"""Largest gradient of a step in fine-tuning. Normalisations stay as they are there, so nothing else
keeps a large step from destroying what the trunk knows. Smaller bounds keep it from learning."""


def make_engine(
    config: TrainConfig, model: nn.Module, data: ImageData, processes: Processes
) -> Engine:
    """The engine that trains ``model`` on ``data`` as the config says."""
    o = config.optimisation
    require_divisible(config.batch_size, processes.world * o.accumulate)
    steps = config.steps_on(data)
    return Engine(
        model.to(memory_format=torch.channels_last),  # pyright: ignore
        recipe_of(config, steps),
        guide=lambda module: make_guide(config, module, data, steps),
        class_weights=data.class_weights,
        processes=processes,
    )


def recipe_of(config: TrainConfig, steps: int) -> Recipe:
    """How the engine learns: each of its settings has the name of a flag."""
    _require_averageable(config)
    chosen = {**vars(config.optimisation), **vars(config.compute), "lr": config.peak_rate}
    chosen["clip"] = FINETUNING_NORM if config.finetunes else 0.0
    names = [field.name for field in fields(Recipe) if field.name != "steps"]
    return Recipe(steps, **{name: chosen[name] for name in names})


def require_divisible(batch_size: int, parts: int) -> None:
    """Every process and every accumulated part takes the same number of images."""
    if batch_size % parts:
        raise ValueError(
            f"--batch-size must be a multiple of processes x --accumulate = {parts}, "
            f"got {batch_size}"
        )


def _require_averageable(config: TrainConfig) -> None:
    if not config.optimisation.ema:
        return
    if config.compute.strategy == "fsdp2":
        raise ValueError("--ema keeps a whole copy of the weights, so it cannot be used with fsdp2")
    if config.compute.precision in ("bf16-true", "16-true"):
        raise ValueError("--ema would lose its small steps in half precision; use bf16-mixed")


def make_guide(config: TrainConfig, module: nn.Module, data: ImageData, steps: int) -> Guide | None:
    """The guide of the memberships; None for the paper's rule, or if there is nothing to guide."""
    o, found = config.optimisation, list(memberships_of(module).values())
    branching = [m for m in found if m.learned and m.clusters > 1]
    if config.paper or config.finetunes or not branching:
        return None
    if config.compute.strategy == "fsdp2":
        raise ValueError("guidance needs whole memberships, but fsdp2 shards them; say --paper")
    if o.affinity_from == "groups" and data.groups is None:
        raise ValueError(
            f"--affinity-from groups: {data.name} has no groups of classes; "
            "nest its folders as group/class/image, or leave the flag out"
        )
    classes = found[-1] if found[-1].nodes == len(data.classes) else None
    groups = data.groups if o.affinity_from == "groups" and classes is not None else None
    return Guide(module, steps, config.guidance, classes=classes, similarity=groups)
