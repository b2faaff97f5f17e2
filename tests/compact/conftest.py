"""Networks of a few nodes, and what their compact versions must compute, pair by pair."""

import itertools

import torch
from torch import nn

from blockout import BlockoutConv2d, BlockoutLinear, Memberships, to_dense
from blockout.compact import (
    Costs,
)
from blockout.layers import BlockoutLayer

EXACT = Costs(call=0, value=0)
"""Every merging costs, so that blocks hold the connections and nothing else."""
CHEAP_CALLS = Costs(call=1e-9, multiply_add=1e-10, weight=1e-10, value=1e-10)
"""Some codes are merged, some not, in layers of a few nodes."""
THRESHOLDS = [0.0, 0.3, 0.5, 0.8, 1.0]


def masked(model: nn.Module, threshold: float) -> nn.Module:
    """The reference: Eq. 5's weights, and zero wherever no cluster is shared, pair by pair."""
    net = to_dense(model)
    for name, layer in model.named_modules():
        if isinstance(layer, BlockoutLayer):
            f = layer.features_per_node
            weight = net.get_submodule(name).weight.data
            for (i, a), (j, b) in itertools.product(
                enumerate((layer.outputs.probabilities >= threshold).tolist()),
                enumerate((layer.inputs.probabilities >= threshold).tolist()),
            ):
                if not any(p and q for p, q in zip(a, b, strict=True)):
                    weight[i, j * f : (j + 1) * f] = 0
    return net.eval()


def some(nodes: int, clusters: int, empty: float = 0.3) -> Memberships:
    """Memberships in which codes differ, repeat and overlap, and some nodes belong nowhere."""
    p = torch.rand(nodes, clusters) * (torch.rand(nodes, 1) > empty)
    return Memberships(nodes, clusters, probability=p, learned=False)


def stirred(net: nn.Module) -> nn.Module:
    """Normalisation that is not neutral, in eval mode."""
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            for values in (norm.weight.data, norm.bias.data, norm.running_mean):
                values.normal_()
            norm.running_var.uniform_(0.5, 2)
    return net.eval()


def chain(clusters: int, bias: bool, norm: bool, act: type[nn.Module], last: str) -> nn.Module:
    """A plain layer, two Blockout layers and what may stand between, behind and at the end."""
    p = [some(n, clusters) for n in (9, 8, 5)]
    parts = [nn.Linear(6, 9, bias=bias)]
    parts += [nn.BatchNorm1d(9)] * norm + [act()]
    parts += [BlockoutLinear(9, 8, clusters, inputs=p[0], outputs=p[1], bias=bias)]
    parts += [nn.BatchNorm1d(8)] * norm + [act(), nn.Dropout(0.5)]
    parts += [BlockoutLinear(8, 5, clusters, inputs=p[1], outputs=p[2], bias=bias)]
    parts += {"": [], "plain": [act(), nn.Linear(5, 3, bias=bias)], "mixed": [nn.LayerNorm(5)]}[
        last
    ]
    return stirred(nn.Sequential(*parts))


def conv_chain(clusters: int, bias: bool, act: type[nn.Module], padding: int, mode) -> nn.Module:
    """Channels as nodes, through pooling and flatten to linear nodes."""
    p = [some(n, clusters) for n in (4, 6, 5, 4)]
    geometry = {"padding": padding, "padding_mode": mode, "bias": bias}
    return stirred(
        nn.Sequential(
            nn.Conv2d(2, 4, 1, bias=bias),
            act(),
            BlockoutConv2d(4, 6, 3, clusters, inputs=p[0], outputs=p[1], **geometry),
            nn.BatchNorm2d(6),
            act(),
            nn.MaxPool2d(2),
            BlockoutConv2d(6, 5, (1, 3), clusters, inputs=p[1], outputs=p[2], stride=(1, 2)),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.BatchNorm1d(20),
            act(),
            BlockoutLinear(20, 4, clusters, inputs=p[2], outputs=p[3], features_per_node=4),
        )
    )


def assert_same(small: nn.Module, model: nn.Module, threshold: float, x: torch.Tensor) -> None:
    with torch.no_grad():
        expected = masked(model, threshold)(x)
        # sums in another order, in float64: a few thousand roundings of 1e-16 at most
        torch.testing.assert_close(small(x), expected, rtol=1e-9, atol=1e-10)


def layer_of(c_in: torch.Tensor, c_out: torch.Tensor, bias: bool = True) -> BlockoutLinear:
    memberships = {"inputs": Memberships.given(c_in), "outputs": Memberships.given(c_out)}
    return BlockoutLinear(len(c_in), len(c_out), c_in.shape[1], bias=bias, **memberships).eval()


def random_codes(nodes: int, clusters: int = 6, share: float = 0.25) -> torch.Tensor:
    return (torch.rand(nodes, clusters) < share).float()
