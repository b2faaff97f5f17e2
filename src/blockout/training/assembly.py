"""Parts that a run has only if its config asks for them, and whether they fit together."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from blockout.data import ImageData
from blockout.guidance import Guide
from blockout.layers import memberships_of
from blockout.training.config import TrainConfig


def require_divisible(batch_size: int, parts: int) -> None:
    """Every process and every accumulated part takes the same number of images."""
    if batch_size % parts:
        raise ValueError(
            f"--batch-size must be a multiple of processes x --accumulate = {parts}, "
            f"got {batch_size}"
        )


def moving_average(
    config: TrainConfig, module: nn.Module, device: torch.device
) -> AveragedModel | None:
    """The weights that ``--ema`` evaluates and saves; None without it."""
    decay = config.optimisation.ema
    if not decay:
        return None
    if config.compute.strategy == "fsdp2":
        raise ValueError("--ema keeps a whole copy of the weights; it does not go with fsdp2")
    if config.compute.precision in ("bf16-true", "16-true"):
        raise ValueError("--ema would lose its small steps in half precision; say bf16-mixed")
    return AveragedModel(module, device, multi_avg_fn=get_ema_multi_avg_fn(decay))


def make_guide(config: TrainConfig, module: nn.Module, data: ImageData, steps: int) -> Guide | None:
    """What guides the memberships; None by the paper's rule, or where there is nothing to guide."""
    o, found = config.optimisation, list(memberships_of(module).values())
    branching = [m for m in found if m.learned and m.clusters > 1]
    if config.paper or not branching:
        return None
    if config.compute.strategy == "fsdp2":
        raise ValueError("guidance needs memberships whole, fsdp2 shards them; say --paper")
    if o.affinity_from == "groups" and data.groups is None:
        raise ValueError(
            f"--affinity-from groups: {data.name} has no groups of classes; "
            "nest its folders as group/class/image, or leave the flag out"
        )
    classes = found[-1] if found[-1].nodes == len(data.classes) else None
    alike = data.groups if o.affinity_from == "groups" and classes is not None else None
    return Guide(module, steps, config.guidance, classes=classes, similarity=alike)
