"""Which named layer makes the nodes that another named layer reads."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import fx, nn

from blockout.graph.layout import Axes, axes_after, axes_made_by, makes_new_nodes, reads_nodes
from blockout.graph.steps import (
    argument,
    kind_of_step,
    may_share_memory,
    why_unknown,
    works_in_place,
)
from blockout.graph.tracing import inside_leaves, require_called_only, traces


@dataclass(frozen=True)
class _Origin:
    """Where the values at one point of the graph come from, and where nodes lie."""

    layer: str | None
    """The named layer that makes these nodes; None if no named layer does."""
    axes: Axes | None = None
    """None if the nodes may lie anywhere."""
    unclear: str | None = None
    """A step on the way that may mix or move nodes."""


Origins = frozenset[_Origin]
NOBODY = Origins({_Origin(None)})


def find_producers(
    model: nn.Module, names: Collection[str], links: Mapping[str, str | None]
) -> dict[str, str | None]:
    """For each named layer, the named layer whose outputs it reads one to one, or None.

    What ``links`` says about a layer is taken as it is. Raises ``ValueError`` if the graph does not
    settle another layer; the message says which link to write.
    """
    found: dict[str, str | None] = {}
    for graph in traces(model, names):
        require_called_only(graph, names)
        _Search(model, graph, names, links, found).run()
    for name in names:
        if name not in found and name not in links:
            raise _unclear(name, "the forward pass does not call it")
    return {name: found.get(name, links.get(name)) for name in names}


class _Search:
    """Goes through one graph in the order of the forward pass and notes where values come from."""

    def __init__(
        self,
        model: nn.Module,
        graph: fx.Graph,
        names: Collection[str],
        links: Mapping[str, str | None],
        found: dict[str, str | None],
    ) -> None:
        self.graph, self.names, self.links, self.found = graph, names, links, found
        self.modules = dict(model.named_modules())
        self.hidden = inside_leaves(graph, self.modules)
        self.origins: dict[fx.Node, Origins] = {}
        self.attributes: dict[str, Origins] = {}

    def run(self) -> None:
        for name in set(self.names) & set(self.hidden) - set(self.links):
            leaf = self.modules[self.hidden[name]]
            where = f"it lies inside {self.hidden[name]}, a {type(leaf).__name__}"
            raise _unclear(name, f"{where} whose forward pass is not followed")
        for node in self.graph.nodes:
            if node.op == "call_module" and node.target in self.names:
                self.origins[node] = self._named(str(node.target), node)
            else:
                self.origins[node] = self._passed_on(node)
            if node.op == "get_attr":
                self.origins[node] = self.attributes.get(str(node.target), Origins())
            self._note_changes(node)

    def _named(self, name: str, node: fx.Node) -> Origins:
        layer = self.modules[name]
        sources = Origins().union(*(self.origins[n] for n in node.all_input_nodes))
        producer = self.links[name] if name in self.links else _decide(name, layer, sources)
        if self.found.setdefault(name, producer) != producer:
            raise _unclear(name, "it is called several times on different nodes")
        return Origins({_Origin(name, axes_made_by(layer))})

    def _passed_on(self, node: fx.Node) -> Origins:
        """The origins after a step that is not a named layer."""
        kind = kind_of_step(node, self.modules)
        if kind == "size":
            return Origins()
        if not node.all_input_nodes:
            return NOBODY
        result = set()
        for source in node.all_input_nodes:
            result |= {self._after(node, source, o, kind) for o in self.origins[source]}
        return Origins(result or NOBODY if kind == "source" else result)

    def _after(self, node: fx.Node, source: fx.Node, origin: _Origin, kind: str) -> _Origin:
        if origin.layer is None:
            return origin
        if kind == "source":
            module = self.modules[str(node.target)]
            if makes_new_nodes(node, source, origin.axes, module):
                return _Origin(None)
            return replace(origin, axes=None, unclear=origin.unclear or self._describe(node))
        if kind == "joining":
            along = argument(node, 0, "dim", 0)
            kept = origin.axes if _is_node_axis(origin.axes, along) else None
            return replace(origin, axes=kept, unclear=origin.unclear or self._describe(node))
        if kind == "mixing":
            return replace(origin, unclear=origin.unclear or self._describe(node))
        axes = origin.axes
        if axes is not None:
            nodes = self.modules[origin.layer].get_parameter("weight").shape[0]
            axes = axes_after(node, source, axes, self.modules, nodes)
        unclear = origin.unclear or (self._describe(node) if axes is None else None)
        return replace(origin, axes=axes, unclear=unclear)

    def _describe(self, node: fx.Node) -> str:
        """A step in the words of an error message, with what to do about it where that is known."""
        kind = kind_of_step(node, self.modules)
        what = str(node.name)
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            groups = getattr(module, "groups", 1)
            reason = why_unknown(module) or (f"it has groups={groups}" if groups != 1 else None)
            kind_of_module = type(module).__name__ + (f": {reason}" if reason else "")
            what = f"module {node.target} ({kind_of_module})"
        if kind == "mixing":
            return f"{what}, which makes every node depend on the others,"
        if kind == "reshaping":
            return f"{what} (only torch.flatten(x, 1) is sure to make features of channels)"
        return what

    # --- changes in place -------------------------------------------------------------------------

    def _note_changes(self, node: fx.Node) -> None:
        """What a step in place brings in reaches every other view of the tensor it changes."""
        out = node.kwargs.get("out")
        if isinstance(out, fx.Node):
            changed = out
        elif node.args and works_in_place(node, self.modules):
            changed = node.args[0]
        else:
            return
        if not isinstance(changed, fx.Node) or self.origins[node] <= self.origins[changed]:
            return
        for other in self._views(changed) - {node}:
            brought = {replace(o, axes=None, unclear=str(node.name)) for o in self.origins[node]}
            self.origins[other] = self.origins[other] | (
                self.origins[node] if other is changed else brought
            )
            if other.op == "get_attr":
                self.attributes[str(other.target)] = self.origins[other]

    def _views(self, node: fx.Node) -> set[fx.Node]:
        """All tensors so far that may share memory with one, itself included."""
        found, waiting = set(), [node]
        while waiting:
            one = waiting.pop()
            if one in found or one not in self.origins:
                continue
            found.add(one)
            waiting += [user for user in one.users if may_share_memory(user, self.modules)]
            if may_share_memory(one, self.modules):
                waiting += one.all_input_nodes
        return found


def _is_node_axis(axes: Axes | None, axis: object) -> bool:
    if axes is None or not isinstance(axis, int):
        return False
    return axis in (1, -3) if len(axes) == 4 else axis == -1 or (axes[0] == "batch" and axis == 1)


def _decide(name: str, layer: nn.Module, sources: Origins) -> str | None:
    """The one producer of a named layer, or None if no named layer produces its inputs."""
    producers = {origin.layer for origin in sources}
    if producers <= {None}:
        return None
    for origin in sorted(sources, key=str):
        if origin.layer is not None and origin.unclear:
            raise _unclear(name, f"{origin.unclear} stands between it and {origin.layer}")
    if len(producers) > 1:
        who = " and ".join(sorted(p or "a layer that is not converted" for p in producers))
        raise _unclear(name, f"the nodes of {who} are joined before it")
    (producer,) = producers
    if not all(reads_nodes(layer, origin.axes) for origin in sources):
        raise _unclear(name, f"it does not read the channels of {producer} as its inputs")
    return producer


def _unclear(name: str, reason: str) -> ValueError:
    return ValueError(
        f"cannot tell whose nodes {name} reads: {reason}. Write links={{'{name}': 'producer'}} "
        "if it reads the outputs of that layer, one to one and in order, or "
        f"links={{'{name}': None}} to give it memberships of its own"
    )
