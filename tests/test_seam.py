"""The seam: layers compute with two functions of ``kernels``, which a faster twin can replace."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from blockout import BlockoutConv2d, BlockoutLinear, Memberships, kernels, sample_predictions
from blockout.masking import Assignments


def network(**variant) -> nn.Sequential:
    """A convolution, a linear layer whose input nodes span 16 features each, another linear one."""
    nodes = [Memberships(n, 3, **variant) for n in (2, 6, 5, 4)]
    return nn.Sequential(
        BlockoutConv2d(2, 6, 3, 3, padding=1, inputs=nodes[0], outputs=nodes[1]),
        nn.Flatten(),
        BlockoutLinear(6 * 16, 5, 3, inputs=nodes[1], outputs=nodes[2], features_per_node=16),
        nn.Tanh(),
        BlockoutLinear(5, 4, 3, inputs=nodes[2], outputs=nodes[3]),
    ).double()


@pytest.fixture
def calls(monkeypatch):
    """Puts recording twins in the place of both functions: name, weight, c_out, c_in per call."""
    seen = []

    def record(name):
        original = getattr(kernels, name)

        def twin(x, weight, c_out, c_in, *rest):
            seen.append((name, weight, c_out, c_in))
            return original(x, weight, c_out, c_in, *rest)

        monkeypatch.setattr(kernels, name, twin)

    record("masked_linear"), record("masked_conv2d")
    return seen


def assert_every_layer_called(calls, net, kind):
    layers = [net[0], net[2], net[4]]
    assert [name for name, *_ in calls] == ["masked_conv2d", "masked_linear", "masked_linear"]
    for (_, weight, c_out, c_in), layer in zip(calls, layers, strict=True):
        assert weight is layer.weight, "W~ itself, not yet masked"
        for c, nodes in ((c_out, layer.outputs), (c_in, layer.inputs)):
            assert isinstance(c, kind)
            values = c.bits if isinstance(c, Assignments) else c
            assert values.shape == (nodes.nodes, 3), "one row per node, not per feature"


@pytest.mark.parametrize("estimator", ["eq9", "two-sided"])
def test_in_training_a_twin_sees_bits_and_gradient_path_apart(calls, estimator):
    net = network(estimator=estimator)
    net(torch.randn(3, 2, 4, 4, dtype=torch.float64))
    assert_every_layer_called(calls, net, Assignments)
    for (_, _, c_out, c_in), layer in zip(calls, (net[0], net[2], net[4]), strict=True):
        for c, nodes in ((c_out, layer.outputs), (c_in, layer.inputs)):
            assert c.bits is nodes.drawn and not c.bits.requires_grad
            assert set(c.bits.unique().tolist()) <= {0.0, 1.0}
            assert c.estimator == estimator
            learns = nodes.logits if estimator == "two-sided" else nodes.probabilities
            assert torch.equal(c.learns, learns) and c.learns.requires_grad


def test_fixed_memberships_give_a_twin_nothing_that_learns(calls):
    net = network(learned=False)
    net(torch.randn(3, 2, 4, 4, dtype=torch.float64))
    assert_every_layer_called(calls, net, Assignments)
    assert all(c_out.learns is None and c_in.learns is None for _, _, c_out, c_in in calls)


@pytest.mark.parametrize("hard", [True, False])
def test_in_eval_mode_and_for_soft_memberships_a_twin_sees_p(calls, hard):
    net = network(hard=hard).train(not hard)
    net(torch.randn(3, 2, 4, 4, dtype=torch.float64))
    assert_every_layer_called(calls, net, torch.Tensor)
    for (_, _, c_out, c_in), layer in zip(calls, (net[0], net[2], net[4]), strict=True):
        assert torch.equal(c_out, layer.outputs.probabilities) and c_out.requires_grad
        assert torch.equal(c_in, layer.inputs.probabilities)


def test_sampled_predictions_and_recomputed_forwards_pass_through_a_twin(calls):
    net = network()
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    sample_predictions(net, x, draws=2)
    assert len(calls) == 6 and all(isinstance(c_out, Assignments) for _, _, c_out, _ in calls)
    calls.clear()
    checkpoint(net, x, use_reentrant=False).sum().backward()
    assert len(calls) == 6
    for original, again in zip(calls[:3], calls[3:], strict=True):
        assert again[2].bits is original[2].bits and again[3].bits is original[3].bits


class ByCodes(torch.autograd.Function):
    """What a kernel would do: one byte per node, no mask kept, Eqs. 7-9 written out."""

    @staticmethod
    def forward(ctx, x, weight, bias, codes_out, codes_in, clusters, rules, *learns):
        ctx.save_for_backward(x, weight, codes_out, codes_in, *learns)
        ctx.clusters, ctx.rules = clusters, rules
        return F.linear(x, weight * ByCodes.mask(codes_out, codes_in, clusters, weight), bias)

    @staticmethod
    def mask(codes_out, codes_in, clusters, weight):
        shared = codes_out[:, None] & codes_in
        count = sum((shared >> cluster) & 1 for cluster in range(clusters))
        return (count / clusters).repeat_interleave(weight.shape[1] // len(codes_in), 1).to(weight)

    @staticmethod
    def backward(ctx, delta):  # pyright: ignore
        x, weight, codes_out, codes_in, *learns = ctx.saved_tensors
        mask = ByCodes.mask(codes_out, codes_in, ctx.clusters, weight)
        g = delta.T @ x
        of_mask = (weight * g).unflatten(1, (len(codes_in), -1)).sum(2) / ctx.clusters
        bits_out, bits_in = (
            (codes[:, None] >> torch.arange(ctx.clusters) & 1).to(weight)
            for codes in (codes_out, codes_in)
        )
        grad_c = of_mask @ bits_in, of_mask.T @ bits_out
        grad_p = []
        for grad, bits, at, rule in zip(
            grad_c, (bits_out, bits_in), learns, ctx.rules, strict=True
        ):
            p = at.sigmoid()
            slope = bits if rule == "eq9" else (bits * (1 - p) + (1 - bits) * p) / 2
            grad_p.append(grad * slope)
        return delta @ (weight * mask), g * mask, delta.sum(0), None, None, None, None, *grad_p


def by_codes(x, weight, c_out, c_in, bias):
    powers = 2 ** torch.arange(c_out.bits.shape[1], dtype=torch.uint8)
    codes = [(c.bits.to(torch.uint8) * powers).sum(1, dtype=torch.uint8) for c in (c_out, c_in)]
    rules = c_out.estimator, c_in.estimator
    clusters = len(powers)
    return ByCodes.apply(x, weight, bias, *codes, clusters, rules, c_out.learns, c_in.learns)


@pytest.mark.parametrize("estimator", ["eq9", "two-sided"])
def test_a_twin_with_a_backward_of_its_own_trains_alike(monkeypatch, estimator):
    x = torch.randn(7, 2, 4, 4, dtype=torch.float64)
    net = network(estimator=estimator)

    def train():
        net.zero_grad()
        torch.manual_seed(3)
        y = net(x)
        y.square().sum().backward()
        return [y.detach(), *(p.grad for p in net.parameters())]

    reference = train()
    monkeypatch.setattr(kernels, "masked_linear", by_codes)
    twin = train()
    assert len(reference) == 1 + 3 * 2 + 4
    assert all(grad.abs().sum() > 0 for grad in reference)
    for got, expected in zip(twin, reference, strict=True):
        torch.testing.assert_close(got, expected)
