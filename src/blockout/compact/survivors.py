"""Which nodes of a thresholded network live, and the biases that take over from those that do not.

A node with nothing coming in gives a constant, which moves into the biases behind it; a node that
nothing reads is not missed. Each may take others with it: constants spread along the forward, what
is not read against it. One pass of each is enough, since nobody who lives has read the unread.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from blockout.compact.cover import first_shared
from blockout.compact.joints import Joint, constant_arriving


@dataclass
class Layer:
    """A plain layer whose weight holds zeros where nodes are not connected."""

    plain: nn.Linear | nn.Conv2d
    codes_out: Bool[Tensor, "nodes_out clusters"]
    codes_in: Bool[Tensor, "nodes_in clusters"]
    bias: Float[Tensor, " nodes_out"]
    """With the constants of dead inputs, in float64."""

    @property
    def per_node(self) -> int:
        """Features of a node: more than one where a linear layer reads a flattened map."""
        return self.plain.weight.shape[1] // len(self.codes_in)

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
        """The weights between some nodes, as in ``Block``, and whether none of them is masked."""
        device = self.plain.weight.device
        weight = self.plain.weight.detach().index_select(0, rows.to(device))
        weight = weight.index_select(1, self.features(columns).to(device))
        if cluster is None:
            return weight, bool(self.connected(rows, columns).all())
        owned = first_shared(self.codes_out[rows], self.codes_in[columns], cluster)
        return self._masked(weight, owned), bool(owned.all())

    def _masked(self, weight: Tensor, mask: Bool[Tensor, "rows columns"]) -> Tensor:
        each = mask.repeat_interleave(self.per_node, dim=1).to(weight.device)
        return weight.masked_fill(~each.reshape(each.shape + (1,) * (weight.dim() - 2)), 0)

    def take_over(self, values: Float[Tensor, " features"], nodes: Int[Tensor, " n"]) -> None:
        """Adds to the bias what input nodes with constant values contribute."""
        columns = self.features(nodes)
        weight = self.plain.weight.detach()[:, columns].cpu().double()
        over_kernel = weight.sum(tuple(range(2, weight.dim()))) if weight.dim() > 2 else weight
        self.bias += over_kernel @ values[columns].double()


def as_layer(
    plain: nn.Linear | nn.Conv2d,
    codes_out: Bool[Tensor, "nodes_out clusters"],
    codes_in: Bool[Tensor, "nodes_in clusters"],
) -> Layer:
    """The layer, with its weight set to zero where two nodes share no cluster."""
    bias = torch.zeros(len(codes_out), dtype=torch.float64)
    if plain.bias is not None:
        bias += plain.bias.detach().cpu().double()
    layer = Layer(plain, codes_out, codes_in, bias)
    with torch.no_grad():
        plain.weight.copy_(layer._masked(plain.weight, layer.connected()))
    return layer


class Survivors:
    """The living nodes of every joint, by the name of its producer.

    At least one node of a joint always lives, so that no layer is left without inputs.
    """

    def __init__(self, net: nn.Module, layers: dict[str, Layer], joints: list[Joint]) -> None:
        self.net, self.layers, self.joints = net, layers, joints
        self.producer_of = {r.layer: j.producer for j in joints for r in j.readers}
        self.alive = {
            j.producer: torch.ones(len(layers[j.producer].codes_out), dtype=torch.bool)
            for j in joints
        }
        for joint in joints:
            self._drop_constant(joint)
        for joint in reversed(joints):
            self._drop_unread(joint)

    def inputs(self, name: str) -> Bool[Tensor, " nodes"]:
        """Which of a layer's inputs live; all, where they are not ours to drop."""
        all_of_them = torch.ones(len(self.layers[name].codes_in), dtype=torch.bool)
        return self.alive.get(self.producer_of.get(name, ""), all_of_them)

    def outputs(self, name: str) -> Bool[Tensor, " nodes"]:
        all_of_them = torch.ones(len(self.layers[name].codes_out), dtype=torch.bool)
        return self.alive.get(name, all_of_them)

    def _drop_constant(self, joint: Joint) -> None:
        producer, alive = self.layers[joint.producer], self.alive[joint.producer]
        fed = producer.connected(columns=self.inputs(joint.producer)).any(1)
        dying = alive & ~fed
        if not dying.any():
            return
        values = producer.bias.to(producer.plain.weight)
        arriving = [
            constant_arriving(self.net, joint, reader, values).detach().cpu()
            for reader in joint.readers
        ]
        for constants in arriving:
            dying &= constants.isfinite().unflatten(0, (len(dying), -1)).all(1)
        dying = self._but_one(alive, dying)
        for reader, constants in zip(joint.readers, arriving, strict=True):
            self.layers[reader.layer].take_over(constants, dying.nonzero().flatten())
        alive &= ~dying

    def _drop_unread(self, joint: Joint) -> None:
        alive = self.alive[joint.producer]
        read = torch.zeros_like(alive)
        for reader in joint.readers:
            read |= self.layers[reader.layer].connected(self.outputs(reader.layer)).any(0)
        alive &= ~self._but_one(alive, alive & ~read)

    @staticmethod
    def _but_one(alive: Tensor, dying: Tensor) -> Tensor:
        """The dying, without the first of them if no other lives on."""
        if (alive & ~dying).any():
            return dying
        spared = dying.clone()
        spared[int(dying.nonzero()[0])] = False
        return spared
