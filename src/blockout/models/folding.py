"""A network for inference in fewer steps: convolution, normalisation and activation become one."""

import copy
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from blockout.models.efficientnet import SamePadding

ACTIVATIONS: dict[type[nn.Module], tuple[str, list[float]]] = {
    nn.Identity: ("none", []),
    nn.ReLU: ("relu", []),
    nn.ReLU6: ("hardtanh", [0.0, 6.0]),
    nn.SiLU: ("swish", []),
}
"""Activations that oneDNN applies to the output of a convolution, and what it calls them."""


class FoldedConv(nn.Module):
    """Convolution, batch normalisation in eval mode and activation as one layer.

    Args:
        conv, norm, activation: in this order, of the types that ``folded`` looks for.
        onednn: computes all in one call of oneDNN (on a CPU), as torch's compiler would. The first
            input decides the layout of the weights.

    Shape: as the convolution.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, activation: nn.Module, *, onednn: bool
    ) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        statistics = norm.running_mean, norm.running_var, norm.eps
        weight, bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, *statistics, norm.weight, norm.bias
        )
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", bias.detach())
        self.padding, self.stride = _padding_of(conv), list(conv.stride)
        self.dilation, self.groups = list(conv.dilation), conv.groups
        self.activation, self.onednn = activation, onednn
        self.packed: Tensor | None = None

    def absorb(self, padding: SamePadding, size: int) -> None:
        """Pads images of this size as well, without a padded copy of them.

        With stride 2, an even image gets a zero more on its far side than on its near side. A
        kernel with zeros on its near side does the same with equal padding.
        """
        assert padding.stride == 2 and padding.kernel % 2
        if size % 2 == 0:
            self.weight = F.pad(self.weight, (1, 0, 1, 0))
        self.padding = [padding.kernel // 2] * 2

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n channels h2 w2"]:
        return self._in_one_call(x) if self.onednn else self._in_two_calls(x)

    def _in_two_calls(self, x: Tensor) -> Tensor:
        weights = self.weight, self.bias
        y = F.conv2d(x, *weights, self.stride, self.padding, self.dilation, self.groups)
        return self.activation(y)

    def _in_one_call(self, x: Tensor) -> Tensor:
        how = self.padding, self.stride, self.dilation, self.groups
        if self.packed is None:
            pack = torch._C._nn.mkldnn_reorder_conv2d_weight  # pyright: ignore
            self.packed = pack(self.weight.to_mkldnn(), *how, list(x.shape))
        name, values = ACTIVATIONS[type(self.activation)]
        call = torch.ops.mkldnn._convolution_pointwise
        return call(x, self.packed, self.bias, *how, name, values, "")


def folded(network: nn.Module, image_size: int, *, onednn: bool = False) -> nn.Module | None:
    """A copy in eval mode with ``FoldedConv`` in place of what it stands for; None if nothing is.

    Looks in the forward of each module for a convolution that only a batch normalisation reads,
    and for the activation behind it. Everything else stays.

    Args:
        network: from images of ``image_size`` to anything.
        image_size: height and width; the copy is for this size only.
        onednn: as in ``FoldedConv``.

    >>> from blockout.models import SmallInception
    >>> small = folded(SmallInception(width=0.25), image_size=32)
    >>> sum(isinstance(module, nn.BatchNorm2d) for module in small.modules())
    0
    """
    network = copy.deepcopy(network).eval().requires_grad_(False)
    sizes = _padded_sizes(network, image_size)
    count = 0
    for parent in list(network.modules()):
        for unit in list(_units(parent)):
            _fold(parent, unit, sizes, onednn)
            count += 1
    return network if count else None


class Unit(NamedTuple):
    """Names of modules that one ``FoldedConv`` stands for."""

    conv: str
    norm: str
    activation: str | None
    padding: str | None


class _OneLevel(fx.Tracer):
    """Follows the forward of one module and no further."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _units(parent: nn.Module) -> Iterator[Unit]:
    children = list(parent.children())
    if not (any(map(_foldable, children)) and any(map(_normalises, children))):
        return
    called = _called(parent)
    for node, module in called.items():
        norm = _only_reader(node)
        if norm is None or not (_foldable(module) and _normalises(called.get(norm))):
            continue
        before, after = node.all_input_nodes[0], _only_reader(norm)
        activates = after is not None and type(called.get(after)) in ACTIVATIONS
        pads = isinstance(called.get(before), SamePadding) and _only_reader(before) is node
        yield Unit(
            str(node.target),
            str(norm.target),
            activation=str(after.target) if after is not None and activates else None,
            padding=str(before.target) if pads else None,
        )


def _called(parent: nn.Module) -> dict[fx.Node, nn.Module]:
    """The steps of a forward that call a module which no other step calls."""
    try:
        graph = _OneLevel().trace(parent)
    except Exception:  # a forward that cannot be followed stays as it is
        return {}
    calls = [node for node in graph.nodes if node.op == "call_module"]
    often = Counter(node.target for node in calls)
    return {n: parent.get_submodule(str(n.target)) for n in calls if often[n.target] == 1}


def _fold(parent: nn.Module, unit: Unit, sizes: dict[nn.Module, int], onednn: bool) -> None:
    get = parent.get_submodule
    activation = get(unit.activation) if unit.activation else nn.Identity()
    conv = FoldedConv(get(unit.conv), get(unit.norm), activation, onednn=onednn)  # pyright: ignore
    if unit.padding:
        padding = get(unit.padding)
        conv.absorb(padding, sizes[padding])  # pyright: ignore
    for name in (unit.norm, unit.activation, unit.padding):
        if name:
            parent.set_submodule(name, nn.Identity())
    parent.set_submodule(unit.conv, conv)


@torch.no_grad()
def _padded_sizes(network: nn.Module, image_size: int) -> dict[nn.Module, int]:
    """What each ``SamePadding`` pads, found by trying one image."""
    sizes: dict[nn.Module, int] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sizes[module] = inputs[0].shape[2]

    padding = [module for module in network.modules() if isinstance(module, SamePadding)]
    hooks = [module.register_forward_hook(note) for module in padding]
    if hooks:
        parameter = next(network.parameters())
        network(torch.zeros(1, 3, image_size, image_size).to(parameter))
    for hook in hooks:
        hook.remove()
    return sizes


def _padding_of(conv: nn.Conv2d) -> list[int]:
    """As numbers; "same" has a side with more than the other only if a kernel is even."""
    if not isinstance(conv.padding, str):
        return list(conv.padding)
    missing = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    return [total // 2 if conv.padding == "same" else 0 for total in missing]


def _foldable(module: nn.Module | None) -> bool:
    if not isinstance(module, nn.Conv2d) or module.padding_mode != "zeros":
        return False
    uneven = module.padding == "same" and any(k % 2 == 0 for k in module.kernel_size)
    return type(module).forward is nn.Conv2d.forward and not uneven


def _normalises(module: nn.Module | None) -> bool:
    return isinstance(module, nn.BatchNorm2d) and module.running_mean is not None


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
