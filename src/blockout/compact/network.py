"""``to_branches`` cuts a trained network apart along its clusters; the rest counts what is left."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from blockout.compact.cover import Costs
from blockout.compact.layout import Plan
from blockout.compact.survivors import MaskedLayer, Survivors
from blockout.convert import to_dense
from blockout.graph import Joint, PlainLayer, find_joints, refuse_weights_read_directly
from blockout.layers import BlockoutLayer

ASSUMED_SIZE = 16
"""Height and width of a convolution's input if no example is given."""


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

    In eval mode it computes what ``to_dense(model)`` computes with all other weights set to zero.
    Nodes without inputs are dropped, and their constant moves into the next bias. Unread nodes are
    dropped too, also from the plain layer in front. The rest is reordered so that blocks read
    neighbouring nodes. Nodes that meet others on the way (a residual sum, LayerNorm) or leave
    the model stay in place. A layer that blocks do not make faster becomes one dense block.
    ``notes`` says what became of each layer.

    You can train the result further: in training mode, missing connections stay missing.

    Args:
        threshold: a node belongs to a cluster where P >= threshold; 0 keeps every connection.
        measure: time the alternatives on this machine. Otherwise ``costs`` decide, which gives
            the same result on every machine.
        batch_size: the number of examples per batch to optimise for.
        example: an input of the model; it tells the input sizes of convolutions.
        costs: the assumed costs of operations, for ``measure=False``.

    >>> from blockout import BlockoutLinear, Memberships
    >>> halves = torch.eye(2).repeat_interleave(256, dim=0)
    >>> layer = BlockoutLinear(512, 512, 2, inputs=Memberships.given(halves),
    ...                        outputs=Memberships.given(halves))
    >>> to_branches(layer, measure=False)
    DenseBlocks(
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
    """The weights that a compact network needs in its linear layers and convolutions.

    In a Blockout layer these are the weights that ``Structure`` counts as left: between nodes that
    live and share a cluster. Plain neighbours keep one node if all are dead. Blocks may hold some
    zeros in addition, where that is faster.

    >>> from blockout import BlockoutLinear, Memberships
    >>> halves = Memberships.given(torch.eye(2).repeat_interleave(3, dim=0))
    >>> connected_weights(BlockoutLinear(6, 6, 2, inputs=halves, outputs=halves), 0.5)
    18
    """
    net = to_dense(model)
    layers = _thresholded(model, net, threshold)
    blockout = list(layers)
    survivors = Survivors(net, layers, _usable_joints(net, layers))
    total = 0
    for name, module in net.named_modules():
        if name in blockout:
            total += layers[name].weights_left
        elif name in layers:
            pairs = len(survivors.outputs(name)) * len(survivors.inputs(name))
            total += pairs * layers[name].weights_per_pair
        elif isinstance(module, PlainLayer):
            total += module.weight.numel()
    return total


def notes(model: nn.Module) -> dict[str, str]:
    """What ``to_branches`` made of each Blockout layer and why, by the layer's name."""
    return {name: str(m.note) for name, m in model.named_modules() if getattr(m, "note", "")}


def multiply_adds(model: nn.Module, example: Tensor) -> int:
    """Multiply-adds of all linear layers and convolutions on an example.

    A Blockout layer counts as dense. Normalisation and activations are not counted.

    >>> multiply_adds(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(1, 8))
    40
    """
    dense = to_dense(model).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        dense(example)
    return counter.get_total_flops() // 2


def _thresholded(model: nn.Module, net: nn.Module, threshold: float) -> dict[str, MaskedLayer]:
    """The Blockout layers by name: plain layers of ``net`` with masked weights."""
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, BlockoutLayer):
            codes = [
                m.probabilities.detach().cpu() >= threshold for m in (layer.outputs, layer.inputs)
            ]
            plain = net.get_submodule(name)
            assert isinstance(plain, PlainLayer)
            found[name] = MaskedLayer.of(plain, *codes)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no Blockout layers to compact; pass the model as it was "
            "trained, before to_dense"
        )
    return found


def _usable_joints(net: nn.Module, layers: dict[str, MaskedLayer]) -> list[Joint]:
    """Joints whose ends agree on what a node is; adds their plain ends to ``layers``."""
    usable = []
    for joint in find_joints(net, list(layers)):
        nodes = net.get_submodule(joint.producer).get_parameter("weight").shape[0]
        if all(len(layers[r.layer].codes_in) == nodes for r in joint.readers if r.layer in layers):
            usable.append(joint)
    joined = {r.layer: j for j in usable for r in j.readers}
    for name in {j.producer for j in usable} | set(joined):
        if name not in layers:
            plain = net.get_submodule(name)
            assert isinstance(plain, PlainLayer)
            nodes_out, nodes_in = plain.weight.shape[:2]
            if name in joined:
                nodes_in = net.get_submodule(joined[name].producer).get_parameter("weight").shape[0]
            everyone = torch.ones(nodes_out + nodes_in, 1, dtype=torch.bool)
            layers[name] = MaskedLayer.of(plain, everyone[:nodes_out], everyone[nodes_out:])
    return usable


def _input_sizes(
    net: nn.Module, names: list[str], batch_size: int, example: Tensor | None
) -> dict[str, tuple[int, ...]]:
    """The input shape of each named layer, for a batch of this size."""
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
