"""Keeps the scale and the learning speed of masked weights while their masks change.

A mask multiplies a weight by m = c_t . c_s / k. Where memberships become few, m becomes small: so
do the outputs, and with them the gradient of W~ (by m) and what a step of W~ changes (by m again).
With s^2 = E[m^2], per output node, ``Pace`` keeps s W~ as the masks change, and lets the optimiser
act on s W~ instead of W~: it divides gradients and steps by s. So W learns as the weight of a plain
layer does, under any optimiser.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from blockout.layers import BlockoutLayer
from blockout.memberships import Memberships

SMALLEST = 1e-6
"""E[m^2] below it counts as this much: such a node has lost all its connections."""


def mean_square_mask(outputs: Memberships, inputs: Memberships) -> Float[Tensor, " nodes_out"]:
    """E[m^2] per output node, averaged over the input nodes, at the current P.

    With q_l = P_tl P_sl it is (sum q)^2 + sum q (1 - q), over k^2, for hard memberships; averaged
    over s, three products with k x k and k numbers.
    """
    p, q = (m.probabilities.detach().double() for m in (outputs, inputs))
    gram = q.T @ q / len(q)
    square = ((p @ gram) * p).sum(1)
    if outputs.hard and inputs.hard:
        square = square + p @ q.mean(0) - p.square() @ q.square().mean(0)
    return (square / outputs.clusters**2).clamp_min(SMALLEST)


class Pace:
    """Watches the masked layers of a model; see the module's docstring.

    Call ``after_optimiser`` after each step of the optimiser, then change memberships, then call
    ``after_memberships``.
    """

    def __init__(self, layers: Sequence[BlockoutLayer]) -> None:
        self.layers = list(layers)
        self.scales = [self._scale(layer) for layer in self.layers]
        self.before = [layer.weight.detach().clone() for layer in self.layers]
        self._hooks: list[RemovableHandle] = [
            layer.weight.register_hook(lambda gradient, i=i: gradient / self.scales[i])
            for i, layer in enumerate(self.layers)
        ]

    @torch.no_grad()
    def after_optimiser(self) -> None:
        """Makes the optimiser's step as large as a plain layer's."""
        for layer, before, scale in zip(self.layers, self.before, self.scales, strict=True):
            layer.weight.sub_(before).div_(scale).add_(before)

    @torch.no_grad()
    def after_memberships(self) -> None:
        """Rescales W~ where the masks have changed."""
        for i, layer in enumerate(self.layers):
            scale = self._scale(layer)
            if not torch.equal(scale, self.scales[i]):
                layer.weight.mul_(self.scales[i] / scale)
                self.scales[i] = scale
            self.before[i].copy_(layer.weight)

    def resume(self) -> None:
        """Takes weights and memberships as they are now: they have been loaded."""
        for i, layer in enumerate(self.layers):
            self.scales[i] = self._scale(layer)
            self.before[i].copy_(layer.weight.detach())

    def close(self) -> None:
        """Stops scaling gradients."""
        for hook in self._hooks:
            hook.remove()

    def _scale(self, layer: BlockoutLayer) -> Tensor:
        scale = mean_square_mask(layer.outputs, layer.inputs).sqrt().to(layer.weight)
        return scale.reshape((-1,) + (1,) * (layer.weight.dim() - 1))
