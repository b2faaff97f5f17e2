"""What one step of a forward pass does to nodes: keeps them apart, mixes them, moves them."""

import operator
from collections.abc import Mapping
from typing import Literal

import torch
from torch import fx, nn
from torch.nn import functional as F

from blockout.dropconnect import DropConnectLinear
from blockout.layers import BlockoutLayer

Kind = Literal[
    "source", "size", "elementwise", "mixing", "pooling", "global pooling", "flatten", "other"
]

ELEMENTWISE_MODULES = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.FeatureAlphaDropout, nn.ReLU, nn.ReLU6, nn.RReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU,
    nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Hardsigmoid, nn.Hardswish,
    nn.Hardtanh, nn.Hardshrink, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink,
    nn.Threshold, nn.modules.batchnorm._NormBase,
)  # fmt: skip
MIXING_MODULES = (
    nn.Softmax, nn.LogSoftmax, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm,
)  # fmt: skip
POOLING_MODULES = (
    nn.MaxPool2d, nn.AvgPool2d, nn.LPPool2d, nn.FractionalMaxPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.Upsample, nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d,
)  # fmt: skip
SOURCE_MODULES = (
    nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvNd, nn.RNNBase,
    nn.RNNCellBase, nn.MultiheadAttention, BlockoutLayer, DropConnectLinear,
)  # fmt: skip
KINDS_OF_MODULES: tuple[tuple[Kind, tuple[type[nn.Module], ...]], ...] = (
    ("elementwise", ELEMENTWISE_MODULES),
    ("mixing", MIXING_MODULES),
    ("pooling", POOLING_MODULES),
    ("source", SOURCE_MODULES),
)
ELEMENTWISE_CALLS = {
    F.relu, F.relu_, torch.relu_, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu,
    F.mish, F.sigmoid, F.logsigmoid, F.hardsigmoid, F.hardswish, F.hardtanh, F.softplus,
    F.softsign, F.tanh, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout,
    torch.relu, torch.sigmoid, torch.tanh, torch.clamp, torch.abs, torch.square, torch.exp,
    torch.add, torch.sub, torch.mul, torch.div, operator.add, operator.sub, operator.mul,
    operator.truediv, operator.neg, operator.pow, operator.iadd, operator.isub, operator.imul,
    operator.itruediv,
    "relu", "relu_", "sigmoid", "tanh", "clamp", "abs", "square", "exp", "add", "add_", "sub",
    "mul", "mul_", "div", "contiguous", "clone", "float", "to", "type", "detach",
}  # fmt: skip
"""Functions, and methods by name."""
MIXING_CALLS = {
    F.softmax, F.log_softmax, torch.softmax, F.layer_norm, F.group_norm, "softmax", "log_softmax",
    F.batch_norm,  # does not mix nodes, but its statistics lie where they cannot be cut
}  # fmt: skip
POOLING_CALLS = {
    F.max_pool2d, F.avg_pool2d, F.lp_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d,
    F.interpolate, torch.max_pool2d,
}  # fmt: skip


def kind_of_step(node: fx.Node, modules: Mapping[str, nn.Module]) -> Kind:
    """What a step does to the nodes that reach it.

    ==============  ==========================================================================
    source          makes new nodes: a layer with weights, or an input of the model
    size            gives no nodes: a shape, a parameter
    elementwise     keeps every node in its place and apart from the others
    mixing          keeps every node in its place, but its value depends on the others
    pooling         keeps channels apart and changes height and width
    global pooling  leaves one value per channel
    flatten         makes features of channels
    other           unknown
    ==============  ==========================================================================
    """
    if node.op == "placeholder":
        return "source"
    if node.op == "get_attr" or node.target in ("size", "dim", "numel", len):
        return "size"
    if node.target is getattr and node.args[1] in ("shape", "ndim", "device", "dtype"):
        return "size"
    if node.op == "output":
        return "elementwise"
    if node.op == "call_module":
        return _kind_of_module(modules[str(node.target)])
    if _flattens(node):
        return "flatten"
    if _pools_globally(node):
        return "global pooling"
    if node.target in ELEMENTWISE_CALLS:
        return "elementwise"
    if node.target in MIXING_CALLS:
        return "mixing"
    return "pooling" if node.target in POOLING_CALLS else "other"


def viewed_shape(node: fx.Node) -> tuple:
    """The shape that a ``view`` or ``reshape`` asks for."""
    rest = tuple(node.args[1:])
    return tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest


def _kind_of_module(module: nn.Module) -> Kind:
    for kind, types in KINDS_OF_MODULES:
        if isinstance(module, types):
            return kind
    flattens = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
    return "flatten" if flattens else "other"


def _flattens(node: fx.Node) -> bool:
    """flatten(x, 1), x.flatten(1), and views with two dimensions: the batch and everything else."""
    rest = tuple(node.args[1:])
    if node.target in (torch.flatten, "flatten"):
        return rest in ((1,), (1, -1)) or (not rest and node.kwargs == {"start_dim": 1})
    is_view = node.target in ("view", "reshape", torch.reshape)
    return is_view and len(viewed_shape(node)) == 2


def _pools_globally(node: fx.Node) -> bool:
    """The mean over height and width, or a squeeze that removes axes of length one."""
    if node.target in (torch.squeeze, "squeeze"):
        return True
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    is_mean = node.target in (torch.mean, "mean")
    return is_mean and isinstance(dims, list | tuple) and set(dims) in ({2, 3}, {-2, -1})
