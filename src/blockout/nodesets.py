"""What one set of nodes, and one layer between two sets, look like at a threshold."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

Code = tuple[int, ...]
"""The clusters that a node belongs to, ascending; () for a dead node."""
Rows = tuple[tuple[float, ...], ...]
"""P, a row a node."""


@dataclass(frozen=True, repr=False)
class NodeSet:
    """One set of nodes: its P, and which node belongs to which cluster at a threshold.

    >>> nodes = NodeSet("P_1", ((.9, .1), (.8, .5), (.2, .1), (.6, .0)), threshold=.5)
    >>> nodes.codes
    ((0,), (0, 1), (), (0,))
    >>> nodes.nodes_by_code
    {(0,): (0, 3), (): (2,), (0, 1): (1,)}
    >>> nodes.dead, nodes.branch_sizes
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
    def assignments(self) -> Bool[Tensor, "nodes clusters"]:
        """Who belongs where; compared in float32, as the layers hold P."""
        return torch.tensor(self.memberships, dtype=torch.float32) >= self.threshold

    @cached_property
    def codes(self) -> tuple[Code, ...]:
        """The code of every node."""
        rows = self.assignments.tolist()
        return tuple(tuple(c for c, belongs in enumerate(row) if belongs) for row in rows)

    @cached_property
    def nodes_by_code(self) -> dict[Code, tuple[int, ...]]:
        """The nodes of every code that occurs, the most frequent code first."""
        counts = Counter(self.codes)
        found: dict[Code, list[int]] = {
            code: [] for code in sorted(counts, key=lambda code: (-counts[code], code))
        }
        for node, code in enumerate(self.codes):
            found[code].append(node)
        return {code: tuple(nodes) for code, nodes in found.items()}

    @property
    def dead(self) -> tuple[int, ...]:
        """Nodes without any cluster: nothing reaches them and they reach nothing."""
        return self.nodes_by_code.get((), ())

    @property
    def branch_sizes(self) -> tuple[int, ...]:
        """Nodes of each cluster; a node of several clusters counts in each."""
        return tuple(self.assignments.sum(0).tolist())

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "nodes": self.nodes,
            "clusters": self.clusters,
            "branch_sizes": self.branch_sizes,
            "dead": self.dead,
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
    """The set of nodes that it reads."""
    outputs: str
    """The set of nodes that it makes."""
    weights_per_pair: int = 1
    """Weights between two nodes: height x width of a kernel, or the features of an input node."""
    positions: int | None = 1
    """Positions of one example at which the weights are used; None if that is not known, as for a
    convolution without an input size: then multiply-adds are those of one output position."""


@dataclass(frozen=True)
class LayerCost:
    """Weights and multiply-adds of one layer (no biases), dense and at the threshold.

    >>> inputs = NodeSet("P_0", ((1., 0.), (0., 1.)), threshold=.5)
    >>> outputs = NodeSet("P_1", ((1., 1.), (1., 0.), (0., 0.)), threshold=.5)
    >>> cost = LayerCost.of(Layer("conv", "P_0", "P_1", 9, positions=16), inputs, outputs)
    >>> cost.pairs_before, cost.pairs_after
    (6, 3)
    >>> cost.weights_after, cost.multiply_adds_after, cost.left
    (27, 432, 0.5)
    """

    layer: Layer
    pairs_before: int
    """Pairs of an input and an output node."""
    pairs_after: int
    """Those that share a cluster."""

    @classmethod
    def of(cls, layer: Layer, inputs: NodeSet, outputs: NodeSet) -> "LayerCost":
        codes_in, nodes_in = torch.unique(inputs.assignments, dim=0, return_counts=True)
        codes_out, nodes_out = torch.unique(outputs.assignments, dim=0, return_counts=True)
        shared = codes_out.float() @ codes_in.float().T > 0  # codes are few, nodes may be many
        pairs = nodes_out.double() @ shared.double() @ nodes_in.double()
        return cls(layer, inputs.nodes * outputs.nodes, int(pairs))

    @property
    def left(self) -> float:
        """The share that is left, 0 to 1: the same for pairs, weights and multiply-adds."""
        return self.pairs_after / self.pairs_before

    @property
    def weights_before(self) -> int:
        return self.pairs_before * self.layer.weights_per_pair

    @property
    def weights_after(self) -> int:
        return self.pairs_after * self.layer.weights_per_pair

    @property
    def multiply_adds_before(self) -> int:
        return self.weights_before * _or_one(self.layer.positions)

    @property
    def multiply_adds_after(self) -> int:
        return self.weights_after * _or_one(self.layer.positions)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "layer": self.layer.name,
            "pairs_before": self.pairs_before,
            "pairs_after": self.pairs_after,
            "weights_before": self.weights_before,
            "weights_after": self.weights_after,
            "multiply_adds_before": self.multiply_adds_before,
            "multiply_adds_after": self.multiply_adds_after,
        }


def _or_one(positions: int | None) -> int:
    return 1 if positions is None else positions


@dataclass(frozen=True)
class ClassGroup:
    """Classes whose memberships are alike."""

    name: str
    """A, B, ..., the largest first."""
    members: tuple[int, ...]
    """Numbers of its classes."""
    branch_sizes: tuple[int, ...]
    """How many of its classes belong to each cluster."""

    @classmethod
    def of(cls, number: int, members: Sequence[int], classes: NodeSet) -> "ClassGroup":
        counts = classes.assignments[list(members)].sum(0).tolist()
        return cls(_letters(number), tuple(members), tuple(counts))

    @property
    def clusters_of_all(self) -> Code:
        """Clusters that every class of the group belongs to."""
        size = len(self.members)
        return tuple(c for c, count in enumerate(self.branch_sizes) if count == size)

    @property
    def clusters_of_some(self) -> Code:
        """Clusters that some of them belong to, and some do not; the most frequent first."""
        size = len(self.members)
        some = [c for c, count in enumerate(self.branch_sizes) if 0 < count < size]
        return tuple(sorted(some, key=lambda c: -self.branch_sizes[c]))

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "classes": [names[member] for member in self.members],
            "branch_sizes": self.branch_sizes,
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
    """What a set of nodes is, in words.

    >>> layers = [Layer("fc2", "P_0", "P_1"), Layer("fc3", "P_1", "P_2")]
    >>> [role_of(name, layers) for name in ("P_0", "P_1")]
    ['inputs of fc2', 'outputs of fc2']
    """
    made = [layer.name for layer in layers if layer.outputs == name]
    read = [layer.name for layer in layers if layer.inputs == name]
    side, names = ("outputs", made) if made else ("inputs", read)
    return f"{side} of {' and '.join(names)}" if names else "unused"


def on_one_line(text: str) -> str:
    """A name as it can be shown: no line breaks, no control characters.

    >>> on_one_line("maple\\n tree\\x1b[2J")
    'maple tree [2J'
    """
    kinds = ("Cc", "Cs", "Zl", "Zp")
    return " ".join("".join(" " if unicodedata.category(c) in kinds else c for c in text).split())
