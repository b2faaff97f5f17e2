"""Where nodes lie in a tensor, step by step."""

from collections.abc import Mapping
from typing import Any

from torch import fx, nn
from torch.nn import functional as F

from blockout.graph.steps import (
    READ_CHANNELS,
    READ_FEATURES,
    READ_FIRST_INPUT,
    argument,
    kind_of_step,
)

Axes = tuple[str, ...]
"""The axes of a tensor: batch, nodes, height, width; 1 for an axis of length one; features for
nodes times positions, node by node; ... for any number of axes."""
FEATURES: Axes = ("...", "nodes")
"""What a linear layer makes."""
CHANNELS: Axes = ("batch", "nodes", "height", "width")
"""What a convolution makes."""
ONE_EACH: Axes = ("batch", "nodes", "1", "1")
FOUR_AXES_MODULES = (nn.BatchNorm2d, nn.InstanceNorm2d)


def axes_made_by(layer: nn.Module) -> Axes:
    """Where the nodes of a layer lie in its output."""
    return CHANNELS if isinstance(layer, READ_CHANNELS) else FEATURES


def reads_nodes(layer: nn.Module, axes: Axes | None) -> bool:
    """Whether a layer reads nodes that lie so, each as one or several of its inputs."""
    if axes is None:
        return False
    if isinstance(layer, READ_CHANNELS):
        return len(axes) == 4 and axes[1] == "nodes"
    return axes[-1] in ("nodes", "features")


def makes_new_nodes(step: fx.Node, source: fx.Node, axes: Axes | None, module: nn.Module) -> bool:
    """Whether a layer that is not followed makes new nodes of all nodes that reach it."""
    if isinstance(module, READ_FIRST_INPUT) and step.all_input_nodes[:1] != [source]:
        return False
    known = isinstance(module, READ_FEATURES + READ_FIRST_INPUT + READ_CHANNELS)
    return known and reads_nodes(module, axes)


def axes_after(
    step: fx.Node, source: fx.Node, axes: Axes, modules: Mapping[str, nn.Module], nodes: int
) -> Axes | None:
    """Where nodes lie after a step that makes no new ones; None if the step may move or mix them.

    Args:
        source: the tensor that holds the nodes before the step.
        nodes: how many there are.
    """
    kind = kind_of_step(step, modules)
    module = modules[str(step.target)] if step.op == "call_module" else None
    if kind == "elementwise":
        fits = not isinstance(module, FOUR_AXES_MODULES) or len(axes) == 4
        return axes if fits else None
    if kind == "pooling":
        return _pooled(step, module, axes)
    if kind != "reshaping" or step.args[:1] != (source,):
        return None
    if isinstance(module, nn.Flatten):
        return _flattened(axes, module.start_dim, module.end_dim)
    name = str(step.target) if step.op == "call_method" else getattr(step.target, "__name__", "")
    if name == "flatten":
        return _flattened(axes, argument(step, 0, "start_dim", 0), argument(step, 1, "end_dim", -1))
    if name == "squeeze":
        return _squeezed(axes, argument(step, 0, "dim", "all"))
    if name == "mean":
        return _averaged(axes, argument(step, 0, "dim"), argument(step, 1, "keepdim", False))
    return _viewed(step, source, axes, modules, nodes)


def _pooled(step: fx.Node, module: nn.Module | None, axes: Axes) -> Axes | None:
    if len(axes) != 4 or axes[1] != "nodes":
        return None
    size: Any = None
    if isinstance(module, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d):
        size = module.output_size
    elif step.target in (F.adaptive_avg_pool2d, F.adaptive_max_pool2d):
        size = argument(step, 0, "output_size")
    return ONE_EACH if size in (1, (1, 1), [1, 1]) else CHANNELS


def _flattened(axes: Axes, start: Any, end: Any) -> Axes | None:
    """Only a flatten of everything but the batch."""
    if axes == FEATURES:
        # Further axes may stand in front of a linear layer's nodes. Then positions come first and
        # the number of features is not the number of nodes, which readers check.
        return ("batch", "nodes") if (start, end) == (1, -1) else None
    if end not in (-1, len(axes) - 1) or start not in (1, 1 - len(axes)):
        return None
    if len(axes) == 2:
        return axes
    return ("batch", "nodes" if set(axes[2:]) == {"1"} else "features")


def _squeezed(axes: Axes, dims: Any) -> Axes | None:
    """Only a squeeze of axes that are known to have length one."""
    chosen = _dims(axes, dims if dims != "all" else [i for i, a in enumerate(axes) if a == "1"])
    if "..." in axes or chosen is None or any(axes[i] != "1" for i in chosen):
        return None
    if dims == "all" and {"height", "width"} & set(axes):
        return None
    return tuple(axis for i, axis in enumerate(axes) if i not in chosen)


def _averaged(axes: Axes, dims: Any, keepdim: Any) -> Axes | None:
    """Only a mean over height and width."""
    if len(axes) != 4 or axes[1] != "nodes" or _dims(axes, dims) != {2, 3}:
        return None
    return ONE_EACH if keepdim is True else ("batch", "nodes") if keepdim is False else None


def _viewed(
    step: fx.Node, source: fx.Node, axes: Axes, modules: Mapping[str, nn.Module], nodes: int
) -> Axes | None:
    """Only a view of two axes: the batch and everything else, or all nodes and everything else."""
    shape = viewed_shape(step)
    if len(shape) != 2:
        return None
    first, second = shape
    if _is_batch_size(first, source, modules):
        return _flattened(axes, 1, -1)
    one_each = axes in (FEATURES, ("batch", "nodes"), ONE_EACH)
    return FEATURES if one_each and isinstance(second, int) and second == nodes else None


def viewed_shape(step: fx.Node) -> tuple:
    """The shape that a ``view`` or ``reshape`` asks for."""
    rest = tuple(step.args[1:]) or (step.kwargs.get("shape", ()),)
    return tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest


def _is_batch_size(value: Any, tensor: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a value is the batch size of a tensor, or of one before it with the same batch."""
    measured = measured_first_axis(value)
    node: fx.Node | None = tensor
    while measured is not None and node is not None:
        if node is measured:
            return True
        node = _before_with_the_same_batch(node, modules)
    return False


def _before_with_the_same_batch(node: fx.Node, modules: Mapping[str, nn.Module]) -> fx.Node | None:
    kind = kind_of_step(node, modules)
    module = modules[str(node.target)] if node.op == "call_module" else None
    keeps = kind in ("elementwise", "mixing", "pooling") or (module and kind == "source")
    if not keeps and not (isinstance(module, nn.Flatten) and module.start_dim > 0):
        return None
    tensors = [n for n in node.all_input_nodes if kind_of_step(n, modules) != "size"]
    return tensors[0] if len(tensors) == 1 else None


def measured_first_axis(value: Any) -> fx.Node | None:
    """The tensor whose first axis a value measures: ``x.size(0)``, ``x.shape[0]``."""
    if not isinstance(value, fx.Node):
        return None
    if value.op == "call_method" and value.target == "size":
        tensor, axis = value.args[0], argument(value, 0, "dim")
        return tensor if isinstance(tensor, fx.Node) and axis == 0 else None
    sizes = value.args[0] if value.args else None
    is_item = getattr(value.target, "__name__", "") == "getitem" and value.args[1:] == (0,)
    if not is_item or not isinstance(sizes, fx.Node):
        return None
    all_sizes = sizes.target == "size" and len(sizes.args) == 1 and not sizes.kwargs
    is_shape = sizes.target is getattr and sizes.args[1:] == ("shape",)
    tensor = sizes.args[0] if (sizes.op == "call_method" and all_sizes) or is_shape else None
    return tensor if isinstance(tensor, fx.Node) else None


def _dims(axes: Axes, dims: Any) -> set[int] | None:
    """Axes by number, counted from the front."""
    dims = (dims,) if isinstance(dims, int) else dims
    if not isinstance(dims, list | tuple) or not all(isinstance(d, int) for d in dims):
        return None
    return {d % len(axes) for d in dims}
