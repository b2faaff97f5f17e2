"""Dropout as k = 1, and the building blocks of Figs. 2 and 3."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockout import BlockoutLinear, Memberships


def drawn(memberships: Memberships) -> torch.Tensor:
    assert memberships.drawn is not None
    return memberships.drawn


def test_one_cluster_is_dropout_on_both_sides_without_rescaling_and_without_dropping_the_bias():
    layer = BlockoutLinear(20, 10, 1)
    x = torch.randn(6, 20)
    y = layer(x)
    keep_in, keep_out = drawn(layer.inputs)[:, 0], drawn(layer.outputs)[:, 0]
    assert 0 < keep_in.sum() < 20 and 0 < keep_out.sum() < 10
    torch.testing.assert_close(y, F.linear(x * keep_in, layer.weight) * keep_out + layer.bias)


def test_in_inference_a_single_layer_is_dropout_scaled_by_p_on_both_sides():
    layer = BlockoutLinear(20, 10, 1, inputs=Memberships(20, 1, probability=0.3)).eval()
    x = torch.randn(6, 20)
    torch.testing.assert_close(layer(x), F.linear(x * 0.3, layer.weight) * 0.5 + layer.bias)


def test_equation_5_scales_a_node_between_two_layers_twice():
    """Dropout scales it once: the mean of a path in training is 1/p times what Eq. 5 gives."""
    p, n = 0.5, 4_000
    middle = Memberships(1, 1, probability=p, learned=False)
    certain = Memberships.given(torch.ones(1, 1))
    first = BlockoutLinear(1, 1, 1, inputs=certain, outputs=middle, bias=False)
    second = BlockoutLinear(1, 1, 1, inputs=middle, outputs=certain, bias=False)
    path = nn.Sequential(first, second)
    x = torch.ones(1, 1)
    weights = (first.weight * second.weight).item()
    assert path.eval()(x).item() == pytest.approx(weights * p**2)
    path.train()
    with torch.no_grad():
        mean = sum(path(x).item() for _ in range(n)) / n
    # a mean of n coins: 5 deviations of sqrt(p (1 - p) / n), false alarm below 1e-6
    assert mean / weights == pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5)


BRANCHES = {
    "parallel": ([[1, 0]] * 3 + [[0, 1]] * 2, [[1, 0]] * 2 + [[0, 1]] * 4),
    "dropped inputs": ([[1, 0]] * 3 + [[0, 0]] * 2, [[1, 0]] * 2 + [[0, 1]] * 4),
    "dropped outputs": ([[1, 0]] * 3 + [[0, 1]] * 2, [[1, 0]] * 2 + [[0, 0]] * 4),
    "branch": ([[1, 1]] * 5, [[1, 0]] * 2 + [[0, 1]] * 4),
    "merge": ([[1, 0]] * 3 + [[0, 1]] * 2, [[1, 1]] * 6),
}


def _small_layers(
    c_out: torch.Tensor, c_in: torch.Tensor
) -> list[tuple[list[int], list[int], nn.Linear]]:
    """For each cluster, a plain layer between its input nodes and its output nodes."""
    parts = []
    for cluster in range(c_in.shape[1]):
        sources = c_in[:, cluster].nonzero()[:, 0].tolist()
        targets = c_out[:, cluster].nonzero()[:, 0].tolist()
        if sources and targets:
            parts.append((sources, targets, nn.Linear(len(sources), len(targets), bias=False)))
    return parts


def _sum_of_parts(parts, x: torch.Tensor, width: int) -> torch.Tensor:
    y = torch.zeros(len(x), width)
    for sources, targets, part in parts:
        y[:, targets] += part(x[:, sources])
    return y


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("training", [True, False])
def test_given_memberships_are_separate_small_layers(name, training):
    """Figs. 2 and 3, from the masked layer to its parts."""
    c_in, c_out = (torch.tensor(side, dtype=torch.float32) for side in BRANCHES[name])
    layer = BlockoutLinear(
        5, 6, 2, inputs=Memberships.given(c_in), outputs=Memberships.given(c_out), bias=False
    ).train(training)
    parts = _small_layers(c_out, c_in)
    with torch.no_grad():
        for sources, targets, part in parts:
            part.weight.copy_(layer.weight[targets][:, sources] / 2)
        x = torch.randn(7, 5)
        torch.testing.assert_close(layer(x), _sum_of_parts(parts, x, 6))


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("training", [True, False])
def test_separate_small_layers_are_given_memberships(name, training):
    """Figs. 2 and 3, from the parts to one masked layer."""
    c_in, c_out = (torch.tensor(side, dtype=torch.float32) for side in BRANCHES[name])
    parts = _small_layers(c_out, c_in)
    layer = BlockoutLinear(
        5, 6, 2, inputs=Memberships.given(c_in), outputs=Memberships.given(c_out), bias=False
    ).train(training)
    with torch.no_grad():
        layer.weight.fill_(7)  # what lies outside the blocks must not matter
        for sources, targets, part in parts:
            rows = torch.tensor(targets)[:, None]
            layer.weight[rows, torch.tensor(sources)] = part.weight * 2
        x = torch.randn(7, 5)
        torch.testing.assert_close(layer(x), _sum_of_parts(parts, x, 6))
