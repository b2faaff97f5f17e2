"""Every equation against the paper's sums written as loops, and gradients against autograd."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from blockout.masking import (
    Assignments,
    assignment_gradient,
    block_mask,
    draw_assignments,
    input_gradient,
    masked_conv2d,
    masked_linear,
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


@given(
    d_out=sizes,
    d_in=sizes,
    k=sizes,
    features_per_node=st.integers(1, 3),
    estimator=st.sampled_from(["eq9", "two-sided"]),
    seed=st.integers(0, 99),
)
def test_a_masked_product_and_all_its_gradients_are_sums_written_as_loops(
    d_out, d_in, k, features_per_node, estimator, seed
):
    features = d_in * features_per_node
    x, weight = _normal(seed, 3, features), _normal(seed + 1, d_out, features)
    bias, delta = _normal(seed + 2, d_out), _normal(seed + 3, 3, d_out)
    c_out, c_in = _assignments(seed, d_out, k), _assignments(seed + 7, d_in, k)
    at_out, at_in = _normal(seed + 4, d_out, k).sigmoid(), _normal(seed + 5, d_in, k).sigmoid()
    leaves = [x, weight, bias, at_out, at_in]
    for leaf in leaves:
        leaf.requires_grad_()
    sides = Assignments(c_out, at_out, estimator), Assignments(c_in, at_in, estimator)
    y = masked_linear(x, weight, *sides, bias)
    y.backward(delta)

    with torch.no_grad():
        expected = bias.expand(3, d_out).clone()
        grads = [torch.zeros_like(leaf) for leaf in leaves]
        of_x, of_weight, of_bias, of_out, of_in = grads
        rule_out, rule_in = _rule(estimator, c_out, at_out), _rule(estimator, c_in, at_in)
        for n in range(3):
            for t in range(d_out):
                of_bias[t] += delta[n, t]
                for f in range(features):
                    s = f // features_per_node
                    mask = sum(c_out[t, cl] * c_in[s, cl] for cl in range(k)) / k
                    expected[n, t] += x[n, f] * weight[t, f] * mask
                    of_x[n, f] += delta[n, t] * weight[t, f] * mask
                    of_weight[t, f] += delta[n, t] * x[n, f] * mask
                    for cl in range(k):
                        slope = delta[n, t] * x[n, f] * weight[t, f] / k
                        of_out[t, cl] += slope * c_in[s, cl] * rule_out[t, cl]
                        of_in[s, cl] += slope * c_out[t, cl] * rule_in[s, cl]
    torch.testing.assert_close(y, expected)
    for leaf, grad in zip(leaves, grads, strict=True):
        torch.testing.assert_close(leaf.grad, grad)


def _rule(estimator: str, c: Tensor, at: Tensor) -> Tensor:
    """dL/dP (Eq. 9) or dL/dlogit (two-sided) where dL/dC = 1."""
    p = torch.sigmoid(at)
    return c if estimator == "eq9" else torch.where(c == 1, 1 - p, p) / 2


def test_a_masked_convolution_is_the_product_at_every_position():
    """Also with stride and dilation: against the linear function on unfolded patches."""
    x, weight, bias = _normal(1, 2, 4, 7, 7), _normal(2, 5, 4, 3, 3), _normal(3, 5)
    p_out = _normal(4, 5, 3).sigmoid().requires_grad_()
    sides = Assignments(_assignments(0, 5, 3), p_out), Assignments(_assignments(1, 4, 3))
    geometry = {"stride": 2, "padding": 1, "dilation": 2}
    y = masked_conv2d(x, weight, *sides, bias, **geometry)
    (slope,) = torch.autograd.grad(y.square().sum(), p_out)
    patches = torch.nn.functional.unfold(x, 3, **geometry).mT
    flat = masked_linear(patches, weight.flatten(1), *sides, bias)
    torch.testing.assert_close(y, flat.mT.reshape(y.shape))
    torch.testing.assert_close(slope, torch.autograd.grad(flat.square().sum(), p_out)[0])


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
