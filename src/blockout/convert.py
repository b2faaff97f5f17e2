"""Turns plain layers into Blockout layers and back: ``convert`` and ``to_dense``."""

import copy
import difflib
import warnings
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import torch
from torch import nn

from blockout.dropconnect import DropConnectLinear
from blockout.graph import (
    PlainLayer,
    find_producers,
    geometry,
    held_outside,
    refuse_weights_read_directly,
    why_not_plain,
)
from blockout.layers import BlockoutConv2d, BlockoutLayer, BlockoutLinear
from blockout.memberships import Memberships, positive_integers

READS_WEIGHTS_ITSELF = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules that read the weights of their children without calling them."""
OURS = (BlockoutLayer, DropConnectLinear)
OUR_FORWARDS = (BlockoutLinear.forward, BlockoutConv2d.forward, DropConnectLinear.forward)


def convert(
    model: nn.Module,
    layers: Sequence[str] | str,
    clusters: int,
    *,
    probability: float = 0.5,
    hard: bool = True,
    learned: bool = True,
    links: Mapping[str, str | None] | None = None,
) -> nn.Module:
    """A copy of the model in which the named layers are Blockout layers with the same outputs.

    In eval mode the copy computes what the original computes: W~ is W divided by the mask of P. Two
    layers share the memberships of the nodes between them if only steps that keep nodes in place
    separate them (activation, batch normalisation, dropout, pooling, flatten). Any other step is
    refused unless ``links`` says what to do.

    Args:
        layers: names as in ``model.named_modules()``, each an ``nn.Linear`` or ``nn.Conv2d``.
        clusters: k.
        probability: initial P of all nodes, above 0.
        hard, learned: the paper's variants.
        links: producers that cannot be found automatically: ``{'consumer': 'producer'}``, or
            ``{'consumer': None}`` to give a layer memberships of its own.

    >>> mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> net = convert(mlp, layers=["0", "2"], clusters=3)
    >>> net[2].inputs is net[0].outputs
    True
    """
    if not 0 < probability <= 1:
        raise ValueError(f"probability must lie in (0, 1], got {probability:g}")
    (clusters,) = positive_integers(clusters=clusters)
    layers = [layers] if isinstance(layers, str) else list(layers)
    if not layers:
        raise ValueError("layers must name at least one layer, got none")
    for name in layers:
        _require_convertible(model, name)
    names = list(dict.fromkeys(_first_name(model, name) for name in layers))
    producers = _producers(model, names, dict(links or {}))
    result = copy.deepcopy(model)
    variant = {"probability": probability, "hard": hard, "learned": learned}
    done: dict[str | None, BlockoutLayer] = {}
    for name in _producers_first(producers):
        plain = result.get_submodule(name)
        assert isinstance(plain, PlainLayer)
        done[name] = _converted(name, plain, clusters, done.get(producers[name]), variant)
        result = replace_layer(result, plain, done[name])
    return result


def to_dense(model: nn.Module) -> nn.Module:
    """A copy of the model made of plain torch layers only, with the inference weights of Eq. 5.

    Its outputs in eval mode equal the model's up to rounding. ``DropConnectLinear`` with an
    activation is the exception: a plain layer gives the activation of the mean, not the mean of the
    activation, and a warning says so. Hooks on replaced layers are not carried over.

    >>> from blockout import BlockoutLinear
    >>> to_dense(nn.Sequential(BlockoutLinear(8, 4, clusters=2), nn.ReLU()))
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
      (1): ReLU()
    )
    """
    _require_replaceable(model)
    result = copy.deepcopy(model)
    for name, module in list(result.named_modules()):
        if isinstance(module, DropConnectLinear):
            if module.activation is not None and module.keep < 1:
                warnings.warn(
                    f"{name or 'DropConnectLinear'}: to_dense keeps the mean of the weights. No "
                    "plain layer gives the mean of the activation, so outputs differ",
                    stacklevel=2,
                )
            result = replace_layer(result, module, module.to_plain())
        elif isinstance(module, BlockoutLayer):
            result = replace_layer(result, module, module.to_plain())
    for parent in result.modules():
        for child_name, child in list(parent.named_children()):
            if isinstance(child, Memberships):
                delattr(parent, child_name)
    return result


def _require_replaceable(model: nn.Module) -> None:
    """Raises ``ValueError`` if plain layers would compute something else; warns of lost hooks."""
    held = held_outside(model)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, OURS)}
    for name, layer in layers.items():
        reason = _why_held(held.get(layer))
        if "forward" in layer.__dict__ or type(layer).forward not in OUR_FORWARDS:
            reason = "it has a forward of its own, which a plain layer would lose"
        if reason:
            raise ValueError(f"{name or type(layer).__name__} cannot become plain: {reason}")
        hooks = [*layer._forward_hooks.values(), *layer._forward_pre_hooks.values()]
        if any(not str(hook.__module__).startswith("blockout.") for hook in hooks):
            warnings.warn(
                f"{name or type(layer).__name__} has hooks, which a plain layer does not keep. If "
                "they change values, outputs differ; remove them first, or add them again",
                stacklevel=3,
            )
    refuse_weights_read_directly(model, list(layers))


def _require_convertible(model: nn.Module, name: str) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        near = difflib.get_close_matches(name, modules, n=3)
        known = near or [n for n, m in modules.items() if type(m) in (nn.Linear, nn.Conv2d)][:8]
        raise ValueError(f"the model has no layer {name!r}; there is {', '.join(known) or 'none'}")
    layer = modules[name]
    reason = why_not_plain(layer) or _why_not_there(model, modules, name)
    if reason:
        raise ValueError(f"{name} cannot be converted: {reason}")


def _why_not_there(model: nn.Module, modules: dict[str, nn.Module], name: str) -> str | None:
    parent = modules[name.rpartition(".")[0]]
    if isinstance(parent, READS_WEIGHTS_ITSELF):
        return (
            f"{type(parent).__name__} reads its weight directly, where no mask applies; use a "
            "block that calls the layer"
        )
    weight = modules[name].weight
    for other_name, other in model.named_modules():
        if other is not modules[name] and any(p is weight for p in other._parameters.values()):
            return f"its weight is tied to that of {other_name}; untie them first"
    return _why_held(held_outside(model).get(modules[name]))


def _why_held(where: str | None) -> str | None:
    if where is None:
        return None
    return f"{where} holds it too and would keep it; hold layers in nn.ModuleList or nn.ModuleDict"


def _first_name(model: nn.Module, name: str) -> str:
    """The first name of a module that may have several."""
    module = model.get_submodule(name)
    return next(first for first, other in model.named_modules() if other is module)


def _producers(
    model: nn.Module, names: list[str], links: dict[str, str | None]
) -> dict[str, str | None]:
    known: dict[str, str | None] = {}
    places = dict(model.named_modules(remove_duplicate=False))
    for consumer, producer in links.items():
        for name in (consumer, producer):
            if name is not None and (name not in places or _first_name(model, name) not in names):
                raise ValueError(f"links names {name!r}, which is not among layers: {names}")
        first = None if producer is None else _first_name(model, producer)
        known[_first_name(model, consumer)] = first
    if len(names) == 1 or all(name in known for name in names):
        refuse_weights_read_directly(model, names)
        return {name: known.get(name) for name in names}
    return find_producers(model, names, known)


def _producers_first(producers: dict[str, str | None]) -> list[str]:
    feeds = {name: [] if producer is None else [producer] for name, producer in producers.items()}
    try:
        return list(TopologicalSorter(feeds).static_order())
    except CycleError as error:
        *circle, _ = error.args[1]
        raise ValueError(
            f"{' and '.join(circle)} feed each other in a circle; give one of them memberships "
            f"of its own: links={{'{circle[0]}': None}}"
        ) from error


def _converted(
    name: str,
    plain: PlainLayer,
    clusters: int,
    producer: BlockoutLayer | None,
    variant: dict,
) -> BlockoutLayer:
    nodes_out, features_in = plain.weight.shape[:2]
    place = {"device": plain.weight.device, "dtype": plain.weight.dtype}
    per_node = _features_per_node(name, plain, producer)
    if producer is None:
        inputs = Memberships(features_in, clusters, **variant, **place)
    else:
        inputs = producer.outputs
    common = {
        "inputs": inputs,
        "outputs": Memberships(nodes_out, clusters, **variant, **place),
        "bias": plain.bias is not None,
        **place,
    }
    if isinstance(plain, nn.Linear):
        layer = BlockoutLinear(
            features_in, nodes_out, clusters, features_per_node=per_node, **common
        )
    else:
        layer = BlockoutConv2d(
            features_in, nodes_out, clusters=clusters, **geometry(plain), **common
        )
    _keep_values(plain, layer)
    return layer.train(plain.training)


def _features_per_node(name: str, plain: PlainLayer, producer: BlockoutLayer | None) -> int:
    """1, or height x width where a linear layer reads the flattened channels of a convolution."""
    features_in = plain.weight.shape[1]
    if producer is None:
        return 1
    per_node, rest = divmod(features_in, producer.outputs.nodes)
    flattens = isinstance(plain, nn.Linear) and isinstance(producer, BlockoutConv2d)
    if rest or (per_node > 1 and not flattens):
        raise ValueError(
            f"{name} reads {features_in} features, which are not the {producer.outputs.nodes} "
            f"nodes of its producer; write links={{'{name}': None}} for memberships of its own"
        )
    return per_node


def _keep_values(plain: PlainLayer, layer: BlockoutLayer) -> None:
    """Sets W~ = W / mask, so that Eq. 5 gives W again; keeps the bias and what is frozen."""
    with torch.no_grad():
        layer.weight.fill_(1)
        weight = (plain.weight.double() / layer.expected_weight().double()).to(plain.weight.dtype)
        if not weight.isfinite().all() and plain.weight.isfinite().all():
            raise ValueError(
                f"weights divided by a mask of {float(layer.expected_weight().min()):.1g} are too "
                f"large for {weight.dtype}; choose a larger probability or a wider dtype"
            )
        layer.weight.copy_(weight)
        layer.weight.requires_grad_(plain.weight.requires_grad)
        if plain.bias is not None and layer.bias is not None:
            layer.bias.copy_(plain.bias)
            layer.bias.requires_grad_(plain.bias.requires_grad)


def replace_layer(root: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Replaces ``old`` by ``new`` wherever it occurs; returns the root, which may be ``new``."""
    if root is old:
        return new
    for parent in list(root.modules()):
        for child_name, child in list(parent._modules.items()):
            if child is old:
                parent._modules[child_name] = new
    return root
