"""DropConnect: masks, mean activations against exact values and brute force, refusals."""

import math

import pytest
import torch
from torch import nn

from blockout.dropconnect import DropConnectLinear, mean_activation


def _by_integration(activation, mean, variance):
    """A fine midpoint sum over +-10 deviations."""
    deviation = variance.sqrt()
    z = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    values = activation(mean[:, None] + deviation[:, None] * z)
    return (values * density).sum(1) * (z[1] - z[0])


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.SiLU(), nn.Softplus()])
def test_the_mean_activation_is_the_integral(activation):
    mean = torch.linspace(-3, 3, 13, dtype=torch.float64)
    variance = torch.linspace(0.01, 1.5, 13, dtype=torch.float64)
    expected = _by_integration(activation, mean, variance)
    # quadrature with 32 points on smooth functions of this width is good to about 1e-7
    torch.testing.assert_close(
        mean_activation(activation, mean, variance), expected, atol=1e-6, rtol=0
    )


def test_without_variance_it_is_the_activation_with_finite_gradients():
    mean = torch.tensor([-2.0, -0.0, 0.5], requires_grad=True)
    variance = torch.zeros(3, requires_grad=True)
    result = mean_activation(nn.ReLU(), mean, variance)
    torch.testing.assert_close(result, mean.relu())
    result.sum().backward()
    assert mean.grad is not None and mean.grad.isfinite().all()
    assert variance.grad is not None and variance.grad.isfinite().all()


def test_dropconnect_drops_weights_one_by_one_with_the_stated_frequency():
    layer = DropConnectLinear(300, 200, keep=0.7, bias=False)
    weights = torch.stack([layer(torch.eye(300)).T for _ in range(10)])
    kept = weights == layer.weight
    assert (kept | (weights == 0)).all()
    share = kept.float().mean().item()
    # 600,000 coins: 5 deviations, false alarm below 1e-6
    assert share == pytest.approx(0.7, abs=5 * (0.21 / 600_000) ** 0.5)
    rank = torch.linalg.matrix_rank(kept[0].float()).item()
    assert rank == 200, "structureless, unlike the low-rank masks of Blockout"


@pytest.mark.parametrize("activation", [None, nn.ReLU(), nn.Tanh()])
def test_dropconnect_predicts_the_mean_activation_over_masks(activation):
    """Against 4,000 masks: their mean scatters by 0.006, and 0.03 is small beside the spread of 0.4
    that the activation of the mean would ignore."""
    layer = DropConnectLinear(400, 8, keep=0.5, activation=activation).eval()
    x = torch.randn(2, 400)
    with torch.no_grad():
        masked = layer.weight * torch.bernoulli(torch.full((4000, 8, 400), 0.5))
        sums = torch.einsum("noi,bi->nbo", masked, x) + layer.bias
        mean = (sums if activation is None else activation(sums)).mean(0)
        torch.testing.assert_close(layer(x), mean, atol=0.03, rtol=0)


def test_dropconnect_activations_start_with_the_variance_of_a_plain_layer():
    x = torch.randn(100, 256)
    with torch.no_grad():
        ours = torch.stack(
            [DropConnectLinear(256, 256, keep=0.3)(x).var() for _ in range(20)]
        ).mean()
        plain = torch.stack([nn.Linear(256, 256)(x).var() for _ in range(20)]).mean()
    assert abs(ours / plain - 1) < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_features": 0}, "in_features must be a whole number, at least 1, got 0"),
        ({"activation": torch.relu}, "must be a module such as nn.ReLU"),
        ({"keep": 0.0}, r"keep must lie in \(0, 1\], got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DropConnectLinear(**{"in_features": 4, "out_features": 4, **arguments})


def test_an_input_of_the_wrong_width_is_refused():
    with pytest.raises(ValueError, match=r"takes 8 .* got an input of shape \("):
        DropConnectLinear(8, 4)(torch.zeros(3, 9))
