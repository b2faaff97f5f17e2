"""Predictions over drawn architectures, and draws seeded for several processes."""

import copy

import pytest
import torch
from torch import nn

from blockout import (
    BlockoutLinear,
    DropConnectLinear,
    Memberships,
    sample_predictions,
    seed_draws,
)


def _net() -> nn.Sequential:
    fc2 = BlockoutLinear(6, 5, 2, dtype=torch.float64)
    fc3 = BlockoutLinear(5, 3, 2, inputs=fc2.outputs, dtype=torch.float64)
    return nn.Sequential(fc2, nn.BatchNorm1d(5, dtype=torch.float64), nn.ReLU(), fc3)


def test_mean_and_spread_are_those_of_as_many_training_draws():
    net = _net().eval()
    x = torch.randn(4, 6, dtype=torch.float64)
    seed_draws(net, 1)
    mean, spread = sample_predictions(net, x, draws=7, transform=lambda y: y.softmax(-1))
    seed_draws(net, 1)
    net[0].train(), net[3].train()
    with torch.no_grad():
        outputs = torch.stack([net(x).softmax(-1) for _ in range(7)])
    torch.testing.assert_close(mean, outputs.mean(0))
    torch.testing.assert_close(spread, outputs.std(0))
    assert (spread > 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_of_a_single_layer_approaches_the_expected_weight_rule(seed):
    """12 means of n draws: 6 standard errors, false alarm below 1e-6 (normal, n is large)."""
    torch.manual_seed(seed)
    layer = BlockoutLinear(6, 3, 2).eval()
    x = torch.randn(4, 6)
    n = 4000
    mean, spread = sample_predictions(layer, x, draws=n)
    assert ((mean - layer(x)).abs() < 6 * spread / n**0.5).all()


def test_the_model_is_left_as_it_was():
    net = _net()
    net[1].eval()
    state = copy.deepcopy(net.state_dict())
    modes = [m.training for m in net.modules()]
    sample_predictions(net, torch.randn(4, 6, dtype=torch.float64))
    assert [m.training for m in net.modules()] == modes
    assert all(
        torch.equal(a, b) for a, b in zip(state.values(), net.state_dict().values(), strict=True)
    )
    x = torch.randn(4, 6, dtype=torch.float64)
    net.eval()
    assert torch.equal(net(x), net(x))


def test_sampling_does_not_change_the_draws_that_follow():
    first, second = _net(), _net()
    second.load_state_dict(first.state_dict())
    seed_draws(first, 3), seed_draws(second, 3)
    x = torch.randn(4, 6, dtype=torch.float64)
    sample_predictions(first, x)
    assert torch.equal(first(x), second(x))


def test_memberships_of_a_layer_outside_are_sampled_too():
    fc2 = BlockoutLinear(6, 40, 1)
    fc3 = BlockoutLinear(40, 3, 1, inputs=fc2.outputs, outputs=Memberships.given(torch.ones(3, 1)))
    assert (sample_predictions(fc3, torch.randn(4, 40)).spread > 0).all()


def test_dropconnect_masks_are_sampled_too():
    layer = DropConnectLinear(6, 3, activation=nn.ReLU())
    assert (sample_predictions(layer, torch.randn(4, 6)).spread > 0).any()
    assert not layer.sampling


def test_a_model_that_draws_nothing_is_refused():
    for model in (nn.Linear(3, 2), BlockoutLinear(3, 2, 2, hard=False)):
        with pytest.raises(ValueError, match="the model draws nothing"):
            sample_predictions(model, torch.zeros(1, 3))


def test_one_draw_has_no_spread():
    with pytest.raises(ValueError, match="draws must be at least 2"):
        sample_predictions(_net(), torch.zeros(1, 6), draws=1)


def test_equal_seeds_give_equal_draws_whatever_else_is_random():
    first, second = _net(), _net()
    second.load_state_dict(first.state_dict())
    seed_draws(first, 3), seed_draws(second, 3)
    x = torch.randn(8, 6, dtype=torch.float64)
    for _ in range(3):
        torch.rand(5)
        y = first(x)
        torch.rand(17)
        assert torch.equal(second(x), y)


def test_different_seeds_and_different_nodes_give_different_draws():
    net = nn.Sequential(BlockoutLinear(40, 40, 2))
    x = torch.randn(1, 40)
    seed_draws(net, 3)
    y = net(x)
    inputs, outputs = net[0].inputs.drawn, net[0].outputs.drawn
    assert not torch.equal(inputs, outputs)
    seed_draws(net, 4)
    assert not torch.equal(net(x), y)
