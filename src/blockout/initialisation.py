"""How much a mask shrinks activations, so that W~ can compensate for it from the start.

In a plain layer, each output has the variance sigma^2 sum_s E[x_s^2]. A mask multiplies weight
(t, s) by m = c_t . c_s / k, which leaves output t with sigma^2 sum_s E[m^2 x_s^2]. In a chain, x_s
is itself the output of a masked layer and depends on the same c_s: a node in many clusters has
larger values *and* larger masks on the weights that read it. Both effects are quadratic forms in c,
so k x k matrices are enough for the whole calculation:

    E[x_s^2 | c_s]  is proportional to  c_s^T Q c_s        (Q, the profile of a layer's outputs)
    G = mean_s E[u(c_s) c_s c_s^T],  u = c^T Q c / E[c^T Q c]   (1 where inputs are not masked)
    E[y_t^2 | c_t]  is proportional to  c_t^T G c_t / k^2       (so G is the next layer's profile)

This is exact without biases, for activations such as ReLU with act(a x) = a act(x) for a > 0.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from blockout.memberships import Memberships


def input_gram(inputs: Memberships) -> Float[Tensor, "clusters clusters"]:
    """The matrix G of a layer's inputs, at their initial P."""
    p = inputs.initial.double()
    if not inputs.hard:
        return p.T @ p / len(p)
    q = inputs.profile
    moments = _second_moments(p) if q is None else _weighted_second_moments(p, q)
    return moments.mean(0)


def output_second_moments(
    outputs: Memberships, gram: Float[Tensor, "clusters clusters"]
) -> Float[Tensor, "nodes_or_one"]:
    """E[mask^2 x^2] / E[x^2] per output node: the factor by which its variance shrinks."""
    p = outputs.initial.double()
    moments = _form(p, gram) if outputs.hard else _form_of_certain(p, gram)
    return moments / outputs.clusters**2


def _second_moments(p: Float[Tensor, "n k"]) -> Float[Tensor, "n k k"]:
    """E[c c^T] for independent Bernoulli c."""
    return p[:, :, None] * p[:, None, :] + torch.diag_embed(p * (1 - p))


def _form_of_certain(p: Float[Tensor, "n k"], q: Float[Tensor, "k k"]) -> Float[Tensor, "n"]:
    return torch.einsum("ni,ij,nj->n", p, q, p)


def _form(p: Float[Tensor, "n k"], q: Float[Tensor, "k k"]) -> Float[Tensor, "n"]:
    """E[c^T Q c] for independent Bernoulli c."""
    return _form_of_certain(p, q) + (p * (1 - p)) @ q.diagonal()


def _weighted_second_moments(
    p: Float[Tensor, "n k"], q: Float[Tensor, "k k"]
) -> Float[Tensor, "n k k"]:
    """E[(c^T Q c) c c^T] / E[c^T Q c], from the expected form given c_i = c_j = 1."""
    rest = 1 - p
    form = _form(p, q)
    one = 2 * rest * (p @ q) + q.diagonal() * (rest**2 - p * rest)  # E[form | c_i = 1] - E[form]
    two = one[:, :, None] + one[:, None, :] + 2 * q * rest[:, :, None] * rest[:, None, :]
    conditional = form[:, None, None] + two
    conditional = conditional.diagonal_scatter(form[:, None] + one, dim1=1, dim2=2)
    tiny = torch.finfo(form.dtype).tiny
    return conditional * _second_moments(p) / form.clamp_min(tiny)[:, None, None]
