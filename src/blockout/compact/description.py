"""Describes compact layers in JSON, so that a network can be rebuilt without pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from blockout.compact.blocks import DenseBlocks, SparseConv2d, SparseLinear
from blockout.graph.plain import GEOMETRY, geometry

LINEAR = {"Linear": nn.Linear, "SparseLinear": SparseLinear}
CONV = {"Conv2d": nn.Conv2d, "SparseConv2d": SparseConv2d}
NORM = {"BatchNorm1d": nn.BatchNorm1d, "BatchNorm2d": nn.BatchNorm2d}
DENSE_BLOCKS = ("DenseBlocks", "Branches")
"""The second is what earlier files call them."""


def describe_layers(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Kind and size of each linear layer, convolution, batch normalisation and ``DenseBlocks``.

    >>> describe_layers(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))
    {'0': {'kind': 'Linear', 'inputs': 4, 'outputs': 2, 'bias': True}}
    """
    found: dict[str, dict[str, Any]] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(outer + ".") for outer in found)
        if not inside and (described := _described(module)):
            found[name] = described
    return found


def rebuild_layers(model: nn.Module, layers: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces the named layers by layers as described; their weights are loaded afterwards.

    Raises:
        ValueError: a layer is unknown, or its description is not what ``describe_layers`` gives.

    >>> net = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    >>> rebuild_layers(net, {'0': {'kind': 'Linear', 'inputs': 3, 'outputs': 2, 'bias': False}})
    >>> net[0]
    Linear(in_features=3, out_features=2, bias=False)
    """
    modules = dict(model.named_modules())
    for name, described in layers.items():
        if not name or name not in modules:
            raise ValueError(f"the network has no layer {name!r}")
        try:
            layer = _built(described)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"the layer {name!r} is described wrongly: {error}") from error
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.train(modules[name].training))


def _described(module: nn.Module) -> dict[str, Any] | None:
    kind = type(module).__name__
    if isinstance(module, DenseBlocks):
        return {
            "kind": kind,
            "blocks": [_described(block) for block in module.blocks],
            "starts": module.starts,
            "sums": module.summed,
            "order": None if module.order is None else len(module.order),
            "note": module.note,
        }
    if kind in NORM and isinstance(module, nn.modules.batchnorm._BatchNorm):
        values = {"nodes": module.num_features, "eps": module.eps, "momentum": module.momentum}
        return {"kind": kind, **values}
    if kind not in LINEAR | CONV or not isinstance(module, nn.Linear | nn.Conv2d):
        return None
    outputs, inputs = module.weight.shape[:2]
    sizes = {"inputs": inputs, "outputs": outputs, "bias": module.bias is not None}
    about = geometry(module) if isinstance(module, nn.Conv2d) else {}
    note = {"note": module.note} if getattr(module, "note", "") else {}
    return {"kind": kind, **sizes, **about, **note}


def _built(described: Mapping[str, Any]) -> nn.Module:
    if not isinstance(described, Mapping):
        raise TypeError(f"expected an object, got {described!r}")
    kind = described["kind"]
    if kind in NORM:
        eps, momentum = described["eps"], described["momentum"]
        if not _is_share(eps) or not (momentum is None or _is_share(momentum)):
            raise TypeError(f"expected numbers between 0 and 1, got {eps!r} and {momentum!r}")
        return NORM[kind](described["nodes"], eps, momentum)
    if kind in DENSE_BLOCKS:
        return _built_blocks(described)
    inputs, outputs, bias = described["inputs"], described["outputs"], described["bias"]
    if kind in LINEAR:
        layer = LINEAR[kind](inputs, outputs, bias)
    elif kind in CONV:
        about = {g: described[g] for g in GEOMETRY}
        about = {g: tuple(v) if isinstance(v, list) else v for g, v in about.items()}
        layer = CONV[kind](inputs, outputs, **about, bias=bias)
    else:
        raise ValueError(f"{kind!r} is not a layer of a compact network")
    setattr(layer, "note", described.get("note", ""))  # noqa: B010
    return layer


def _is_share(value: object) -> bool:
    return isinstance(value, float | int) and 0 <= value <= 1


def _built_blocks(described: Mapping[str, Any]) -> DenseBlocks:
    blocks: list[Any] = [_built(block) for block in described["blocks"]]
    columns = [
        torch.zeros(block.weight.shape[1], dtype=torch.long) if start is None else start
        for block, start in zip(blocks, described["starts"], strict=True)
    ]
    order = described["order"]
    return DenseBlocks(
        blocks,
        columns,
        sums=[torch.zeros(count, dtype=torch.long) for count in described["sums"]],
        order=None if order is None else torch.zeros(order, dtype=torch.long),
        note=described["note"],
    )
