"""Which named layer makes the nodes that another named layer reads."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import fx, nn

from blockout.graph.steps import kind_of_step
from blockout.graph.tracing import require_called_only, trace


@dataclass(frozen=True)
class _Origin:
    """Where the values at one point of the graph come from, and in which dimension nodes lie."""

    layer: str | None
    """The named layer that makes these nodes; None if no named layer does."""
    channels: bool = False
    """Nodes are the second of four dimensions; otherwise they are the last dimension."""
    unclear: str | None = None
    """A step on the way that may move nodes."""


def find_producers(
    model: nn.Module, names: Collection[str], links: Mapping[str, str | None]
) -> dict[str, str | None]:
    """For each named layer, the named layer whose outputs it reads one to one, or None.

    What ``links`` says about a layer is taken as it is. Raises ``ValueError`` if the graph does not
    settle another layer; the message says which link to write.
    """
    graph = trace(model, names)
    require_called_only(graph, names)
    modules = dict(model.named_modules())
    origins: dict[fx.Node, frozenset[_Origin]] = {}
    found: dict[str, str | None] = {}
    for node in graph.nodes:
        sources = frozenset[_Origin]().union(*(origins[n] for n in node.all_input_nodes))
        if node.op == "call_module" and node.target in names:
            name = str(node.target)
            known = name in links
            producer = links[name] if known else _decide(name, modules[name], sources)
            if found.setdefault(name, producer) != producer:
                raise _unclear(name, "it is called several times on different nodes")
            origins[node] = frozenset({_Origin(name, isinstance(modules[name], nn.Conv2d))})
        else:
            origins[node] = _passed_on(node, sources, modules)
            if node.op == "call_method" and str(node.target).endswith("_"):
                changed = node.args[0]
                assert isinstance(changed, fx.Node)
                origins[changed] = origins[node]
    return {name: found.get(name, links.get(name)) for name in names}


def _passed_on(
    node: fx.Node, sources: frozenset[_Origin], modules: dict[str, nn.Module]
) -> frozenset[_Origin]:
    """The origins after a step that is not a named layer."""
    kind = kind_of_step(node, modules)
    if kind == "size":
        return frozenset()
    if kind == "source" or not node.all_input_nodes:
        return frozenset({_Origin(None)})
    if kind in ("elementwise", "mixing"):
        return sources
    result = set()
    for origin in sources:
        if origin.layer is None or origin.unclear or (kind == "pooling" and origin.channels):
            result.add(origin)
        elif kind == "flatten" or (kind == "global pooling" and origin.channels):
            result.add(_Origin(origin.layer))
        else:
            what = f"module {node.target}" if node.op == "call_module" else str(node.name)
            result.add(_Origin(origin.layer, unclear=what))
    return frozenset(result)


def _decide(name: str, layer: nn.Module, sources: frozenset[_Origin]) -> str | None:
    """The one producer of a named layer, or None if no named layer produces its inputs."""
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
        f"cannot tell whose nodes {name} reads: {reason}. Write links={{'{name}': 'producer'}} "
        "if it reads the outputs of that layer, one to one and in order, or "
        f"links={{'{name}': None}} to give it memberships of its own"
    )
