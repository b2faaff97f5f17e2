"""Which nodes of a thresholded network live, and the biases that replace those that do not.

A node with nothing coming in gives a constant, which moves into the biases of its readers. A node
that nothing reads is simply dropped. Constants spread forwards, unread nodes backwards. One pass
each suffices: no surviving node reads a dropped one.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from blockout.compact.cover import first_shared
from blockout.graph import (
    Joint,
    PlainLayer,
    connected_pairs,
    constant_arriving,
    without_partner,
)
from blockout.graph.liveness import Codes


@dataclass
class MaskedLayer:
    """A plain layer with the codes of its nodes; its weight is zero where they share no cluster."""

    plain: PlainLayer
    codes_out: Codes
    codes_in: Codes
    bias: Float[Tensor, " nodes_out"]
    """Includes the constants of dropped inputs; float64."""

    @classmethod
    def of(cls, plain: PlainLayer, codes_out: Codes, codes_in: Codes) -> "MaskedLayer":
        """Sets the weight to zero where two nodes share no cluster."""
        bias = torch.zeros(len(codes_out), dtype=torch.float64)
        if plain.bias is not None:
            bias += plain.bias.detach().cpu().double()
        layer = cls(plain, codes_out, codes_in, bias)
        with torch.no_grad():
            plain.weight.copy_(layer._masked(plain.weight, layer.connected()))
        return layer

    @property
    def per_node(self) -> int:
        """Features per node: more than one where a linear layer reads a flattened map."""
        return self.plain.weight.shape[1] // len(self.codes_in)

    @property
    def weights_per_pair(self) -> int:
        """Weights between an output and an input node."""
        return self.plain.weight[0].numel() // len(self.codes_in)

    @property
    def weights_left(self) -> int:
        """Weights between living nodes that share a cluster."""
        return connected_pairs(self.codes_out, self.codes_in) * self.weights_per_pair

    def connected(
        self, rows: Tensor | slice = slice(None), columns: Tensor | slice = slice(None)
    ) -> Bool[Tensor, "rows columns"]:
        """Which outputs share a cluster with which inputs."""
        return self.codes_out[rows].float() @ self.codes_in[columns].float().T > 0

    def features(self, nodes: Int[Tensor, " n"]) -> Int[Tensor, " features"]:
        """The columns of the weight that belong to these input nodes."""
        each = torch.arange(self.per_node)
        return (nodes[:, None] * self.per_node + each).flatten()

    def part(
        self, rows: Int[Tensor, " rows"], columns: Int[Tensor, " columns"], cluster: int | None
    ) -> tuple[Float[Tensor, "rows features *kernel"], bool]:
        """The weights of a ``Block`` between these nodes, and whether none of them is masked."""
        device = self.plain.weight.device
        weight = self.plain.weight.detach().index_select(0, rows.to(device))
        weight = weight.index_select(1, self.features(columns).to(device))
        if cluster is None:
            mask = self.connected(rows, columns)
        else:
            mask = first_shared(self.codes_out[rows], self.codes_in[columns], cluster)
        return self._masked(weight, mask), bool(mask.all())

    def _masked(self, weight: Tensor, mask: Bool[Tensor, "rows columns"]) -> Tensor:
        each = mask.repeat_interleave(self.per_node, dim=1).to(weight.device)
        return weight.masked_fill(~each.reshape(each.shape + (1,) * (weight.dim() - 2)), 0)

    def absorb(
        self, constants: Float[Tensor, " features"], dying: Bool[Tensor, " nodes_in"]
    ) -> None:
        """Moves what input nodes with constant values contribute into the bias."""
        columns = self.features(dying.nonzero().flatten())
        weight = self.plain.weight.detach()[:, columns].cpu().double()
        over_kernel = weight.sum(tuple(range(2, weight.dim()))) if weight.dim() > 2 else weight
        self.bias += over_kernel @ constants[columns].double()


class Survivors:
    """Finds the dead nodes of every joint and clears their codes in the producer and its readers.

    Follows the rule of ``graph.living_codes`` with one exception: a node stays if it gives a
    constant that a reader cannot absorb, such as a convolution that pads with zeros.
    """

    def __init__(self, net: nn.Module, layers: dict[str, MaskedLayer], joints: list[Joint]) -> None:
        self.net, self.layers = net, layers
        self.producer_of = {r.layer: j.producer for j in joints for r in j.readers}
        self.alive = {
            j.producer: torch.ones(len(layers[j.producer].codes_out), dtype=torch.bool)
            for j in joints
        }
        for joint in joints:
            self._drop_constant(joint)
        for joint in reversed(joints):
            self._drop_unread(joint)

    def inputs(self, name: str) -> Int[Tensor, " nodes"]:
        """The input nodes that a layer keeps: all of them if they belong to no joint."""
        if name in self.producer_of:
            return self.outputs(self.producer_of[name])
        return torch.arange(len(self.layers[name].codes_in))

    def outputs(self, name: str) -> Int[Tensor, " nodes"]:
        """The output nodes that a layer keeps: at least two, or all, so that its readers have an
        input, and the axis of nodes is not squeezed away as one of length one."""
        if name not in self.alive:
            return torch.arange(len(self.layers[name].codes_out))
        living_first = self.alive[name].int().argsort(descending=True, stable=True)
        return living_first[: max(int(self.alive[name].sum()), 2)].sort().values

    def _drop_constant(self, joint: Joint) -> None:
        producer = self.layers[joint.producer]
        dying = without_partner(producer.codes_out, [producer.codes_in])
        if not dying.any():
            return
        values = producer.bias.to(producer.plain.weight)
        arriving = {
            reader.layer: constant_arriving(self.net, joint, reader, values).detach().cpu()
            for reader in joint.readers
        }
        for constants in arriving.values():
            dying &= constants.isfinite().unflatten(0, (len(dying), -1)).all(1)
        for name, constants in arriving.items():
            self.layers[name].absorb(constants, dying)
        self._drop(joint, dying)

    def _drop_unread(self, joint: Joint) -> None:
        readers = [self.layers[reader.layer] for reader in joint.readers]
        unread = [without_partner(reader.codes_in, [reader.codes_out]) for reader in readers]
        self._drop(joint, torch.stack(unread).all(0))

    def _drop(self, joint: Joint, dying: Bool[Tensor, " nodes"]) -> None:
        self.alive[joint.producer] &= ~dying
        self.layers[joint.producer].codes_out[dying] = False
        for reader in joint.readers:
            self.layers[reader.layer].codes_in[dying] = False
