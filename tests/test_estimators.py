"""How memberships learn from the loss: both estimates against the exact derivative, summed over all
draws."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from blockout import BlockoutLinear, Memberships
from blockout.masking import with_gradient_to, with_two_sided_gradient_to


def all_draws(nodes: int, clusters: int):
    """Every 0/1 matrix."""
    for bits in itertools.product((0.0, 1.0), repeat=nodes * clusters):
        yield torch.tensor(bits, dtype=torch.float64).reshape(nodes, clusters)


def exact_and_estimated(loss, logits: torch.Tensor, through) -> tuple[torch.Tensor, torch.Tensor]:
    """d/dlogits of the expected loss, and the mean of an estimate, both summed over all draws."""
    p = logits.sigmoid()
    expected = torch.zeros((), dtype=torch.float64)
    estimate = torch.zeros_like(logits)
    for c in all_draws(*logits.shape):
        probability = torch.where(c == 1, p, 1 - p).prod()
        expected = expected + probability * loss(c)
        free = logits.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(through(free, c)), free)
        estimate += probability.detach() * slope
    (exact,) = torch.autograd.grad(expected, logits)
    return exact, estimate


@given(seed=st.integers(0, 2**31), nodes=st.integers(1, 3), clusters=st.integers(1, 2))
@settings(max_examples=20, deadline=None)
def test_two_sided_is_exact_on_average_where_the_loss_is_quadratic_in_each_entry(
    seed, nodes, clusters
):
    torch.manual_seed(seed)
    n = nodes * clusters
    a, b = torch.randn(n, n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    logits = torch.randn(nodes, clusters, dtype=torch.float64, requires_grad=True)

    def loss(c):
        flat = c.flatten()
        return flat @ a @ flat + b @ flat

    exact, estimate = exact_and_estimated(loss, logits, with_two_sided_gradient_to)
    torch.testing.assert_close(estimate, exact)


@pytest.mark.parametrize("seed", range(8))
def test_two_sided_is_closer_in_angle_than_equation_9_on_a_relu_softmax_network(seed):
    torch.manual_seed(seed)
    x, y = torch.randn(16, 3, dtype=torch.float64), torch.randint(3, (16,))
    w1, w2 = torch.randn(2, 4, 3, dtype=torch.float64).unbind()
    w2 = w2.T.contiguous()
    logits = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    ones_in = torch.ones(3, 2, dtype=torch.float64)

    def loss(c):
        hidden = F.relu(x @ (w1 * (c @ ones_in.T) / 2).T)
        return F.cross_entropy(hidden @ (w2 * (ones_in @ c.T) / 2).T, y)

    def equation_9(free, c):
        return with_gradient_to(free.sigmoid(), c)

    exact, two_sided = exact_and_estimated(loss, logits, with_two_sided_gradient_to)
    _, one_sided = exact_and_estimated(loss, logits, equation_9)

    def angle(estimate):
        return F.cosine_similarity(estimate.flatten(), exact.flatten(), dim=0)

    assert angle(two_sided) > angle(one_sided)
    assert angle(two_sided) > 0.9


def test_memberships_learn_by_the_estimator_they_are_told():
    def logit_gradient(estimator):
        torch.manual_seed(0)
        layer = BlockoutLinear(
            6, 4, 3, outputs=Memberships(4, 3, estimator=estimator), inputs=Memberships(6, 3)
        )
        torch.manual_seed(1)
        layer(torch.ones(2, 6)).square().sum().backward()
        c = layer.outputs.drawn
        return layer.outputs.logits.grad, c

    one_sided, c = logit_gradient("eq9")
    two_sided, again = logit_gradient("two-sided")
    assert torch.equal(c, again)
    # At P = 0.5 both are dL/dC times a quarter where C = 1; only the two-sided sees C = 0.
    torch.testing.assert_close(two_sided[c == 1], one_sided[c == 1])
    assert (one_sided[c == 0] == 0).all() and (two_sided[c == 0] != 0).any()
