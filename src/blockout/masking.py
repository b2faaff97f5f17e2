"""The paper in one file: Equations 3-9 as pure functions of tensors.

Everything else in this library is tested against these functions; read them first.

Glossary (the same words in code, command line, docs and plots):

==================  ============================================================================
nodes               the units of a layer: features of a linear layer, channels of a convolution
clusters            the k groups that a node may belong to; at most k parallel branches
memberships, P_j    probability that each of d_j nodes belongs to each cluster, (nodes, clusters)
assignments, C_j    hard memberships drawn for one training step, C_j ~ Bernoulli(P_j), 0 or 1
soft                nothing is drawn: C_j = P_j in training as well
fixed               P_j is not learned (0.5 in the paper)
given               C_j is known beforehand, for example superclasses
weight, W~_j        the unconstrained weight, (nodes_out, nodes_in) or (nodes_out, nodes_in, h, w)
mask                C_j C_{j-1}^T / k: the share of clusters that two nodes have in common
masked weight, W_j  W~_j * mask: what the layer multiplies with
code                the subset of clusters a node belongs to
==================  ============================================================================

Two places of the printed paper cannot be meant: Eq. 3 swaps the indices of w~, and Eq. 8 has its
transposes on the wrong terms. Both are read here so that the shapes conform
(``test_equation_3_is_the_sum_over_clusters``, ``test_equation_8_is_the_gradient_of_both_layers``).
"""

import contextlib

import torch
from jaxtyping import Float
from torch import Tensor


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
    weight: Float[Tensor, "nodes_out nodes_in *kernel"],
    c_out: Float[Tensor, "nodes_out clusters"],
    c_in: Float[Tensor, "nodes_in clusters"],
) -> Float[Tensor, "nodes_out nodes_in *kernel"]:
    """W_j = W~_j * C_j C_{j-1}^T / k (Eq. 4); with P for C, the inference weight (Eq. 5).

    A kernel (..., height, width) is masked as one weight.
    """
    mask = block_mask(c_out, c_in).to(weight.dtype)
    return weight * _over_kernel(mask, weight)


def draw_assignments(
    p: Float[Tensor, "nodes clusters"], generator: torch.Generator | None = None
) -> Float[Tensor, "nodes clusters"]:
    """C_j ~ Bernoulli(P_j): the one place where chance enters. Carries no gradient.

    A generator on another device draws there, so that one seed gives the same C on any device.
    """
    p = p.detach()
    if generator is None:
        return torch.bernoulli(p)
    return torch.bernoulli(p.to(generator.device), generator=generator).to(p.device)


def with_gradient_to(
    p: Float[Tensor, "nodes clusters"], c: Float[Tensor, "nodes clusters"]
) -> Float[Tensor, "nodes clusters"]:
    """C_j itself, exactly, through which gradients reach P_j as Eq. 9 says: dL/dP = dL/dC * C.

    >>> p = torch.tensor([[.25, .75]], requires_grad=True)
    >>> with_gradient_to(p, torch.tensor([[0., 1.]])).sum().backward()
    >>> p.grad
    tensor([[0., 1.]])
    """
    return c + (p - p.detach()) * c


def with_two_sided_gradient_to(
    logits: Float[Tensor, "nodes clusters"], c: Float[Tensor, "nodes clusters"]
) -> Float[Tensor, "nodes clusters"]:
    """C_j itself, exactly, with the two-sided estimate instead of Eq. 9; beyond the paper.

    dL/dP = dL/dC * (C / P + (1 - C) / (1 - P)) / 2 is on average over draws the trapezoid rule for
    L(C=1) - L(C=0), which is the derivative of the expected loss; exact where L is quadratic in the
    entry. Given with respect to the logits, where it is bounded: dL/dC * (C (1 - P) + (1 - C) P)
    / 2.

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
    """dL/da_{j-1} = delta_j W_j (Eq. 7), one row an example."""
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
    """[W~ * G] C_other / k: what one neighbouring layer adds to dL/dC (Eq. 8, right transposes).

    The layer that produces the nodes adds ``assignment_gradient(W~_j, G_j, C_{j-1})``, the layer
    that consumes them ``assignment_gradient(W~_{j+1}.T, G_{j+1}.T, C_{j+1})``.
    """
    return (weight * g) @ c_other / c_other.shape[1]


def membership_gradient(
    grad_c: Float[Tensor, "nodes clusters"], c: Float[Tensor, "nodes clusters"]
) -> Float[Tensor, "nodes clusters"]:
    """dL/dP_j = dL/dC_j * C_j (Eq. 9): clusters that were not drawn learn nothing in this step."""
    return grad_c * c


def _over_kernel(mask: Tensor, weight: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (weight.dim() - mask.dim()))


def _full_precision(device_type: str) -> contextlib.AbstractContextManager:
    """Autocast would round P P^T to bfloat16; the mask stays in the precision of its factors."""
    if not torch.amp.is_autocast_available(device_type):
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)
