"""The torch.fx graph of a model's forward pass."""

import contextlib
import copy
from collections.abc import Collection

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


def trace(model: nn.Module, names: Collection[str]) -> fx.Graph:
    """The graph of a copy: a forward that stores values would store symbols in the original.

    Raises ``NotTraceable`` where the forward pass cannot be followed around the named layers.
    """
    failure: Exception = ValueError()
    for closed in (False, True):
        try:
            return _Tracer(names, closed).trace(copy.deepcopy(model))
        except Exception as error:  # whatever the user's forward raises on symbolic values
            failure = error
    first = (str(failure).splitlines() or [type(failure).__name__])[0]
    raise NotTraceable(
        f"cannot follow the forward of {type(model).__name__} from layer to layer ({first}); "
        "name each layer's producer yourself: "
        "links={'consumer': 'producer', 'other': None, ...}, one entry per layer"
    ) from failure


def refuse_weights_read_directly(model: nn.Module, names: Collection[str]) -> None:
    """Raises ``ValueError`` if the forward can be followed and reads a named layer's weight."""
    with contextlib.suppress(NotTraceable):
        require_called_only(trace(model, names), names)


def require_called_only(graph: fx.Graph, names: Collection[str]) -> None:
    """Raises ``ValueError`` if a graph reads a parameter of a named layer."""
    for node in graph.nodes:
        name, _, parameter = str(node.target).rpartition(".")
        if node.op == "get_attr" and name and name in names:
            raise ValueError(
                f"{name} cannot be converted: the model reads its {parameter} directly, where no "
                "mask applies; call the layer instead"
            )
