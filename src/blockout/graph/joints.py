"""Joints: nodes that may be dropped and reordered, because only known plain layers read them."""

import copy
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.nn import functional as F

from blockout.graph.plain import why_not_plain
from blockout.graph.steps import kind_of_step, viewed_shape
from blockout.graph.tracing import NotTraceable, trace

KEEPS_CONSTANTS = (nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
KEEPS_CONSTANTS_CALLS = {
    F.max_pool2d,
    torch.max_pool2d,
    F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d,
}


@dataclass(frozen=True)
class Reader:
    """A layer that reads another layer's nodes, and the steps between the two."""

    layer: str
    steps: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Joint:
    """Nodes that one layer makes and only the readers see, so they can be dropped and reordered."""

    producer: str
    readers: tuple[Reader, ...]

    def norms(self, model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
        """The batch normalisations between producer and readers; each has a channel per node."""
        found = {}
        for reader in self.readers:
            for step in reader.steps:
                module = _module(model, step)
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    found[str(step.target)] = module
        return found


def find_joints(model: nn.Module, names: Collection[str]) -> list[Joint]:
    """The joints that touch a named layer, in the order of the forward pass.

    A joint runs from one ``nn.Linear`` or ``nn.Conv2d`` to others, through steps that keep nodes
    apart. There is no joint where nodes meet (a sum, LayerNorm, softmax), leave the model, or are
    read by anything else. The list is empty if the forward pass cannot be followed.

    >>> net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    >>> [(joint.producer, joint.readers[0].layer) for joint in find_joints(net, ["3"])]
    [('0', '3')]
    """
    try:
        walk = _Walk(model, trace(copy.deepcopy(model).eval(), names))
    except NotTraceable:
        return []
    joints = []
    for node in walk.graph.nodes:
        if walk.is_layer(node):
            readers = walk.readers(node, isinstance(walk.modules[node.target], nn.Conv2d), ())
            ends = {str(node.target), *(reader.layer for reader in readers or ())}
            if readers and ends & set(names) and walk.fits(node, readers):
                joints.append(Joint(str(node.target), tuple(readers)))
    return joints


def constant_arriving(
    model: nn.Module, joint: Joint, reader: Reader, values: Float[Tensor, " nodes"]
) -> Float[Tensor, " features"]:
    """What a reader receives from nodes that always give ``values``; NaN where it is not constant.

    Zero padding surrounds a constant with a border of another value, unless the constant is zero.
    """
    made_by = model.get_submodule(joint.producer)
    read_by = model.get_submodule(reader.layer)
    modules = dict(model.named_modules())
    x = values[None, :, None, None] if isinstance(made_by, nn.Conv2d) else values[None]
    for step in reader.steps:
        module = _module(model, step)
        kind = kind_of_step(step, modules)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            x = copy.deepcopy(module).eval()(_widened(x, module.num_features))
        elif kind == "elementwise":
            x = _run(step, module, x)
        elif kind == "flatten":
            x = x.flatten(1)
        elif kind == "pooling" and not _keeps_constants(step, module):
            x = torch.where(x == 0, 0.0, torch.nan)
    if isinstance(read_by, nn.Conv2d):
        if _pads_with_zeros(read_by):
            x = torch.where(x == 0, 0.0, torch.nan)
        return x.flatten()
    assert isinstance(read_by, nn.Linear)
    return _widened(x.flatten(1), read_by.in_features)[0]


class _Walk:
    """Walks the graph from one layer to the layers that read its nodes."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self.graph = graph
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.calls = Counter(id(_module(model, n)) for n in graph.nodes if n.op == "call_module")
        read = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
        weights = Counter(id(p) for m in model.modules() for p in m._parameters.values())
        self.layers = {
            name
            for name, module in self.modules.items()
            if why_not_plain(module) is None
            and weights[id(module.weight)] == 1
            and not {f"{name}.weight", f"{name}.bias"} & read
        }

    def is_layer(self, node: fx.Node) -> bool:
        """Whether a node calls a plain layer that is called nowhere else, on a single value."""
        return (
            node.op == "call_module"
            and node.target in self.layers
            and self.calls[id(self.modules[str(node.target)])] == 1
            and len(node.all_input_nodes) == 1
        )

    def readers(self, node: fx.Node, channels: bool, steps: tuple) -> list[Reader] | None:
        """All layers that read ``node``, or None if anything else does."""
        found: list[Reader] = []
        for user in node.users:
            if _asks_for_the_batch_size(user):
                continue
            if self.is_layer(user):
                name = str(user.target)
                if isinstance(self.modules[name], nn.Conv2d) != channels:
                    return None
                found.append(Reader(name, steps))
                continue
            after = self._channels_after(user, node, channels)
            behind = None if after is None else self.readers(user, after, (*steps, user))
            if behind is None:
                return None
            found += behind
        return found

    def _channels_after(self, step: fx.Node, source: fx.Node, channels: bool) -> bool | None:
        """Whether nodes are channels after a step; None if the step does not keep them apart."""
        if step.op == "output" or (len(source.users) > 1 and _in_place(step, self.modules)):
            return None
        kind = kind_of_step(step, self.modules)
        if kind == "flatten":
            return None if _names_a_width(step) else False
        if step.all_input_nodes != [source]:
            return None
        if kind == "elementwise":
            return channels if self._keeps_apart(step) else None
        if kind == "pooling" and channels:
            return True
        if kind == "global pooling" and channels:
            plain_squeeze = "squeeze" in str(step.target) and len(step.args) < 2
            return None if plain_squeeze else bool(step.kwargs.get("keepdim"))
        return None

    def _keeps_apart(self, step: fx.Node) -> bool:
        """Whether an element-wise step can be cut down to some of its nodes."""
        module = self.modules.get(str(step.target)) if step.op == "call_module" else None
        if isinstance(module, nn.modules.batchnorm._NormBase):
            known = isinstance(module, nn.modules.batchnorm._BatchNorm)
            return known and module.running_mean is not None and self.calls[id(module)] == 1
        return not isinstance(module, nn.PReLU) or module.num_parameters == 1

    def fits(self, node: fx.Node, readers: list[Reader]) -> bool:
        """Whether all widths are multiples of the nodes: one feature each, or a flattened map."""
        made_by = self.modules[str(node.target)]
        nodes = made_by.get_parameter("weight").shape[0]
        for reader in readers:
            steps = [self.modules.get(str(step.target)) for step in reader.steps]
            norms = [m for m in steps if isinstance(m, nn.modules.batchnorm._BatchNorm)]
            widths = [m.num_features for m in norms]
            widths.append(self.modules[reader.layer].get_parameter("weight").shape[1])
            if isinstance(made_by, nn.Linear) and any(width != nodes for width in widths):
                return False
            if any(width % nodes for width in widths):
                return False
        return True


def _module(model: nn.Module, step: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(step.target)) if step.op == "call_module" else None


def _asks_for_the_batch_size(step: fx.Node) -> bool:
    if step.target == "size":
        return step.args[1:] == (0,)
    if step.target is getattr and step.args[1] == "shape":
        return all(user.args[1:] == (0,) for user in step.users)
    return step.target is getattr and str(step.args[1]) in ("device", "dtype")


def _names_a_width(step: fx.Node) -> bool:
    """Whether a view writes down its number of features, which changes when nodes are dropped."""
    if step.op == "call_module" or "flatten" in str(step.target):
        return False
    return bool(viewed_shape(step)[-1] != -1)


def _in_place(step: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if step.op == "call_module":
        return bool(getattr(modules[str(step.target)], "inplace", False))
    name = str(step.target) if step.op == "call_method" else getattr(step.target, "__name__", "")
    return name.endswith("_") or name in ("iadd", "isub", "imul", "itruediv")


def _run(step: fx.Node, module: nn.Module | None, x: Tensor) -> Tensor:
    """Applies one element-wise step to ``x``."""
    if module is not None:
        return copy.deepcopy(module).eval()(x.clone())
    arguments = map_arg(step.args, lambda _: x.clone())
    named = map_arg(step.kwargs, lambda _: x.clone())
    if step.op == "call_method":
        return getattr(arguments[0], str(step.target))(*arguments[1:], **named)
    assert callable(step.target)
    return step.target(*arguments, **named)


def _keeps_constants(step: fx.Node, module: nn.Module | None) -> bool:
    if isinstance(module, nn.AvgPool2d):
        padding = module.padding if isinstance(module.padding, tuple) else (module.padding,)
        return not any(padding) or not module.count_include_pad
    return isinstance(module, KEEPS_CONSTANTS) or step.target in KEEPS_CONSTANTS_CALLS


def _pads_with_zeros(conv: nn.Conv2d) -> bool:
    if conv.padding_mode != "zeros" or conv.padding == "valid":
        return False
    if conv.padding == "same":
        return any(size > 1 for size in conv.kernel_size)
    return any(int(p) for p in conv.padding)


def _widened(x: Tensor, width: int) -> Tensor:
    """Turns one value per node into one value per feature."""
    return x if x.shape[1] == width else x.repeat_interleave(width // x.shape[1], dim=1)
