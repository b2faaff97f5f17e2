"""What one step of a forward pass does to nodes: keeps them apart, mixes them, moves them.

Whatever is not in these tables counts as unknown, and whoever follows nodes stops there. So does a
known module that has been changed: a subclass, hooks, parametrised weights, a forward of its own.
"""

import operator
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from blockout.dropconnect import DropConnectLinear
from blockout.layers import BlockoutConv2d, BlockoutLinear

Kind = Literal[
    "source", "size", "elementwise", "mixing", "pooling", "reshaping", "joining", "other"
]

ELEMENTWISE_MODULES = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.FeatureAlphaDropout, nn.ReLU, nn.ReLU6, nn.RReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU,
    nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Hardsigmoid, nn.Hardswish,
    nn.Hardtanh, nn.Hardshrink, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink,
    nn.Threshold, nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.InstanceNorm2d,
)  # fmt: skip
MIXING_MODULES = (
    nn.Softmax, nn.LogSoftmax, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm,
)  # fmt: skip
POOLING_MODULES = (
    nn.MaxPool2d, nn.AvgPool2d, nn.LPPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
    nn.Upsample, nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d,
)  # fmt: skip
READ_FEATURES = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, BlockoutLinear, DropConnectLinear)
"""Layers that make new nodes of all values along the last axis."""
READ_FIRST_INPUT = (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)
"""The same, but only of their first input: a state that they are given lives on, node by node."""
READ_CHANNELS = (nn.Conv2d, nn.ConvTranspose2d, BlockoutConv2d)
"""Layers that make new nodes of all values along the second of four axes, unless in groups."""
KINDS_OF_MODULES: dict[type[nn.Module], Kind] = {
    **dict.fromkeys(ELEMENTWISE_MODULES, "elementwise"),
    **dict.fromkeys(MIXING_MODULES, "mixing"),
    **dict.fromkeys(POOLING_MODULES, "pooling"),
    **dict.fromkeys(READ_FEATURES + READ_FIRST_INPUT + READ_CHANNELS, "source"),
    nn.Flatten: "reshaping",
}
ELEMENTWISE_CALLS = {
    F.relu, F.relu_, torch.relu_, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu,
    F.mish, F.sigmoid, F.logsigmoid, F.hardsigmoid, F.hardswish, F.hardtanh, F.softplus,
    F.softsign, F.tanh, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout,
    torch.relu, torch.sigmoid, torch.tanh, torch.clamp, torch.abs, torch.square, torch.exp,
    torch.add, torch.sub, torch.mul, torch.div, operator.add, operator.sub, operator.mul,
    operator.truediv, operator.neg, operator.pow, operator.iadd, operator.isub, operator.imul,
    operator.itruediv, F.batch_norm,
}  # fmt: skip
ELEMENTWISE_METHODS = {
    "relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "clamp", "clamp_", "abs", "square",
    "exp", "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "contiguous", "clone",
    "float", "to", "type", "detach",
}  # fmt: skip
SAME_MEMORY_METHODS = {"contiguous", "float", "to", "type", "detach"}
MIXING_CALLS = {
    F.softmax, F.log_softmax, torch.softmax, F.layer_norm, F.group_norm, F.rms_norm,
}  # fmt: skip
MIXING_METHODS = {"softmax", "log_softmax"}
POOLING_CALLS = {
    F.max_pool2d, F.avg_pool2d, F.lp_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d,
    F.interpolate, torch.max_pool2d,
}  # fmt: skip
RESHAPING_CALLS = {torch.flatten, torch.reshape, torch.squeeze, torch.mean}
RESHAPING_METHODS = {"flatten", "reshape", "view", "squeeze", "mean"}
JOINING_CALLS = {torch.cat, torch.concat, torch.concatenate}
SIZES = {"size", "dim", "numel"}
SIZE_ATTRIBUTES = {"shape", "ndim", "device", "dtype"}
DROPOUT_IS_ON: dict[Any, bool] = {
    F.dropout: True, F.dropout1d: True, F.dropout2d: True, F.dropout3d: True,
    F.alpha_dropout: False,
}  # fmt: skip
"""What these functions take ``training`` to be if it is left out."""
IN_PLACE_OPERATORS = {"iadd", "isub", "imul", "itruediv", "setitem"}


def kind_of_step(node: fx.Node, modules: Mapping[str, nn.Module]) -> Kind:
    """What a step does to the nodes that reach it.

    ===========  ==============================================================================
    source       makes new nodes: a layer with weights, or an input of the model
    size         gives no nodes: a shape, a parameter
    elementwise  keeps every node in its place and apart from the others
    mixing       keeps every node in its place, but its value depends on the others
    pooling      keeps channels apart and changes height and width
    reshaping    depends on its arguments: ``layout.axes_after`` says where nodes lie behind it
    joining      puts nodes of several tensors side by side
    other        unknown
    ===========  ==============================================================================
    """
    if node.op == "placeholder":
        return "source"
    if node.op == "get_attr":
        return "size"
    if node.op == "call_module":
        return _kind_of_module(modules[str(node.target)])
    if "out" in node.kwargs:
        return "other"
    return _kind_of_method(node) if node.op == "call_method" else _kind_of_function(node)


def argument(step: fx.Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call by its place, counted without the tensor itself, or by its name."""
    rest = step.args[1:]
    return rest[place] if len(rest) > place else step.kwargs.get(name, default)


def works_in_place(step: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a step changes the tensor that it is given first."""
    if step.op == "call_module":
        return bool(getattr(modules[str(step.target)], "inplace", False))
    name = str(step.target) if step.op == "call_method" else getattr(step.target, "__name__", "")
    own = name.endswith("_") and not name.endswith("__")
    return own or name in IN_PLACE_OPERATORS or bool(step.kwargs.get("inplace"))


def may_share_memory(step: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether what a step gives may be a view of what it takes, or the same tensor."""
    kind = kind_of_step(step, modules)
    if kind in ("source", "size", "mixing", "pooling", "joining"):
        return False
    if kind != "elementwise" or works_in_place(step, modules):
        return True
    if step.op == "call_module":
        return isinstance(modules[str(step.target)], nn.Identity | nn.modules.dropout._DropoutNd)
    return step.target in DROPOUT_IS_ON or step.target in SAME_MEMORY_METHODS


def is_random(step: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether dropout stays on: a module in training mode, a call with ``training=True``."""
    if step.op == "call_module":
        return modules[str(step.target)].training
    if step.target not in DROPOUT_IS_ON:
        return False
    return argument(step, 1, "training", DROPOUT_IS_ON[step.target]) is not False


def why_unknown(module: nn.Module) -> str | None:
    """Why a module may not do what its type says; None if it does.

    >>> why_unknown(nn.ReLU()) is None
    True
    """
    if "forward" in module.__dict__:
        return "its forward has been replaced"
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has hooks"
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "there are hooks on all modules"
    return None


def _kind_of_module(module: nn.Module) -> Kind:
    if why_unknown(module) or getattr(module, "return_indices", False):
        return "other"
    if getattr(module, "groups", 1) != 1:
        return "other"
    return KINDS_OF_MODULES.get(type(module), "other")


def _kind_of_method(node: fx.Node) -> Kind:
    name = str(node.target)
    if name in SIZES:
        return "size"
    for kind, names in _METHODS:
        if name in names:
            return kind
    return "other"


def _kind_of_function(node: fx.Node) -> Kind:
    if node.target is getattr and node.args[1] in SIZE_ATTRIBUTES:
        return "size"
    if node.kwargs.get("return_indices"):
        return "other"
    for kind, calls in _CALLS:
        if node.target in calls:
            return kind
    return "other"


_METHODS: tuple[tuple[Kind, set[str]], ...] = (
    ("elementwise", ELEMENTWISE_METHODS),
    ("mixing", MIXING_METHODS),
    ("reshaping", RESHAPING_METHODS),
)
_CALLS: tuple[tuple[Kind, set[Any]], ...] = (
    ("elementwise", ELEMENTWISE_CALLS),
    ("mixing", MIXING_CALLS),
    ("pooling", POOLING_CALLS),
    ("reshaping", RESHAPING_CALLS),
    ("joining", JOINING_CALLS),
)
