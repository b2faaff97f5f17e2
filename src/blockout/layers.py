"""A linear layer and a convolution with masked weights."""

import copy
import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from blockout import kernels, masking
from blockout.initialisation import input_gram, output_second_moments
from blockout.memberships import Memberships, positive_integers


class BlockoutLayer(nn.Module, ABC):
    """A layer whose weight W~ is masked by the memberships of its inputs and outputs.

    The first layer to use a ``Memberships`` owns it: it registers the module, which therefore
    appears once in ``state_dict()`` and ``parameters()`` and moves once with ``.to()``. Neighbours
    only refer to it, so keep them in the same model.
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
        self.clusters, self.features_per_node = positive_integers(
            clusters=clusters, features_per_node=features_per_node
        )
        nodes_out, features_in = weight_shape[:2]
        nodes_in = _nodes_in(features_in, self.features_per_node)
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
        """Initialises as a plain layer does, then scales W~ up to a plain layer's output variance.

        Each row has its own scale, which depends on the layer that produces the inputs (see
        ``initialisation``). Memberships have their own ``reset_parameters``.
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

    def _assignments(
        self, x: Tensor
    ) -> tuple[masking.Assignments | Tensor, masking.Assignments | Tensor]:
        """C_j and C_{j-1} for one forward pass in training; P_j and P_{j-1} in eval mode."""
        if self.inputs is self.outputs:  # read the nodes before making the next ones
            c_in = self.inputs.assignments(self._input_seat, training=self.training, nodes=x)
            return self.outputs.assignments(self._output_seat, training=self.training), c_in
        c_out = self.outputs.assignments(self._output_seat, training=self.training)
        return c_out, self.inputs.assignments(self._input_seat, training=self.training, nodes=x)

    def _apply(self, fn, recurse=True):  # `.to`, `.half`, `.cuda`, ...
        kernels.forget(self.weight)  # torch does not swap a tensor that others refer to weakly
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *arguments) -> None:
        kernels.forget(self.weight)
        super()._load_from_state_dict(*arguments)

    def expected_weight(self) -> Float[Tensor, "nodes_out features_in *kernel"]:
        """The inference weight W~_j * P_j P_{j-1}^T / k (Eq. 5), in either mode."""
        self.inputs.require_valid()
        self.outputs.require_valid()
        p_out, p_in = self.outputs.probabilities, self.inputs.probabilities
        return masking.masked_weight(self.weight, p_out, p_in)

    @abstractmethod
    def to_plain(self) -> nn.Module:
        """A new plain torch layer with the weights of Eq. 5."""

    def _require_fit(self, side: str, memberships: Memberships, nodes: int) -> None:
        name = type(self).__name__
        if memberships.clusters != self.clusters:
            raise ValueError(
                f"{name} has {self.clusters} clusters but its {side} have {memberships.clusters}; "
                "neighbouring layers must have the same number of clusters"
            )
        if memberships.nodes != nodes:
            hint = "; for a flattened input, set features_per_node" if side == "inputs" else ""
            raise ValueError(
                f"{name} needs {nodes} nodes as {side} but was given memberships of "
                f"{memberships.nodes} nodes{hint}"
            )

    def _take(self, side: str, memberships: Memberships) -> int:
        seat = memberships.draws.join(producer=side == "outputs")
        if seat == 0:
            self.add_module(side, memberships)
        else:
            object.__setattr__(self, side, memberships)  # refers to it, does not register it
        return seat


class BlockoutLinear(BlockoutLayer):
    """y = x W^T + b with W = W~ * C_out C_in^T / k (Eq. 4). Each training forward pass draws C.

    Args:
        in_features, out_features: as in ``nn.Linear``.
        clusters: k, at most this many parallel branches.
        inputs: memberships of the input nodes. Pass the ``outputs`` of the layer that produces
            them. By default, the layer creates its own.
        outputs: memberships of the output nodes. By default, the layer creates its own.
        features_per_node: number of consecutive input features that form one node. For a flattened
            feature map whose channels are nodes, this is height x width.
        hard, learned: the paper's variants, for memberships that the layer creates.

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
        in_features, out_features = positive_integers(
            in_features=in_features, out_features=out_features
        )
        super().__init__(
            (out_features, in_features),
            clusters,
            inputs=inputs,
            outputs=outputs,
            features_per_node=features_per_node,
            hard=hard,
            learned=learned,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Float[Tensor, "*batch features_in"]) -> Float[Tensor, "*batch nodes_out"]:
        require_width(self, x, -1, self.in_features)
        c_out, c_in = self._assignments(x)
        y = kernels.masked_linear(x, self.weight, c_out, c_in, self.bias)
        self.outputs.made(y, c_out)
        return y

    def to_plain(self) -> nn.Linear:
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        fill_plain(plain, self, self.expected_weight(), self.bias)
        return plain

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"clusters={self.clusters}, bias={self.bias is not None}"
        )


class BlockoutConv2d(BlockoutLayer):
    """A 2-d convolution whose channels are the nodes. Eq. 4 masks each kernel as one weight.

    Args: those of ``nn.Conv2d``, without groups (clusters take their place), and of
        ``BlockoutLinear``.

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
        in_channels, out_channels = positive_integers(
            in_channels=in_channels, out_channels=out_channels
        )
        # nn.Conv2d checks and normalises the geometry; its weight is dropped below.
        shape = in_channels, out_channels, kernel_size, stride, padding, dilation
        geometry = nn.Conv2d(*shape, padding_mode=padding_mode, bias=False, device="meta")
        super().__init__(
            tuple(geometry.weight.shape),
            clusters,
            inputs=inputs,
            outputs=outputs,
            features_per_node=1,
            hard=hard,
            learned=learned,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = geometry.kernel_size, geometry.stride
        self.padding, self.dilation = geometry.padding, geometry.dilation
        self.padding_mode, self.groups = padding_mode, 1
        geometry.register_parameter("weight", None)
        object.__setattr__(self, "_geometry", geometry)

    def forward(self, x: Float[Tensor, "*batch c_in h w"]) -> Float[Tensor, "*batch c_out h2 w2"]:
        require_width(self, x, -3, self.in_channels)
        c_out, c_in = self._assignments(x)
        padding = self.padding
        if self.padding_mode != "zeros":
            around = self._geometry._reversed_padding_repeated_twice
            x, padding = F.pad(x, around, mode=self.padding_mode), 0
        geometry = self.stride, padding, self.dilation
        y = kernels.masked_conv2d(x, self.weight, c_out, c_in, self.bias, *geometry)
        self.outputs.made(y, c_out)
        return y

    def to_plain(self) -> nn.Conv2d:
        plain = copy.deepcopy(self._geometry)
        fill_plain(plain, self, self.expected_weight(), self.bias)
        return plain

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, clusters={self.clusters}, "
            f"bias={self.bias is not None}"
        )


def memberships_of(model: nn.Module) -> dict[str, Memberships]:
    """P_0, P_1, ... of a model's Blockout layers, in the order of ``model.modules()``."""
    found: list[Memberships] = []
    for layer in model.modules():
        if isinstance(layer, BlockoutLayer):
            found += [m for m in (layer.inputs, layer.outputs) if m not in found]
    return {f"P_{j}": memberships for j, memberships in enumerate(found)}


def _nodes_in(features_in: int, features_per_node: int) -> int:
    nodes, rest = divmod(features_in, features_per_node)
    if rest:
        raise ValueError(
            f"{features_in} input features cannot be divided into nodes of features_per_node="
            f"{features_per_node}: {rest} would be left over"
        )
    return nodes


def require_width(layer: nn.Module, x: Tensor, dim: int, width: int) -> None:
    """Refuses an input whose number of features (or channels) is not the layer's."""
    if x.dim() < -dim or (dim == -3 and x.dim() > 4) or x.shape[dim] != width:
        what = "features in the last" if dim == -1 else "channels in the third-to-last"
        raise ValueError(
            f"{type(layer).__name__} takes {width} {what} dimension, "
            f"got an input of shape {tuple(x.shape)}"
        )


def fill_plain(
    plain: nn.Linear | nn.Conv2d, source: nn.Module, weight: Tensor, bias: Tensor | None
) -> None:
    """Gives a plain layer these values, and what ``source`` learns and which mode it is in."""
    learns = source.get_parameter("weight").requires_grad
    plain.weight = nn.Parameter(weight.detach().clone(), requires_grad=learns)
    if bias is not None:
        plain.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    plain.train(source.training)
