"""What sets of nodes and the layers between them look like at a threshold."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import torch

from blockout.graph import connected_pairs
from blockout.graph.liveness import Codes

Code = tuple[int, ...]
"""The clusters that a node belongs to, ascending; () for a node without clusters."""
Rows = tuple[tuple[float, ...], ...]
"""P, one row per node."""


@dataclass(frozen=True, repr=False)
class NodeSet:
    """One set of nodes: its P, and which node belongs to which cluster at a threshold.

    >>> nodes = NodeSet("P_1", ((.9, .1), (.8, .5), (.2, .1), (.6, .0)), threshold=.5)
    >>> nodes.codes
    ((0,), (0, 1), (), (0,))
    >>> nodes.nodes_by_code
    {(0,): (0, 3), (): (2,), (0, 1): (1,)}
    >>> nodes.without_cluster, nodes.cluster_sizes
    ((2,), (3, 1))
    """

    name: str
    """P_0, P_1, ..."""
    memberships: Rows
    """P as float32 holds it."""
    threshold: float
    """A node belongs to a cluster where P >= threshold."""

    @property
    def nodes(self) -> int:
        return len(self.memberships)

    @property
    def clusters(self) -> int:
        return len(self.memberships[0])

    @cached_property
    def assignments(self) -> Codes:
        """Which node belongs to which cluster; compared in float32, as the layers hold P."""
        return torch.tensor(self.memberships, dtype=torch.float32) >= self.threshold

    @cached_property
    def codes(self) -> tuple[Code, ...]:
        """The code of each node."""
        rows = self.assignments.tolist()
        return tuple(tuple(c for c, belongs in enumerate(row) if belongs) for row in rows)

    @cached_property
    def nodes_by_code(self) -> dict[Code, tuple[int, ...]]:
        """The nodes of each code that occurs, the most frequent code first."""
        found: dict[Code, list[int]] = {}
        for node, code in enumerate(self.codes):
            found.setdefault(code, []).append(node)
        ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        return {code: tuple(nodes) for code, nodes in ordered}

    @property
    def without_cluster(self) -> tuple[int, ...]:
        """Nodes that belong to no cluster, so they are connected to nothing."""
        return self.nodes_by_code.get((), ())

    @property
    def cluster_sizes(self) -> tuple[int, ...]:
        """Nodes per cluster; a node of several clusters counts in each."""
        return tuple(self.assignments.sum(0).tolist())

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "nodes": self.nodes,
            "clusters": self.clusters,
            "cluster_sizes": self.cluster_sizes,
            "dead": self.without_cluster,
            "codes": [
                {"clusters": code, "count": len(nodes), "nodes": nodes}
                for code, nodes in self.nodes_by_code.items()
            ],
        }

    def __repr__(self) -> str:
        size = f"{self.nodes} nodes, {self.clusters} clusters"
        return f"NodeSet({self.name}: {size}, threshold={self.threshold:g})"


@dataclass(frozen=True)
class Layer:
    """A Blockout layer between two sets of nodes."""

    name: str
    """Its name in the model."""
    inputs: str
    """The set of nodes it reads."""
    outputs: str
    """The set of nodes it makes."""
    weights_per_pair: int = 1
    """Weights per pair of nodes: height x width of a kernel, or the features of an input node."""
    positions: int | None = 1
    """How often one example uses each weight. None if unknown, as for a convolution without an
    input size; multiply-adds are then those of one output position."""


@dataclass(frozen=True)
class Cost:
    """Pairs of nodes, weights and multiply-adds (no biases): all of them, and those left."""

    pairs_before: int
    """Pairs of an input and an output node."""
    pairs_after: int
    """Pairs that share a cluster and are both alive."""
    weights_before: int
    weights_after: int
    multiply_adds_before: int
    multiply_adds_after: int

    @classmethod
    def total(cls, costs: Sequence["Cost"]) -> "Cost":
        """The sum over layers."""
        names = [field.name for field in fields(Cost)]
        return Cost(*(sum(getattr(cost, name) for cost in costs) for name in names))

    @property
    def left(self) -> float:
        """The share of the weights that is left, 0 to 1."""
        return self.weights_after / self.weights_before


@dataclass(frozen=True)
class LayerCost(Cost):
    """What one layer costs; ``left`` is the same share for pairs, weights and multiply-adds.

    >>> inputs = torch.tensor([[1, 0], [0, 1]], dtype=torch.bool)
    >>> outputs = torch.tensor([[1, 1], [1, 0], [0, 0]], dtype=torch.bool)
    >>> cost = LayerCost.of(Layer("conv", "P_0", "P_1", 9, positions=16), inputs, outputs)
    >>> cost.pairs_before, cost.pairs_after
    (6, 3)
    >>> cost.weights_after, cost.multiply_adds_after, cost.left
    (27, 432, 0.5)
    """

    layer: Layer

    @classmethod
    def of(cls, layer: Layer, inputs: Codes, outputs: Codes) -> Self:
        """Of a layer between two sets of nodes, given the codes of those that are alive."""
        before, after = len(inputs) * len(outputs), connected_pairs(outputs, inputs)
        each = layer.weights_per_pair
        often = each * (1 if layer.positions is None else layer.positions)
        return cls(before, after, before * each, after * each, before * often, after * often, layer)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"layer": self.layer.name, **{f.name: getattr(self, f.name) for f in fields(Cost)}}


@dataclass(frozen=True)
class ClassGroup:
    """Classes whose memberships are alike."""

    name: str
    """A, B, ..., the largest first."""
    members: tuple[int, ...]
    """The numbers of its classes."""
    cluster_sizes: tuple[int, ...]
    """Classes of the group per cluster."""

    @classmethod
    def of(cls, number: int, members: Sequence[int], classes: NodeSet) -> "ClassGroup":
        counts = classes.assignments[list(members)].sum(0).tolist()
        return cls(_letters(number), tuple(members), tuple(counts))

    @property
    def clusters_of_all(self) -> Code:
        """Clusters that every class of the group belongs to."""
        size = len(self.members)
        return tuple(c for c, count in enumerate(self.cluster_sizes) if count == size)

    @property
    def clusters_of_some(self) -> Code:
        """Clusters that some but not all of them belong to, the most frequent first."""
        size = len(self.members)
        some = [c for c, count in enumerate(self.cluster_sizes) if 0 < count < size]
        return tuple(sorted(some, key=lambda c: -self.cluster_sizes[c]))

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "classes": [names[member] for member in self.members],
            "cluster_sizes": self.cluster_sizes,
            "clusters_of_all": self.clusters_of_all,
            "clusters_of_some": self.clusters_of_some,
        }


def _letters(number: int) -> str:
    """
    >>> [_letters(n) for n in (0, 25, 26, 701)]
    ['A', 'Z', 'AA', 'ZZ']
    """
    rest, last = divmod(number, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("A") + last)


def role_of(name: str, layers: Sequence[Layer]) -> str:
    """What a set of nodes is, in words: inputs or outputs of which layers.

    >>> layers = [Layer("fc2", "P_0", "P_1"), Layer("fc3", "P_1", "P_2")]
    >>> [role_of(name, layers) for name in ("P_0", "P_1")]
    ['inputs of fc2', 'outputs of fc2']
    """
    made = [layer.name for layer in layers if layer.outputs == name]
    read = [layer.name for layer in layers if layer.inputs == name]
    side, names = ("outputs", made) if made else ("inputs", read)
    return f"{side} of {' and '.join(names)}" if names else "unused"


def on_one_line(text: str) -> str:
    """A name without line breaks and control characters.

    >>> on_one_line("maple\\n tree\\x1b[2J")
    'maple tree [2J'
    """
    kinds = ("Cc", "Cs", "Zl", "Zp")
    return " ".join("".join(" " if unicodedata.category(c) in kinds else c for c in text).split())
