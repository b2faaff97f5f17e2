"""The torch.fx graph of a model's forward pass."""

import contextlib
import copy
import inspect
from collections.abc import Collection, Mapping
from typing import Any

from torch import fx, nn

from blockout.dropconnect import DropConnectLinear
from blockout.layers import BlockoutLayer


class NotTraceable(ValueError):
    """torch.fx cannot follow the forward pass."""


class _Tracer(fx.Tracer):
    """Follows a model into its parts. If ``closed``, only into parts that hold a named layer."""

    def __init__(self, names: Collection[str], closed: bool) -> None:
        super().__init__()
        self.names, self.closed = names, closed

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inside = any(name.startswith(module_qualified_name + ".") for name in self.names)
        if self.closed and not inside and next(m.parameters(), None) is not None:
            return True
        own = isinstance(m, BlockoutLayer | DropConnectLinear)
        return own or super().is_leaf_module(m, module_qualified_name)


def traces(
    model: nn.Module, names: Collection[str], modes: tuple[bool, ...] = (True, False)
) -> list[fx.Graph]:
    """The graphs of copies: in training and eval mode, with optional arguments given or left out.

    Copies (of all but the parameters), because a forward that stores values would store symbols in
    the original. Raises ``NotTraceable`` where the forward pass cannot be followed around the named
    layers.
    """
    if "forward" in model.__dict__:
        raise _not_traceable(model, "its forward has been replaced on the object")
    found = []
    for mode in modes:
        found.append(_trace(model, names, mode, {}))
        with contextlib.suppress(NotTraceable):  # then it cannot run without them either
            defaults = _defaults(model)
            found += [_trace(model, names, mode, defaults)] if defaults else []
    return found


def _trace(
    model: nn.Module, names: Collection[str], training: bool, given: dict[str, Any]
) -> fx.Graph:
    failure: Exception = ValueError()
    for closed in (False, True):
        try:
            twin = copy.deepcopy(model, {id(p): p for p in model.parameters()}).train(training)
            return _Tracer(names, closed).trace(twin, concrete_args=given or None)
        except Exception as error:  # whatever the user's forward raises on symbolic values
            failure = error
    first = (str(failure).splitlines() or [type(failure).__name__])[0]
    raise _not_traceable(model, first) from failure


def _not_traceable(model: nn.Module, why: str) -> NotTraceable:
    return NotTraceable(
        f"cannot follow the forward of {type(model).__name__} from layer to layer ({why}); "
        "name each layer's producer yourself: "
        "links={'consumer': 'producer', 'other': None, ...}, one entry per layer"
    )


def _defaults(model: nn.Module) -> dict[str, Any]:
    """The optional arguments of a forward pass, with their defaults."""
    parameters = inspect.signature(type(model).forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def inside_leaves(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Modules that a graph does not show because it does not enter what holds them."""
    first = {id(module): name for name, module in reversed(list(modules.items()))}
    found = {}
    for node in graph.nodes:
        if node.op == "call_module":
            leaf = modules[str(node.target)]
            found |= {first[id(m)]: str(node.target) for m in leaf.modules() if m is not leaf}
    return found


def refuse_weights_read_directly(model: nn.Module, names: Collection[str]) -> None:
    """Raises ``ValueError`` if the forward can be followed and reads a named layer's weight."""
    with contextlib.suppress(NotTraceable):
        for graph in traces(model, names):
            require_called_only(graph, names)


def require_called_only(graph: fx.Graph, names: Collection[str]) -> None:
    """Raises ``ValueError`` if a graph reads a parameter of a named layer."""
    for node in graph.nodes:
        name, _, parameter = str(node.target).rpartition(".")
        if node.op == "get_attr" and name and name in names:
            raise ValueError(
                f"{name} cannot be converted: the model reads its {parameter} directly, where no "
                "mask applies; call the layer instead"
            )
