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

from blockout.graph.holders import held_outside
from blockout.graph.layout import Axes, axes_after, axes_made_by, reads_nodes, viewed_shape
from blockout.graph.plain import why_not_plain
from blockout.graph.steps import is_random, kind_of_step, works_in_place
from blockout.graph.tracing import NotTraceable, inside_leaves, traces

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
        graphs = traces(model, names, modes=(False,))
    except NotTraceable:
        return []
    found, *others = [_Walk(model, graph).joints(names) for graph in graphs]
    alike = [{_described(joint) for joint in other} for other in others]
    return [joint for joint in found if all(_described(joint) in other for other in alike)]


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
    axes: Axes | None = axes_made_by(made_by)
    for step in reader.steps:
        module = _module(model, step)
        kind = kind_of_step(step, modules)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            x = copy.deepcopy(module).eval()(_widened(x, module.num_features))
        elif kind == "elementwise":
            x = _run(step, module, x)
        elif kind == "pooling" and not _keeps_constants(step, module):
            x = torch.where(x == 0, 0.0, torch.nan)
        assert axes is not None
        axes = axes_after(step, step.all_input_nodes[0], axes, modules, len(values))
        x = x if axes and len(axes) == 4 else x.flatten(1)
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
        twin = copy.deepcopy(model, {id(p): p for p in model.parameters()}).eval()
        self.modules = dict(twin.named_modules(remove_duplicate=False))
        self.calls = Counter(id(self._module(n)) for n in graph.nodes if n.op == "call_module")
        read = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
        weights = Counter(id(p) for m in set(self.modules.values()) for p in m._parameters.values())
        held = {model.get_submodule(n) for n in inside_leaves(graph, self.modules)}
        held |= set(held_outside(model))
        self.fixed = {name for name, module in model.named_modules() if module in held}
        self.layers = {
            name
            for name, module in self.modules.items()
            if why_not_plain(module) is None
            and weights[id(module.weight)] == 1
            and not {f"{name}.weight", f"{name}.bias"} & read
            and name not in self.fixed
        }

    def joints(self, names: Collection[str]) -> list[Joint]:
        """The joints that touch a named layer, in the order of the forward pass."""
        joints = []
        for node in self.graph.nodes:
            if self.is_layer(node):
                readers = self.readers(node, axes_made_by(self.modules[node.target]), (), node)
                ends = {str(node.target), *(reader.layer for reader in readers or ())}
                touches = bool(readers and ends & set(names)) and not self.in_place_at_a_fork(node)
                if readers and touches and self.fits(node, readers):
                    joints.append(Joint(str(node.target), tuple(readers)))
        return joints

    def is_layer(self, node: fx.Node) -> bool:
        """Whether a node calls a plain layer that is called nowhere else, on a single value."""
        return (
            node.op == "call_module"
            and node.target in self.layers
            and self.calls[id(self.modules[str(node.target)])] == 1
            and len(node.all_input_nodes) == 1
        )

    def readers(
        self, node: fx.Node, axes: Axes, steps: tuple, producer: fx.Node
    ) -> list[Reader] | None:
        """All layers that read ``node``, or None if anything else does."""
        found: list[Reader] = []
        for user in _users(node):
            if self.is_layer(user):
                if not reads_nodes(self.modules[str(user.target)], axes):
                    return None
                found.append(Reader(str(user.target), steps))
                continue
            after = self._axes_after(user, node, axes, producer)
            behind = None if after is None else self.readers(user, after, (*steps, user), producer)
            if behind is None:
                return None
            found += behind
        return found

    def in_place_at_a_fork(self, producer: fx.Node) -> bool:
        """Whether a step in place changes what another step or layer reads as well."""
        steps, waiting = [], [producer]
        while waiting:
            steps.append(waiting.pop())
            waiting += [user for user in _users(steps[-1]) if not self.is_layer(user)]
        in_place = any(works_in_place(step, self.modules) for step in steps[1:])
        return in_place and any(len(_users(step)) > 1 for step in steps)

    def _axes_after(
        self, step: fx.Node, source: fx.Node, axes: Axes, producer: fx.Node
    ) -> Axes | None:
        """Where nodes lie after a step; None if it does not keep them apart, or cannot be cut."""
        if step.op == "output" or is_random(step, self.modules):
            return None
        kind = kind_of_step(step, self.modules)
        if kind == "reshaping" and _names_a_width(step):
            return None
        if kind != "reshaping" and step.all_input_nodes != [source]:
            return None
        if kind == "elementwise" and not self._keeps_apart(step):
            return None
        nodes = self.modules[str(producer.target)].get_parameter("weight").shape[0]
        return axes_after(step, source, axes, self.modules, nodes)

    def _keeps_apart(self, step: fx.Node) -> bool:
        """Whether an element-wise step can be cut down to some of its nodes."""
        module = self._module(step)
        if isinstance(module, nn.modules.batchnorm._NormBase):
            known = isinstance(module, nn.modules.batchnorm._BatchNorm)
            known = known and str(step.target) not in self.fixed
            return known and module.running_mean is not None and self.calls[id(module)] == 1
        if isinstance(module, nn.PReLU):
            return module.num_parameters == 1
        return step.target is not F.batch_norm

    def _module(self, step: fx.Node) -> nn.Module | None:
        return self.modules[str(step.target)] if step.op == "call_module" else None

    def fits(self, node: fx.Node, readers: list[Reader]) -> bool:
        """Whether all widths are multiples of the nodes: one feature each, or a flattened map."""
        made_by = self.modules[str(node.target)]
        nodes = made_by.get_parameter("weight").shape[0]
        for reader in readers:
            steps = [self._module(step) for step in reader.steps]
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


def _described(joint: Joint) -> tuple:
    """A joint in words, to compare those of two graphs."""
    return joint.producer, tuple(
        (reader.layer, tuple(step.format_node() for step in reader.steps))
        for reader in joint.readers
    )


def _users(node: fx.Node) -> list[fx.Node]:
    """Who uses a tensor for more than its batch size."""
    return [user for user in node.users if not _asks_for_the_batch_size(user)]


def _asks_for_the_batch_size(step: fx.Node) -> bool:
    if step.target == "size":
        return step.args[1:] == (0,)
    if step.target is getattr and step.args[1] == "shape":
        return all(user.args[1:] == (0,) for user in step.users)
    return step.target is getattr and str(step.args[1]) in ("device", "dtype")


def _names_a_width(step: fx.Node) -> bool:
    """Whether a view writes down its number of features, which changes when nodes are dropped."""
    name = str(step.target) if step.op == "call_method" else getattr(step.target, "__name__", "")
    return name in ("view", "reshape") and viewed_shape(step)[-1:] != (-1,)


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
        whole = not any(padding) or not module.count_include_pad
        return whole and module.divisor_override is None
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
