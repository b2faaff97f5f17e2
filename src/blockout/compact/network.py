"""The hierarchy made physical: ``to_branches``, and what it saved."""

import copy

import torch
from torch import Tensor, nn

from blockout.compact.cover import Costs
from blockout.compact.joints import Joint, find_joints
from blockout.compact.layout import Plan
from blockout.compact.survivors import Layer, Survivors, as_layer
from blockout.convert import to_dense
from blockout.layers import BlockoutLayer
from blockout.neighbours import refuse_weights_read_directly

ASSUMED_SIZE = 16
"""Height and width that a convolution is planned for where no example says otherwise."""


def to_branches(
    model: nn.Module,
    threshold: float = 0.5,
    *,
    measure: bool = True,
    batch_size: int = 256,
    example: Tensor | None = None,
    costs: Costs | None = None,
) -> nn.Module:
    """A copy made of dense blocks: only nodes that share a cluster at the threshold stay connected.

    In eval mode it computes what the dense network with the weights of Eq. 5 computes when all
    other weights are zero. Nodes without inputs go, their constant moved into the next bias; nodes
    that nothing reads go as well, also from the plain layer in front; the rest is reordered so that
    branches lie side by side. Nodes that meet others on the way (a residual sum, LayerNorm) or
    leave the model stay where they are. A layer for which blocks are not faster becomes one dense
    block. ``notes`` says what became of every layer.

    Weights can be trained further: connections that are not there stay away in training mode.

    Args:
        threshold: a node belongs to a cluster where P >= threshold; 0 keeps every connection.
        measure: time the alternatives here and now; otherwise ``costs`` alone decide, which gives
            the same result on every machine.
        batch_size: examples at a time for which the result shall be fast.
        example: an input of the model, for the sizes that its convolutions see.
        costs: what is assumed of a machine.

    >>> from blockout import BlockoutLinear, Memberships
    >>> halves = torch.eye(2).repeat_interleave(256, dim=0)
    >>> layer = BlockoutLinear(512, 512, 2, inputs=Memberships.given(halves),
    ...                        outputs=Memberships.given(halves))
    >>> to_branches(layer, measure=False)
    Branches(
      2 blocks hold 50 % of the connections; estimated 1.7 times as fast as dense
      (blocks): ModuleList(
        (0-1): 2 x Linear(in_features=256, out_features=256, bias=True)
      )
    )
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must lie in [0, 1], as memberships do, got {threshold:g}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    net = to_dense(model)
    layers = _thresholded(model, net, threshold)
    refuse_weights_read_directly(net, list(layers))
    sizes = _input_sizes(net, list(layers), batch_size, example)
    joints = _usable_joints(net, layers)
    plan = Plan(net, layers, joints, sizes, measure, costs or Costs())
    return plan.carry_out()


def connected_weights(model: nn.Module, threshold: float) -> int:
    """Weights of linear layers and convolutions between living nodes that share a cluster.

    What a compact network needs; blocks may hold a few more, as zeros, where that is faster.

    >>> from blockout import BlockoutLinear, Memberships
    >>> halves = Memberships.given(torch.eye(2).repeat_interleave(3, dim=0))
    >>> connected_weights(BlockoutLinear(6, 6, 2, inputs=halves, outputs=halves), 0.5)
    18
    """
    net = to_dense(model)
    layers = _thresholded(model, net, threshold)
    survivors = Survivors(net, layers, _usable_joints(net, layers))
    total = 0
    for name, module in net.named_modules():
        if name in layers:
            living = layers[name].connected(survivors.outputs(name), survivors.inputs(name))
            nodes_out, nodes_in = len(layers[name].codes_out), len(layers[name].codes_in)
            a_pair = layers[name].plain.weight.numel() // (nodes_out * nodes_in)
            total += int(living.sum()) * a_pair
        elif isinstance(module, nn.Linear | nn.Conv2d):
            total += module.weight.numel()
    return total


def notes(model: nn.Module) -> dict[str, str]:
    """What ``to_branches`` made of every Blockout layer and why, by the layer's name."""
    return {name: str(m.note) for name, m in model.named_modules() if getattr(m, "note", "")}


def multiply_adds(model: nn.Module, example: Tensor) -> int:
    """Multiplications that all linear layers and convolutions carry out on an example.

    A Blockout layer counts as dense; normalisation and activations are left out.

    >>> multiply_adds(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(1, 8))
    40
    """
    total = 0

    def count(layer: nn.Module, _: tuple, output: Tensor) -> None:
        nonlocal total
        nodes = output.shape[-1 if output.dim() < 3 or hasattr(layer, "in_features") else -3]
        total += output.numel() // nodes * layer.get_parameter("weight").numel()

    kinds = (nn.Linear, nn.Conv2d, BlockoutLayer)
    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, kinds)]
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()(example)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    return total


def _thresholded(model: nn.Module, net: nn.Module, threshold: float) -> dict[str, Layer]:
    """The Blockout layers by name, as plain layers of ``net`` with masked weights."""
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, BlockoutLayer):
            codes = [
                m.probabilities.detach().cpu() >= threshold for m in (layer.outputs, layer.inputs)
            ]
            plain = net.get_submodule(name)
            assert isinstance(plain, nn.Linear | nn.Conv2d)
            found[name] = as_layer(plain, *codes)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no Blockout layers to compact; give to_branches the model "
            "as it was trained, before to_dense"
        )
    return found


def _usable_joints(net: nn.Module, layers: dict[str, Layer]) -> list[Joint]:
    """Joints whose ends agree on what a node is; their plain ends join the layers."""
    usable = []
    for joint in find_joints(net, list(layers)):
        nodes = net.get_submodule(joint.producer).get_parameter("weight").shape[0]
        if all(len(layers[r.layer].codes_in) == nodes for r in joint.readers if r.layer in layers):
            usable.append(joint)
    joined = {r.layer: j for j in usable for r in j.readers}
    for name in {j.producer for j in usable} | set(joined):
        if name not in layers:
            plain = net.get_submodule(name)
            assert isinstance(plain, nn.Linear | nn.Conv2d)
            nodes_out, nodes_in = plain.weight.shape[:2]
            if name in joined:
                nodes_in = net.get_submodule(joined[name].producer).get_parameter("weight").shape[0]
            everyone = torch.ones(nodes_out + nodes_in, 1, dtype=torch.bool)
            layers[name] = as_layer(plain, everyone[:nodes_out], everyone[nodes_out:])
    return usable


def _input_sizes(
    net: nn.Module, names: list[str], batch_size: int, example: Tensor | None
) -> dict[str, tuple[int, ...]]:
    """The shape of the input of every named layer, for a batch of that size."""
    sizes: dict[str, tuple[int, ...]] = {}
    for name in names:
        layer = net.get_submodule(name)
        width = layer.get_parameter("weight").shape[1]
        sizes[name] = (batch_size, width)
        if isinstance(layer, nn.Conv2d):
            reach = [
                d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
            ]
            sizes[name] += tuple(max(ASSUMED_SIZE, r) for r in reach)
    if example is None:
        return sizes

    def keep(name: str):
        def hook(_: nn.Module, inputs: tuple[Tensor]) -> None:
            sizes[name] = (batch_size, *inputs[0].shape[1:])

        return hook

    trial = copy.deepcopy(net).eval()
    for name in names:
        trial.get_submodule(name).register_forward_pre_hook(keep(name))
    with torch.no_grad():
        trial(example)
    return sizes
