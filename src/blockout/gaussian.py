"""The mean of an activation under a Gaussian: DropConnect's inference by moment matching."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


def mean_activation(
    activation: nn.Module, mean: Float[Tensor, "*shape"], variance: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """E[act(u)], u ~ N(mean, variance): ReLU in closed form, otherwise by quadrature.

    >>> mean_activation(nn.ReLU(), torch.zeros(1), torch.ones(1))  # 1 / sqrt(2 pi)
    tensor([0.3989])
    """
    # A variance of exactly zero has no slope of its root; the smallest normal number is as good.
    deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    if isinstance(activation, nn.ReLU):
        return _mean_relu(mean, deviation)
    total = torch.zeros_like(mean)
    for point, weight in QUADRATURE:
        total = total + weight * activation(mean + point * deviation)
    return total


def _mean_relu(mean: Tensor, deviation: Tensor) -> Tensor:
    """E[max(u, 0)] = mean Phi(z) + deviation phi(z), z = mean / deviation."""
    z = mean / deviation
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return mean * torch.special.ndtr(z) + deviation * density


def _standard_normal_quadrature(n: int) -> list[tuple[float, float]]:
    """Gauss-Hermite points and weights for N(0, 1): eigenvalues of the Jacobi matrix."""
    off_diagonal = torch.arange(1, n, dtype=torch.float64, device="cpu").sqrt()
    jacobi = torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    points, vectors = torch.linalg.eigh(jacobi)
    return list(zip(points.tolist(), vectors[0].square().tolist(), strict=True))


QUADRATURE = _standard_normal_quadrature(32)
