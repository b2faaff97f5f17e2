"""Every equation against the paper's sums written as loops, and gradients against autograd."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from blockout.masking import (
    assignment_gradient,
    block_mask,
    draw_assignments,
    input_gradient,
    masked_weight,
    membership_gradient,
    weight_gradient,
    with_gradient_to,
)

sizes = st.integers(1, 5)


def _assignments(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.bernoulli(torch.full(shape, 0.5, dtype=torch.float64), generator=generator)


def _normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@given(d_out=sizes, d_in=sizes, k=sizes, seed=st.integers(0, 99))
def test_equation_3_is_the_sum_over_clusters(d_out, d_in, k, seed):
    c_out, c_in = _assignments(seed, d_out, k), _assignments(seed + 7, d_in, k)
    weight = _normal(seed, d_out, d_in)
    masked = masked_weight(weight, c_out, c_in)
    for t in range(d_out):
        for s in range(d_in):
            both = sum(1 for cl in range(k) if c_in[s, cl] == 1 and c_out[t, cl] == 1)
            # one product and one quotient in another order: a few units in the last place
            assert masked[t, s].item() == pytest.approx(both * weight[t, s].item() / k, rel=1e-14)


@given(d_out=sizes, d_in=sizes, k=sizes, seed=st.integers(0, 99))
def test_equation_4_masks_every_tap_of_a_kernel_alike(d_out, d_in, k, seed):
    c_out, c_in = _assignments(seed, d_out, k), _assignments(seed + 7, d_in, k)
    kernels = _normal(seed, d_out, d_in, 3, 2)
    masked = masked_weight(kernels, c_out, c_in)
    for row in range(3):
        for column in range(2):
            expected = masked_weight(kernels[:, :, row, column], c_out, c_in)
            assert torch.equal(masked[:, :, row, column], expected)


def test_a_mask_lies_between_zero_and_one():
    c_out, c_in = torch.ones(4, 3), torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert block_mask(c_out, c_in).tolist() == [[0.0, 1.0]] * 4


@pytest.mark.parametrize("seed", range(3))
def test_equation_5_is_the_mean_over_draws(seed):
    """Means of n masks in [0, 1]: Hoeffding, union over 20 entries, false alarm below 1e-6."""
    n, k = 20_000, 3
    generator = torch.Generator().manual_seed(seed)
    p_out, p_in = torch.rand(5, k, generator=generator), torch.rand(4, k, generator=generator)
    total = torch.zeros(5, 4, dtype=torch.float64)
    for _ in range(n):
        total += block_mask(draw_assignments(p_out, generator), draw_assignments(p_in, generator))
    bound = math.sqrt(math.log(2 * 20 / 1e-6) / (2 * n))
    assert (total / n - block_mask(p_out, p_in)).abs().max() < bound


@given(d_out=sizes, d_in=sizes, k=sizes, seed=st.integers(0, 99))
def test_equations_7_and_8_are_the_gradients_of_one_layer(d_out, d_in, k, seed):
    c_out, c_in = _assignments(seed, d_out, k), _assignments(seed + 7, d_in, k)
    weight, a = _normal(seed, d_out, d_in).requires_grad_(), _normal(seed + 2, 6, d_in)
    delta = _normal(seed + 3, 6, d_out)
    a.requires_grad_()
    (a @ masked_weight(weight, c_out, c_in).T).backward(delta)
    torch.testing.assert_close(input_gradient(delta, weight, c_out, c_in), a.grad)
    torch.testing.assert_close(weight_gradient(delta, a, c_out, c_in), weight.grad)


@given(d_0=sizes, d_1=sizes, d_2=sizes, k=sizes, seed=st.integers(0, 99))
def test_equation_8_is_the_gradient_of_both_layers(d_0, d_1, d_2, k, seed):
    """The nodes between two layers: the printed equation with its transposes put right."""
    c_0, c_1, c_2 = (_assignments(seed + i, d, k) for i, d in enumerate((d_0, d_1, d_2)))
    w_1, w_2, x = _normal(seed, d_1, d_0), _normal(seed + 1, d_2, d_1), _normal(seed + 2, 6, d_0)
    c_1.requires_grad_()
    masked_1, masked_2 = masked_weight(w_1, c_1, c_0), masked_weight(w_2, c_2, c_1)
    masked_1.retain_grad()
    masked_2.retain_grad()
    (torch.tanh(x @ masked_1.T) @ masked_2.T).square().sum().backward()
    assert masked_1.grad is not None and masked_2.grad is not None
    below = assignment_gradient(w_1, masked_1.grad, c_0)
    above = assignment_gradient(w_2.T, masked_2.grad.T, c_2)
    torch.testing.assert_close(below + above, c_1.grad)


@given(d_out=sizes, d_in=sizes, k=sizes, seed=st.integers(0, 99))
def test_gradients_with_fixed_assignments_pass_gradcheck(d_out, d_in, k, seed):
    c_out = _assignments(seed, d_out, k).requires_grad_()
    c_in = _assignments(seed + 7, d_in, k).requires_grad_()
    weight = _normal(seed, d_out, d_in).requires_grad_()
    assert gradcheck(masked_weight, (weight, c_out, c_in))


@given(nodes=sizes, k=sizes, seed=st.integers(0, 99))
def test_equation_9_holds_exactly(nodes, k, seed):
    p = torch.sigmoid(_normal(seed, nodes, k)).requires_grad_()
    drawn = _assignments(seed, nodes, k)
    c = with_gradient_to(p, drawn)
    assert torch.equal(c, drawn)
    grad_c = _normal(seed + 5, nodes, k)
    c.backward(grad_c)
    assert p.grad is not None
    assert torch.equal(p.grad, membership_gradient(grad_c, drawn))
    assert torch.equal(p.grad, torch.where(drawn == 1, grad_c, 0.0))


@pytest.mark.parametrize("own_generator", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_draws_are_zeros_and_ones_with_the_frequency_of_p(seed, own_generator):
    """Hoeffding over 6 entries and n draws, false alarm below 1e-6."""
    n = 20_000
    p = torch.tensor([[0.0, 0.1, 0.5], [0.7, 0.99, 1.0]])
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed) if own_generator else None
    draws = torch.stack([draw_assignments(p, generator) for _ in range(n)])
    assert set(draws.unique().tolist()) == {0.0, 1.0}
    bound = math.sqrt(math.log(2 * 6 / 1e-6) / (2 * n))
    assert (draws.mean(0) - p).abs().max() < bound
    assert draws[:, 0, 0].sum() == 0
    assert draws[:, 1, 2].sum() == n


def test_draws_follow_the_given_generator_and_otherwise_torchs_own():
    p = torch.full((20, 6), 0.5)
    first = draw_assignments(p, torch.Generator().manual_seed(5))
    assert torch.equal(first, draw_assignments(p, torch.Generator().manual_seed(5)))
    assert not torch.equal(first, draw_assignments(p, torch.Generator().manual_seed(6)))
    torch.manual_seed(5)
    second = draw_assignments(p)
    torch.manual_seed(5)
    assert torch.equal(second, draw_assignments(p))


def test_one_cluster_gives_a_mask_of_rank_one_and_k_clusters_of_rank_k_at_most():
    for k in (1, 2, 4):
        mask = block_mask(_assignments(3, 30, k), _assignments(4, 20, k))
        assert torch.linalg.matrix_rank(mask) == k


def test_as_many_clusters_as_inputs_can_express_any_mask():
    """DropConnect's masks are representable (C_in = I), though sampling C does not draw them."""
    any_mask = _assignments(9, 7, 5)
    assert torch.equal(block_mask(any_mask, torch.eye(5, dtype=torch.float64)) * 5, any_mask)


def test_the_mask_keeps_full_precision_under_autocast():
    p = torch.rand(8, 6)
    with torch.autocast("cpu", torch.bfloat16):
        inside = block_mask(p, p)
    assert torch.equal(inside, block_mask(p, p))
