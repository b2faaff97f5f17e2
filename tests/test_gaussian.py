"""Means of activations under a Gaussian against exact values and brute force."""

import math

import pytest
import torch
from torch import nn

from blockout.gaussian import mean_activation


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
