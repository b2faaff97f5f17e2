"""Parameter groups: memberships learn faster than weights and have no weight decay."""

from typing import Any

from torch import nn

from blockout.layers import BlockoutLayer
from blockout.memberships import Memberships

MEMBERSHIP_SCALE = 300.0
NORMALISATIONS = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)


def parameter_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    *,
    membership_scale: float = MEMBERSHIP_SCALE,
) -> list[dict[str, Any]]:
    """Groups for any torch optimiser: weights, parameters without decay, membership logits.

    The gradient of a logit is small. At the learning rate of the weights, P hardly moves from 0.5
    in thousands of SGD steps. So the logits learn ``membership_scale`` times faster. The default of
    300 suits SGD. For Adam, which normalises by the size of the gradient, pass 30 to 100: on
    CIFAR-100, 30 with AdamW spread P as far as 300 with SGD (quartiles 0.40/0.77/0.92 and
    0.35/0.67/0.89), and 100 as far as 1000. With 1, P stayed near 0.5 under both
    (``benchmarks/membership_rate.py``, ``results/membership_rate.json``).

    Weight decay would pull logits towards 0, and so P towards 0.5. Logits, biases and the
    parameters of normalisation layers therefore have none.

    Each group has a ``name``. Empty groups are left out. If a schedule takes one rate per group, as
    ``OneCycleLR`` does, pass ``max_lr=[group["lr"] for group in groups]``.

    >>> from blockout import BlockoutLinear
    >>> for group in parameter_groups(BlockoutLinear(8, 4, clusters=2), lr=0.1, weight_decay=1e-4):
    ...     print(group["name"], len(group["params"]), group["lr"], group["weight_decay"])
    weights 1 0.1 0.0001
    undecayed 1 0.1 0.0
    memberships 2 30.0 0.0
    """
    for name, value in (("lr", lr), ("weight_decay", weight_decay)):
        if not value >= 0:  # nor NaN
            raise ValueError(f"{name} must not be negative, got {value:g}")
    if not membership_scale > 0:
        raise ValueError(
            f"membership_scale must be positive, got {membership_scale:g}; "
            "to keep memberships as they are, create them with learned=False"
        )
    _require_owned_memberships(model)
    weights, undecayed, logits = [], [], []
    seen = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter in seen:
                continue
            seen.add(parameter)
            if isinstance(module, Memberships):
                logits.append(parameter)
            elif parameter.dim() <= 1 or isinstance(module, NORMALISATIONS):
                undecayed.append(parameter)
            else:
                weights.append(parameter)
    groups = [
        {"name": "weights", "params": weights, "lr": lr, "weight_decay": weight_decay},
        {"name": "undecayed", "params": undecayed, "lr": lr, "weight_decay": 0.0},
        {"name": "memberships", "params": logits, "lr": lr * membership_scale, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _require_owned_memberships(model: nn.Module) -> None:
    """Refuses memberships owned by a layer outside the model: they would not learn or be saved."""
    registered = set(model.modules())
    for name, layer in model.named_modules():
        if not isinstance(layer, BlockoutLayer):
            continue
        for side in ("inputs", "outputs"):
            if getattr(layer, side) not in registered:
                raise ValueError(
                    f"{name or type(layer).__name__} uses memberships ({side}) that belong to a "
                    "layer outside this model, so they would neither learn nor be saved; put both "
                    "layers into one model, or register the memberships: model.memberships = "
                    f"layer.{side}"
                )
