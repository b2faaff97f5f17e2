"""The end of drawing: what was drawn with one probability becomes certain."""

import torch
from torch import Tensor, nn

from blockout.layers import BlockoutLayer, memberships_of


@torch.no_grad()
def make_certain(model: nn.Module) -> None:
    """P of 0 and p become 0 and 1, and W~ takes over p; what inference computes (Eq. 5) stays.

    Sets of nodes whose P have other values, or are not learned, are left alone.

    >>> from blockout import BlockoutLinear
    >>> layer = BlockoutLinear(2, 2, clusters=2)
    >>> layer.outputs.put(torch.tensor([[0.3, 0.0], [0.0, 0.3]]))
    >>> before = layer.expected_weight()
    >>> make_certain(layer)
    >>> layer.outputs.probabilities.tolist(), torch.allclose(layer.expected_weight(), before)
    ([[1.0, 0.0], [0.0, 1.0]], True)
    """
    found = [m for m in memberships_of(model).values() if m.learned]
    kept = {m: p for m in found if (p := _only_probability(m.probabilities)) is not None}
    for layer in model.modules():
        if isinstance(layer, BlockoutLayer):
            for side in (layer.outputs, layer.inputs):
                layer.weight.mul_(kept.get(side, 1.0))
    for m in kept:
        m.put((m.probabilities > 0).to(m.logits))


def _only_probability(p: Tensor) -> Tensor | None:
    """The one value of P beside zero; None if there are several, or it is one already."""
    most = p.max()
    same = ((p == 0) | (p == most)).all()
    return most if bool(same) and 0 < float(most) < 1 else None
