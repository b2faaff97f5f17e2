"""DropConnect: a linear layer that drops single weights, with inference by moment matching."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from blockout.layers import fill_plain, require_width
from blockout.memberships import positive_integers


class DropConnectLinear(nn.Module):
    """y = act(x (W * M)^T + b), where M keeps each weight independently with probability ``keep``.

    In eval mode, the output is the mean of the *activation* over masks, not the activation of the
    mean. The layer treats the sum over many inputs as Gaussian, with mean keep W x + b and variance
    keep (1 - keep) (W * W)(x * x), and averages act under it. Without an activation the mean is
    exact, ReLU has a closed form, and any other activation uses Gauss-Hermite quadrature. This is
    why the activation is part of the layer.

    Departures from Wan et al. (2013): one mask per step, not per example, and no mask on the bias,
    as in the Blockout layers.

    Args:
        in_features, out_features: as in ``nn.Linear``.
        keep: probability of keeping a weight in a training step.
        activation: element-wise module applied to the sum, or None.

    Shape: (*, in_features) to (*, out_features).

    >>> layer = DropConnectLinear(512, 100, keep=0.5, activation=nn.ReLU()).eval()
    >>> layer(torch.randn(8, 512)).shape
    torch.Size([8, 100])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        keep: float = 0.5,
        activation: nn.Module | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        in_features, out_features = positive_integers(
            in_features=in_features, out_features=out_features
        )
        if not 0 < keep <= 1:
            raise ValueError(f"keep must lie in (0, 1], got {keep:g}; it is 1 - the drop rate")
        if activation is not None and not isinstance(activation, nn.Module):
            raise ValueError(
                f"activation must be a module such as nn.ReLU(), or None, got {activation}"
            )
        self.in_features, self.out_features, self.keep = in_features, out_features, keep
        self.activation = activation
        self.sampling = False
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, device=device, dtype=dtype)
        )
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises as a plain layer does, then divides W by sqrt(keep) to keep the variance."""
        bound = 1 / math.sqrt(self.in_features)
        with torch.no_grad():
            self.weight.uniform_(-bound, bound).mul_(self.keep**-0.5)
            if self.bias is not None:
                self.bias.uniform_(-bound, bound)

    def forward(self, x: Float[Tensor, "*batch nodes_in"]) -> Float[Tensor, "*batch nodes_out"]:
        require_width(self, x, -1, self.in_features)
        if self.training or self.sampling:
            mask = torch.bernoulli(torch.full_like(self.weight, self.keep, requires_grad=False))
            total = F.linear(x, self.weight * mask, self.bias)
            return total if self.activation is None else self.activation(total)
        mean = F.linear(x, self.weight * self.keep, self.bias)
        if self.activation is None:
            return mean
        variance = F.linear(x.square(), self.weight.square()) * (self.keep * (1 - self.keep))
        return mean_activation(self.activation, mean, variance)

    def to_plain(self) -> nn.Module:
        """``nn.Linear`` with weight keep W, then the activation: the activation of the mean."""
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        fill_plain(plain, self, self.weight * self.keep, self.bias)
        return plain if self.activation is None else nn.Sequential(plain, self.activation)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"keep={self.keep}, bias={self.bias is not None}"
        )


def mean_activation(
    activation: nn.Module, mean: Float[Tensor, "*shape"], variance: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """E[act(u)] for u ~ N(mean, variance): closed form for ReLU, otherwise quadrature.

    >>> mean_activation(nn.ReLU(), torch.zeros(1), torch.ones(1))  # 1 / sqrt(2 pi)
    tensor([0.3989])
    """
    # The square root has no slope at zero; the smallest normal number stands in for it.
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
