"""Scale and learning speed of weights under thin masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from blockout import BlockoutConv2d, BlockoutLinear, Memberships
from blockout.guidance.pace import Pace, mean_square_mask
from blockout.masking import block_mask


@pytest.mark.parametrize("hard", [True, False])
def test_the_mean_square_of_a_mask_is_that_of_its_draws(hard):
    torch.manual_seed(0)
    out = Memberships(3, 4, probability=torch.rand(3, 4), learned=False, hard=hard)
    into = Memberships(5, 4, probability=torch.rand(5, 4), learned=False, hard=hard)
    if hard:
        n = 20_000
        c = torch.bernoulli(out.fixed.expand(n, 3, 4)), torch.bernoulli(into.fixed.expand(n, 5, 4))
        square = (c[0] @ c[1].transpose(1, 2) / 4).square().mean((0, 2))
    else:
        square = block_mask(out.fixed, into.fixed).square().mean(1)
    # A mean square is at most 1: its error over 20,000 draws is below 0.007, six deviations 0.042.
    torch.testing.assert_close(mean_square_mask(out, into).float(), square, atol=0.01, rtol=0)


@given(seed=st.integers(0, 2**31), share=st.floats(0.1, 1))
@settings(max_examples=20, deadline=None)
def test_weights_grow_as_masks_get_thinner(seed, share):
    torch.manual_seed(seed)
    layers = [BlockoutConv2d(3, 6, 3, clusters=3), BlockoutLinear(6, 5, clusters=3)]
    pace = Pace(layers)
    before = [mean_square_mask(m.outputs, m.inputs) for m in layers]
    weights = [m.weight.detach().clone() for m in layers]
    for m in layers:
        m.outputs.put(m.outputs.probabilities.detach() * share)
    pace.after_memberships()
    for m, square, weight in zip(layers, before, weights, strict=True):
        now = mean_square_mask(m.outputs, m.inputs)
        size = m.weight.flatten(1).norm(dim=1) * now.sqrt().float()
        torch.testing.assert_close(size, weight.flatten(1).norm(dim=1) * square.sqrt().float())


@pytest.mark.parametrize(
    ("optimiser", "arguments"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.0}),
    ],
)
def test_a_masked_layer_learns_as_fast_as_a_plain_one_under_any_optimiser(optimiser, arguments):
    """Both see the same inputs; all nodes share one of six clusters, so every mask is 1/6."""
    torch.manual_seed(0)
    plain = nn.Linear(5, 4, bias=False).double()
    masked = BlockoutLinear(5, 4, clusters=6, bias=False, dtype=torch.float64)
    for m in (masked.inputs, masked.outputs):
        m.put(torch.eye(6)[:1].expand(m.nodes, 6))
    with torch.no_grad():
        masked.weight.copy_(plain.weight * 6)
    pace = Pace([masked])
    steps = [optimiser([net.weight], **arguments) for net in (plain, masked)]
    for _ in range(5):
        x, y = torch.randn(16, 5).double(), torch.randn(16, 4).double()
        for net, step in zip((plain, masked), steps, strict=True):
            step.zero_grad()
            (net(x) - y).square().mean().backward()
            step.step()
        pace.after_optimiser()
        pace.after_memberships()
    # Adam adds 1e-8 to what it divides by, which differs from the gradient's scale here by 6.
    torch.testing.assert_close(masked.expected_weight(), plain.weight, atol=1e-6, rtol=1e-6)


def test_a_closed_pace_leaves_gradients_alone():
    layer = BlockoutLinear(3, 2, clusters=2)
    layer.weight.grad = None
    x = torch.ones(1, 3)
    layer.eval()(x).sum().backward()
    plain = layer.weight.grad
    layer.weight.grad = None
    pace = Pace([layer])
    layer(x).sum().backward()
    assert plain is not None and layer.weight.grad is not None
    assert (layer.weight.grad.abs() > plain.abs()).all()
    layer.weight.grad = None
    pace.close()
    layer(x).sum().backward()
    assert torch.equal(layer.weight.grad, plain)
