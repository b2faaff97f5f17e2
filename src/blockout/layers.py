"""A linear layer and a convolution with masked weights, and their cousin DropConnect."""

import copy
import math
from abc import ABC, abstractmethod
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from blockout import gaussian
from blockout.masking import masked_weight
from blockout.memberships import Memberships, require_positive
from blockout.scale import input_gram, output_second_moments

PlainLayer = TypeVar("PlainLayer", nn.Linear, nn.Conv2d)


class BlockoutLayer(nn.Module, ABC):
    """A layer whose weight W~ is masked by the memberships of its inputs and outputs.

    Whoever takes a ``Memberships`` first owns it (registers it, so that it appears once in the
    state_dict, in ``parameters()`` and under ``.to()``); later neighbours only refer to it. So keep
    neighbours in one model.
    """

    weight: Tensor
    bias: Tensor | None
    inputs: Memberships
    outputs: Memberships

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        clusters: int,
        *,
        inputs: Memberships | None,
        outputs: Memberships | None,
        features_per_node: int,
        hard: bool,
        learned: bool,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.clusters, self.features_per_node = clusters, features_per_node
        nodes_out, features_in = weight_shape[:2]
        nodes_in = _nodes_in(features_in, features_per_node)
        variant: dict[str, Any] = {"hard": hard, "learned": learned, "device": device}
        if inputs is None:
            inputs = Memberships(nodes_in, clusters, **variant, dtype=dtype)
        if outputs is None:
            outputs = Memberships(nodes_out, clusters, **variant, dtype=dtype)
        self._require_fit("inputs", inputs, nodes_in)
        self._require_fit("outputs", outputs, nodes_out)
        self._input_seat = self._take("inputs", inputs)
        self._output_seat = self._take("outputs", outputs)
        self.weight = nn.Parameter(torch.empty(weight_shape, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(nodes_out, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As a plain layer, with W~ enlarged so that outputs have a plain layer's variance.

        Row by row, and with regard to the layer that produces the inputs (see ``scale``).
        Memberships have a ``reset_parameters`` of their own.
        """
        bound = 1 / math.sqrt(self.weight[0].numel())
        gram = input_gram(self.inputs)
        self.outputs.profile = gram
        moments = output_second_moments(self.outputs, gram).expand(len(self.weight))
        row_scale = torch.where(moments > 0, moments, 1.0).rsqrt().to(self.weight)
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
            self.weight.mul_(row_scale.reshape((-1,) + (1,) * (self.weight.dim() - 1)))
            if self.bias is not None:
                self.bias.uniform_(-bound, bound)

    def masked_weight(self) -> Float[Tensor, "nodes_out features_in *kernel"]:
        """W_j for one forward: Eq. 4 with this step's draw in training, Eq. 5 in eval mode."""
        c_out = self.outputs.assignments(self._output_seat, training=self.training)
        c_in = self.inputs.assignments(self._input_seat, training=self.training)
        return masked_weight(self.weight, c_out, self.per_feature(c_in))

    def expected_weight(self) -> Float[Tensor, "nodes_out features_in *kernel"]:
        """The inference weight W~_j * P_j P_{j-1}^T / k (Eq. 5), whatever the mode."""
        self.inputs.require_finite()
        self.outputs.require_finite()
        c_in = self.per_feature(self.inputs.probabilities)
        return masked_weight(self.weight, self.outputs.probabilities, c_in)

    @abstractmethod
    def to_plain(self) -> nn.Module:
        """A new plain torch layer with the weights of Eq. 5."""

    def per_feature(self, c_in: Tensor) -> Tensor:
        """One row for each input feature: that of its node."""
        if self.features_per_node == 1:
            return c_in
        return c_in.repeat_interleave(self.features_per_node, dim=0)

    def _require_fit(self, side: str, memberships: Memberships, nodes: int) -> None:
        name = type(self).__name__
        if memberships.clusters != self.clusters:
            raise ValueError(
                f"{name} has {self.clusters} clusters but its {side} have {memberships.clusters}; "
                "neighbours share one set of clusters"
            )
        if memberships.nodes != nodes:
            hint = "; for a flattened feature map say features_per_node" if side == "inputs" else ""
            raise ValueError(
                f"{name} needs {nodes} nodes as {side} but was given memberships of "
                f"{memberships.nodes}{hint}"
            )

    def _take(self, side: str, memberships: Memberships) -> int:
        seat = memberships.join(producer=side == "outputs")
        if seat == 0:
            self.add_module(side, memberships)
        else:
            object.__setattr__(self, side, memberships)  # referred to, not registered
        return seat


class BlockoutLinear(BlockoutLayer):
    """y = x W^T + b with W = W~ * C_out C_in^T / k (Eq. 4), C drawn anew in each training forward.

    Args:
        in_features, out_features: as in ``nn.Linear``.
        clusters: k, at most this many parallel branches.
        inputs: memberships of the input nodes; pass the ``outputs`` of the layer that produces
            them. By default the layer makes and owns its own.
        outputs: memberships of the output nodes, by default its own.
        features_per_node: consecutive input features that belong to one node: height x width
            where the input is a flattened feature map whose channels are nodes.
        hard, learned: the paper's variants, for memberships that the layer makes itself.

    Shape: (*, in_features) to (*, out_features), as ``nn.Linear``.

    >>> fc2 = BlockoutLinear(512, 512, clusters=6)                      # owns P_0 and P_1
    >>> fc3 = BlockoutLinear(512, 100, clusters=6, inputs=fc2.outputs)  # shares P_1, owns P_2
    >>> fc3(fc2(torch.randn(8, 512)).relu()).shape
    torch.Size([8, 100])
    >>> list(fc3.state_dict())
    ['weight', 'bias', 'outputs.logits']
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        clusters: int,
        *,
        inputs: Memberships | None = None,
        outputs: Memberships | None = None,
        features_per_node: int = 1,
        hard: bool = True,
        learned: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require_positive(in_features=in_features, out_features=out_features)
        super().__init__(
            (out_features, in_features), clusters, inputs=inputs, outputs=outputs,
            features_per_node=features_per_node, hard=hard, learned=learned, bias=bias,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Float[Tensor, "*batch features_in"]) -> Float[Tensor, "*batch nodes_out"]:
        require_width(self, x, -1, self.in_features)
        return F.linear(x, self.masked_weight(), self.bias)

    def to_plain(self) -> nn.Linear:
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        return _with_values(plain, self, self.expected_weight(), self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"clusters={self.clusters}, bias={self.bias is not None}"
        )


class BlockoutConv2d(BlockoutLayer):
    """A 2-d convolution whose channels are the nodes: each kernel is masked as one weight of Eq. 4.

    Args: as ``nn.Conv2d`` (without groups: clusters take their place), and as ``BlockoutLinear``.

    Shape: (N, in_channels, H, W) to (N, out_channels, H', W'), as ``nn.Conv2d``.

    >>> conv = BlockoutConv2d(3, 16, 3, clusters=4, padding=1)
    >>> fc = BlockoutLinear(16 * 64, 10, clusters=4, inputs=conv.outputs, features_per_node=64)
    >>> fc(conv(torch.randn(2, 3, 8, 8)).flatten(1)).shape
    torch.Size([2, 10])
    """

    _geometry: nn.Conv2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        clusters: int,
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        inputs: Memberships | None = None,
        outputs: Memberships | None = None,
        hard: bool = True,
        learned: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require_positive(in_channels=in_channels, out_channels=out_channels)
        # nn.Conv2d checks, normalises and carries out the geometry; here it has no weights.
        geometry = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, dilation,
            padding_mode=padding_mode, bias=False, device="meta",
        )  # fmt: skip
        super().__init__(
            tuple(geometry.weight.shape), clusters, inputs=inputs, outputs=outputs,
            features_per_node=1, hard=hard, learned=learned, bias=bias, device=device, dtype=dtype,
        )  # fmt: skip
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = geometry.kernel_size, geometry.stride
        self.padding, self.dilation = geometry.padding, geometry.dilation
        self.padding_mode, self.groups = padding_mode, 1
        geometry.register_parameter("weight", None)
        object.__setattr__(self, "_geometry", geometry)

    def forward(self, x: Float[Tensor, "*batch c_in h w"]) -> Float[Tensor, "*batch c_out h2 w2"]:
        require_width(self, x, -3, self.in_channels)
        return self._geometry._conv_forward(x, self.masked_weight(), self.bias)

    def to_plain(self) -> nn.Conv2d:
        plain = copy.deepcopy(self._geometry)
        return _with_values(plain, self, self.expected_weight(), self.bias)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, clusters={self.clusters}, "
            f"bias={self.bias is not None}"
        )


class DropConnectLinear(nn.Module):
    """y = act(x (W * M)^T + b), every weight kept with probability ``keep`` by itself.

    In eval mode the mean of the *activation* over masks, not the activation of the mean: the sum
    over many inputs is taken as Gaussian with mean keep W x + b and variance keep (1 - keep)
    (W * W)(x * x), and act is averaged under it: ReLU in closed form, no activation exactly, any
    other by Gauss-Hermite quadrature. That is why the layer takes its activation.

    Departures from Wan et al. (2013): one mask a step, not one an example, and no mask on the bias,
    as in the other members of the family.

    Args:
        in_features, out_features: as in ``nn.Linear``.
        keep: probability that a weight is kept in a training step.
        activation: element-wise module applied to the sum; None for none.

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
        require_positive(in_features=in_features, out_features=out_features)
        if not 0 < keep <= 1:
            raise ValueError(f"keep must lie in (0, 1], got {keep:g}; it is 1 - the drop rate")
        if activation is not None and not isinstance(activation, nn.Module):
            raise ValueError(f"activation must be a module as nn.ReLU() or None, got {activation}")
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
        """As a plain layer, W divided by sqrt(keep) so that training sums have its variance."""
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
        return gaussian.mean_activation(self.activation, mean, variance)

    def to_plain(self) -> nn.Module:
        """The activation of the mean: ``nn.Linear`` with keep W, then the activation."""
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        plain = _with_values(plain, self, self.weight * self.keep, self.bias)
        return plain if self.activation is None else nn.Sequential(plain, self.activation)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"keep={self.keep}, bias={self.bias is not None}"
        )


def memberships_of(model: nn.Module) -> dict[str, Memberships]:
    """P_0, P_1, ... of a model's Blockout layers, in the order in which the model lists them."""
    found: list[Memberships] = []
    for layer in model.modules():
        if isinstance(layer, BlockoutLayer):
            found += [m for m in (layer.inputs, layer.outputs) if m not in found]
    return {f"P_{j}": memberships for j, memberships in enumerate(found)}


def _nodes_in(features_in: int, features_per_node: int) -> int:
    require_positive(features_per_node=features_per_node)
    nodes, rest = divmod(features_in, features_per_node)
    if rest:
        raise ValueError(
            f"{features_in} input features cannot be shared out as features_per_node="
            f"{features_per_node}: {rest} would be left over"
        )
    return nodes


def require_width(layer: nn.Module, x: Tensor, dim: int, width: int) -> None:
    """The input's feature (or channel) dimension must be the layer's."""
    if x.dim() < -dim or (dim == -3 and x.dim() > 4) or x.shape[dim] != width:
        what = "features in the last" if dim == -1 else "channels in the third last"
        raise ValueError(
            f"{type(layer).__name__} takes {width} {what} dimension, "
            f"got an input of shape {tuple(x.shape)}"
        )


def _with_values(
    plain: PlainLayer, source: nn.Module, weight: Tensor, bias: Tensor | None
) -> PlainLayer:
    learns = source.get_parameter("weight").requires_grad
    plain.weight = nn.Parameter(weight.detach().clone(), requires_grad=learns)
    if bias is not None:
        plain.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    return plain.train(source.training)
