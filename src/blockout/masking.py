"""The paper in one file: Equations 3-9 as pure functions of tensors.

Read this file first: the rest of the library is tested against it.

Glossary (the same words in code, command line, docs and plots):

==================  ============================================================================
nodes               the units of a layer: features of a linear layer, channels of a convolution
clusters            the k groups that a node may belong to; at most k parallel branches
memberships, P_j    probability that each of d_j nodes belongs to each cluster, (nodes, clusters)
assignments, C_j    hard memberships drawn for one training step, C_j ~ Bernoulli(P_j), 0 or 1
estimator           how gradients pass from C_j, which is drawn, to P_j: Eq. 9 or "two-sided"
soft                nothing is drawn: C_j = P_j in training as well
fixed               P_j is not learned (0.5 in the paper)
given               C_j is known in advance, for example superclasses
weight, W~_j        the unconstrained weight, (nodes_out, nodes_in) or (nodes_out, nodes_in, h, w)
mask                C_j C_{j-1}^T / k: the share of the clusters that two nodes have in common
masked weight, W_j  W~_j * mask: what the layer multiplies by
code                the subset of clusters a node belongs to
==================  ============================================================================

Layers compute with two functions only, ``masked_linear`` and ``masked_conv2d``, by way of
``kernels``, which has faster twins of them. A twin receives W~ and, for each side, either P or an
``Assignments``, which keeps the drawn bits apart from the path of the gradients.

The paper has two misprints: Eq. 3 swaps the indices of w~, and Eq. 8 transposes the wrong terms.
The versions here have consistent shapes (``test_equation_3_is_the_sum_over_clusters``,
``test_equation_8_is_the_gradient_of_both_layers``).
"""

import contextlib
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Estimator = Literal["eq9", "two-sided"]


class Assignments(NamedTuple):
    """C_j of one training step: the drawn bits, and apart from them where gradients go."""

    bits: Float[Tensor, "nodes clusters"]
    """Exactly 0 or 1, in the precision of P. Carries no gradient."""
    learns: Float[Tensor, "nodes clusters"] | None = None
    """What receives the gradient: P for "eq9", its logits for "two-sided", None if P is fixed."""
    estimator: Estimator = "eq9"


def block_mask(
    c_out: Float[Tensor, "nodes_out clusters"], c_in: Float[Tensor, "nodes_in clusters"]
) -> Float[Tensor, "nodes_out nodes_in"]:
    """C_j C_{j-1}^T / k (Eq. 3): the share of the clusters that two nodes have in common.

    >>> block_mask(torch.tensor([[1., 0.], [1., 1.]]), torch.tensor([[0., 1.], [1., 1.]]))
    tensor([[0.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    dtype = torch.promote_types(c_out.dtype, c_in.dtype)
    with _full_precision(c_out.device.type):
        return c_out.to(dtype) @ c_in.to(dtype).T / c_out.shape[1]


def masked_weight(
    weight: Float[Tensor, "nodes_out features_in *kernel"],
    c_out: Assignments | Float[Tensor, "nodes_out clusters"],
    c_in: Assignments | Float[Tensor, "nodes_in clusters"],
) -> Float[Tensor, "nodes_out features_in *kernel"]:
    """W_j = W~_j * C_j C_{j-1}^T / k (Eq. 4); with P in place of C, the inference weight (Eq. 5).

    All taps of a kernel (..., height, width) share one mask entry. If there are more input features
    than input nodes, each node spans equally many consecutive features, as after a flatten.
    """
    c_out, c_in = differentiable(c_out), differentiable(c_in)
    if len(c_in) != weight.shape[1]:
        c_in = c_in.repeat_interleave(weight.shape[1] // len(c_in), dim=0)
    mask = block_mask(c_out, c_in).to(weight.dtype)
    return weight * mask.reshape(mask.shape + (1,) * (weight.dim() - 2))


def masked_linear(
    x: Float[Tensor, "*batch features_in"],
    weight: Float[Tensor, "nodes_out features_in"],
    c_out: Assignments | Float[Tensor, "nodes_out clusters"],
    c_in: Assignments | Float[Tensor, "nodes_in clusters"],
    bias: Float[Tensor, "nodes_out"] | None = None,
) -> Float[Tensor, "*batch nodes_out"]:
    """y = x W_j^T + b, with W_j as in ``masked_weight``: all that a Blockout linear layer does."""
    return F.linear(x, masked_weight(weight, c_out, c_in), bias)


def masked_conv2d(
    x: Float[Tensor, "*batch nodes_in h w"],
    weight: Float[Tensor, "nodes_out nodes_in kh kw"],
    c_out: Assignments | Float[Tensor, "nodes_out clusters"],
    c_in: Assignments | Float[Tensor, "nodes_in clusters"],
    bias: Float[Tensor, "nodes_out"] | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
) -> Float[Tensor, "*batch nodes_out h2 w2"]:
    """The convolution of x with W_j, with the geometry of ``F.conv2d``."""
    return F.conv2d(x, masked_weight(weight, c_out, c_in), bias, stride, padding, dilation)


def draw_assignments(
    p: Float[Tensor, "nodes clusters"], generator: torch.Generator | None = None
) -> Float[Tensor, "nodes clusters"]:
    """C_j ~ Bernoulli(P_j): the only random step. Carries no gradient.

    A generator draws on its own device, so one seed gives the same C whatever the device of P.
    """
    p = p.detach()
    if generator is None:
        return torch.bernoulli(p)
    return torch.bernoulli(p.to(generator.device), generator=generator).to(p.device)


def differentiable(
    c: Assignments | Float[Tensor, "nodes clusters"],
) -> Float[Tensor, "nodes clusters"]:
    """The exact bits as a tensor whose gradients follow the estimator; a plain tensor as it is."""
    if isinstance(c, Tensor):
        return c
    if c.learns is None:
        return c.bits
    route = with_gradient_to if c.estimator == "eq9" else with_two_sided_gradient_to
    return route(c.learns, c.bits)


def with_gradient_to(
    p: Float[Tensor, "nodes clusters"], c: Float[Tensor, "nodes clusters"]
) -> Float[Tensor, "nodes clusters"]:
    """Exactly C_j, with gradients that reach P_j by Eq. 9: dL/dP = dL/dC * C.

    >>> p = torch.tensor([[.25, .75]], requires_grad=True)
    >>> with_gradient_to(p, torch.tensor([[0., 1.]])).sum().backward()
    >>> p.grad
    tensor([[0., 1.]])
    """
    return c + (p - p.detach()) * c


def with_two_sided_gradient_to(
    logits: Float[Tensor, "nodes clusters"], c: Float[Tensor, "nodes clusters"]
) -> Float[Tensor, "nodes clusters"]:
    """Exactly C_j, with the two-sided estimate in place of Eq. 9. Not in the paper.

    The estimate is dL/dP = dL/dC * (C / P + (1 - C) / (1 - P)) / 2. Averaged over draws, it is the
    trapezoid rule for L(C=1) - L(C=0), the derivative of the expected loss. It is exact if L is
    quadratic in the entry. We take it with respect to the logits, where it is bounded:
    dL/dC * (C (1 - P) + (1 - C) P) / 2.

    >>> logits = torch.zeros(1, 2, requires_grad=True)
    >>> with_two_sided_gradient_to(logits, torch.tensor([[0., 1.]])).sum().backward()
    >>> logits.grad
    tensor([[0.2500, 0.2500]])
    """
    p = torch.sigmoid(logits.detach())
    return c + (logits - logits.detach()) * (c * (1 - p) + (1 - c) * p) / 2


def input_gradient(
    delta: Float[Tensor, "batch nodes_out"],
    weight: Float[Tensor, "nodes_out nodes_in"],
    c_out: Float[Tensor, "nodes_out clusters"],
    c_in: Float[Tensor, "nodes_in clusters"],
) -> Float[Tensor, "batch nodes_in"]:
    """dL/da_{j-1} = delta_j W_j (Eq. 7), one row per example."""
    return delta @ masked_weight(weight, c_out, c_in)


def weight_gradient(
    delta: Float[Tensor, "batch nodes_out"],
    a_in: Float[Tensor, "batch nodes_in"],
    c_out: Float[Tensor, "nodes_out clusters"],
    c_in: Float[Tensor, "nodes_in clusters"],
) -> Float[Tensor, "nodes_out nodes_in"]:
    """dL/dW~_j = G_j * C_j C_{j-1}^T / k with G_j = dL/dW_j = delta_j a_{j-1}^T (Eq. 8)."""
    return masked_weight(delta.T @ a_in, c_out, c_in)


def assignment_gradient(
    weight: Float[Tensor, "nodes_self nodes_other"],
    g: Float[Tensor, "nodes_self nodes_other"],
    c_other: Float[Tensor, "nodes_other clusters"],
) -> Float[Tensor, "nodes_self clusters"]:
    """[W~ * G] C_other / k: what one neighbouring layer adds to dL/dC (Eq. 8, corrected).

    The layer that produces the nodes adds ``assignment_gradient(W~_j, G_j, C_{j-1})``. The layer
    that consumes them adds ``assignment_gradient(W~_{j+1}.T, G_{j+1}.T, C_{j+1})``.
    """
    return (weight * g) @ c_other / c_other.shape[1]


def membership_gradient(
    grad_c: Float[Tensor, "nodes clusters"], c: Float[Tensor, "nodes clusters"]
) -> Float[Tensor, "nodes clusters"]:
    """dL/dP_j = dL/dC_j * C_j (Eq. 9): a cluster that was not drawn learns nothing in this step."""
    return grad_c * c


def _full_precision(device_type: str) -> contextlib.AbstractContextManager:
    """Keeps the mask in the precision of its factors; autocast would round P P^T to bfloat16."""
    known = device_type in ("cpu", "cuda")  # compilers of torch 2.5 to 2.7 cannot ask
    if not known and not torch.amp.is_autocast_available(device_type):
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)
