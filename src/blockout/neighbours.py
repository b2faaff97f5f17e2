"""Which named layers of a model feed which: read from its torch.fx graph, refused where unclear."""

import contextlib
import copy
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.nn import functional as F

from blockout.layers import BlockoutLayer, DropConnectLinear

ELEMENTWISE_MODULES = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.FeatureAlphaDropout, nn.ReLU, nn.ReLU6, nn.RReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU,
    nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Hardsigmoid, nn.Hardswish,
    nn.Hardtanh, nn.Hardshrink, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink,
    nn.Threshold, nn.Softmax, nn.LogSoftmax, nn.modules.batchnorm._NormBase, nn.GroupNorm,
    nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm,
)  # fmt: skip
POOLING_MODULES = (
    nn.MaxPool2d, nn.AvgPool2d, nn.LPPool2d, nn.FractionalMaxPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.Upsample, nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d,
)  # fmt: skip
MIXING_MODULES = (
    nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvNd, nn.RNNBase,
    nn.RNNCellBase, nn.MultiheadAttention, BlockoutLayer, DropConnectLinear,
)  # fmt: skip
ELEMENTWISE_FUNCTIONS = {
    F.relu, F.relu_, torch.relu_,
    F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu, F.mish, F.sigmoid,
    F.logsigmoid, F.hardsigmoid, F.hardswish, F.hardtanh, F.softplus, F.softsign, F.tanh,
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.batch_norm, F.layer_norm,
    F.group_norm, F.softmax, F.log_softmax, torch.relu, torch.sigmoid, torch.tanh, torch.softmax,
    torch.clamp, torch.abs, torch.square, torch.exp, torch.add, torch.sub, torch.mul, torch.div,
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow,
    operator.iadd, operator.isub, operator.imul, operator.itruediv,
}  # fmt: skip
ELEMENTWISE_METHODS = {
    "relu", "relu_", "sigmoid", "tanh", "clamp", "abs", "square", "exp", "add", "add_", "sub",
    "mul", "mul_", "div", "softmax", "log_softmax", "contiguous", "clone", "float", "to", "type",
    "detach",
}  # fmt: skip
POOLING_FUNCTIONS = {
    F.max_pool2d, F.avg_pool2d, F.lp_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d,
    F.interpolate, torch.max_pool2d,
}  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where the values at one point of the graph come from, and where their nodes lie."""

    layer: str | None
    """The named layer whose output nodes these are; None for all else."""
    channels: bool = False
    """Nodes are the second of four dimensions; otherwise they are the last dimension."""
    unclear: str | None = None
    """A step on the way that may not keep the nodes in place."""


def find_producers(
    model: nn.Module, names: Collection[str], links: Mapping[str, str | None]
) -> dict[str, str | None]:
    """For each named layer, the named layer whose outputs it reads one to one, or None.

    What ``links`` says of a layer holds without a look. Raises ``ValueError`` where the rest cannot
    be decided; says what to write instead.
    """
    graph = trace(model, names)
    _require_called_only(graph, names)
    modules = dict(model.named_modules())
    origins: dict[fx.Node, frozenset[Origin]] = {}
    found: dict[str, str | None] = {}
    for node in graph.nodes:
        sources = frozenset[Origin]().union(*(origins[n] for n in node.all_input_nodes))
        if node.op == "call_module" and node.target in names:
            name = str(node.target)
            known = name in links
            producer = links[name] if known else _decide(name, modules[name], sources)
            if found.setdefault(name, producer) != producer:
                raise _unclear(name, "it is called several times on different nodes")
            origins[node] = frozenset({Origin(name, channels=isinstance(modules[name], nn.Conv2d))})
        else:
            origins[node] = _passed_on(node, sources, modules)
            if node.op == "call_method" and str(node.target).endswith("_"):
                changed = node.args[0]
                assert isinstance(changed, fx.Node)
                origins[changed] = origins[node]
    return {name: found.get(name, links.get(name)) for name in names}


def refuse_weights_read_directly(model: nn.Module, names: Collection[str]) -> None:
    """Raises where the forward, if it can be followed, takes a named layer's weight itself."""
    with contextlib.suppress(NotTraceable):
        _require_called_only(trace(model, names), names)


class NotTraceable(ValueError):
    """The forward cannot be followed symbolically."""


class _Tracer(fx.Tracer):
    """Follows a model into its parts, or, ``closed``, only where a named layer lies."""

    def __init__(self, names: Collection[str], closed: bool) -> None:
        super().__init__()
        self.names, self.closed = names, closed

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inside = any(name.startswith(module_qualified_name + ".") for name in self.names)
        if self.closed and not inside and next(m.parameters(), None) is not None:
            return True
        own = isinstance(m, BlockoutLayer | DropConnectLinear)
        return own or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module, names: Collection[str]) -> fx.Graph:
    """The graph of a copy: a forward that stores things would store symbols in the original."""
    failure: Exception = ValueError()
    for closed in (False, True):
        try:
            return _Tracer(names, closed).trace(copy.deepcopy(model))
        except Exception as error:  # whatever the user's forward raises on symbolic values
            failure = error
    first = (str(failure).splitlines() or [type(failure).__name__])[0]
    raise NotTraceable(
        f"cannot follow the forward of {type(model).__name__} from layer to layer ({first}); "
        "say yourself which of the layers are neighbours: "
        "links={'consumer': 'producer', 'other': None, ...}, one entry a layer"
    ) from failure


def _require_called_only(graph: fx.Graph, names: Collection[str]) -> None:
    for node in graph.nodes:
        name, _, parameter = str(node.target).rpartition(".")
        if node.op == "get_attr" and name and name in names:
            raise ValueError(
                f"{name} cannot be converted: the model reads its {parameter} itself, where no "
                "mask applies; let it call the layer instead"
            )


def _passed_on(
    node: fx.Node, sources: frozenset[Origin], modules: dict[str, nn.Module]
) -> frozenset[Origin]:
    """The origins behind one step that is not a named layer."""
    step = kind_of_step(node, modules)
    if step == "size":
        return frozenset()
    if step == "source" or not node.all_input_nodes:
        return frozenset({Origin(None)})
    if step == "elementwise":
        return sources
    result = set()
    for origin in sources:
        if origin.layer is None or origin.unclear or (step == "pooling" and origin.channels):
            result.add(origin)
        elif step == "flatten" or (step == "global pooling" and origin.channels):
            result.add(Origin(origin.layer))
        else:
            what = f"module {node.target}" if node.op == "call_module" else str(node.name)
            result.add(Origin(origin.layer, unclear=what))
    return frozenset(result)


def kind_of_step(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """source (new nodes), size (no nodes), elementwise, pooling, global pooling, flatten, other."""
    if node.op == "placeholder":
        return "source"
    if node.op == "get_attr" or node.target in ("size", "dim", "numel", len):
        return "size"
    if node.target is getattr and node.args[1] in ("shape", "ndim", "device", "dtype"):
        return "size"
    if node.op == "output":
        return "elementwise"
    if node.op == "call_module":
        return _module_kind(modules[str(node.target)])
    if _flattens(node):
        return "flatten"
    if _pools_globally(node):
        return "global pooling"
    if node.op == "call_function":
        if node.target in ELEMENTWISE_FUNCTIONS:
            return "elementwise"
        return "pooling" if node.target in POOLING_FUNCTIONS else "other"
    return "elementwise" if node.target in ELEMENTWISE_METHODS else "other"


def _module_kind(module: nn.Module) -> str:
    if isinstance(module, ELEMENTWISE_MODULES):
        return "elementwise"
    if isinstance(module, POOLING_MODULES):
        return "pooling"
    if isinstance(module, MIXING_MODULES):
        return "source"
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
        return "flatten"
    return "other"


def _flattens(node: fx.Node) -> bool:
    """flatten(x, 1), x.flatten(1), and views with two dimensions, the batch and all the rest."""
    rest = tuple(node.args[1:])
    if node.target in (torch.flatten, "flatten"):
        return rest in ((1,), (1, -1)) or (not rest and node.kwargs == {"start_dim": 1})
    if node.target in ("view", "reshape", torch.reshape):
        shape = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
        return len(shape) == 2
    return False


def _pools_globally(node: fx.Node) -> bool:
    """The mean over height and width, or axes of length one left out."""
    if node.target in (torch.squeeze, "squeeze"):
        return True
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    is_mean = node.target in (torch.mean, "mean")
    return is_mean and isinstance(dims, list | tuple) and set(dims) in ({2, 3}, {-2, -1})


def _decide(name: str, layer: nn.Module, sources: frozenset[Origin]) -> str | None:
    """The one producer of a named layer, if there is one."""
    producers = {origin.layer for origin in sources}
    if producers <= {None}:
        return None
    for origin in sources:
        if origin.layer is not None and origin.unclear:
            raise _unclear(name, f"{origin.unclear} stands between it and {origin.layer}")
    if len(producers) > 1:
        who = " and ".join(sorted(p or "a layer that is not converted" for p in producers))
        raise _unclear(name, f"the nodes of {who} are joined before it")
    (producer,) = producers
    if any(origin.channels != isinstance(layer, nn.Conv2d) for origin in sources):
        raise _unclear(name, f"it does not read the channels of {producer} as its inputs")
    return producer


def _unclear(name: str, reason: str) -> ValueError:
    return ValueError(
        f"cannot tell whose nodes {name} reads: {reason}. Write links={{'{name}': 'producer'}} if "
        "they are, one to one and in order, the outputs of that layer, or "
        f"links={{'{name}': None}} for memberships of its own"
    )
