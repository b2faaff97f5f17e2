"""The layers: values, scale at the start, and everything users expect of a torch layer."""

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from blockout import (
    BlockoutConv2d,
    BlockoutLinear,
    Memberships,
    parameter_groups,
    to_dense,
)
from blockout.masking import masked_weight


def chain(k: int = 3, dtype: torch.dtype | None = None, **variant) -> nn.Sequential:
    fc2 = BlockoutLinear(10, 8, k, dtype=dtype, **variant)
    fc3 = BlockoutLinear(8, 4, k, inputs=fc2.outputs, dtype=dtype, **variant)
    return nn.Sequential(fc2, nn.ReLU(), fc3)


def drawn(memberships: Memberships) -> torch.Tensor:
    assert memberships.drawn is not None
    return memberships.drawn


# --- values -------------------------------------------------------------------------------------


@given(k=st.integers(1, 4), seed=st.integers(0, 50))
def test_a_training_forward_is_the_masked_product_of_this_draw(k, seed):
    torch.manual_seed(seed)
    fc2, _, fc3 = net = chain(k, torch.float64)
    x = torch.randn(5, 10, dtype=torch.float64)
    y = net(x)
    c_0, c_1, c_2 = drawn(fc2.inputs), drawn(fc2.outputs), drawn(fc3.outputs)
    assert fc3.inputs is fc2.outputs
    h = (x @ masked_weight(fc2.weight, c_1, c_0).T + fc2.bias).relu()
    torch.testing.assert_close(y, h @ masked_weight(fc3.weight, c_2, c_1).T + fc3.bias)


def test_an_eval_forward_uses_the_expected_weight_of_equation_5():
    layer = BlockoutLinear(6, 5, 2, dtype=torch.float64).eval()
    with torch.no_grad():
        layer.inputs.logits.normal_()
        layer.outputs.logits.normal_()
    p_out, p_in = layer.outputs.probabilities, layer.inputs.probabilities
    x = torch.randn(3, 6, dtype=torch.float64)
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for t in range(5):
        for s in range(6):
            share = sum(p_out[t, cl] * p_in[s, cl] for cl in range(2)) / 2
            expected[:, t] += x[:, s] * layer.weight[t, s] * share
    torch.testing.assert_close(layer(x), expected + layer.bias)
    torch.testing.assert_close(F.linear(x, layer.expected_weight()), expected)


def test_gradients_of_shared_memberships_are_the_paper_s_in_both_neighbours():
    """Eqs. 8 and 9 and the logistic, computed by hand from the gradients of the masked weights."""
    fc2, _, fc3 = net = chain(3, torch.float64)
    x = torch.randn(5, 10, dtype=torch.float64)
    net(x).square().sum().backward()
    c_0, c_1, c_2 = drawn(fc2.inputs), drawn(fc2.outputs), drawn(fc3.outputs)
    w_1 = masked_weight(fc2.weight, c_1, c_0).detach().requires_grad_()
    w_2 = masked_weight(fc3.weight, c_2, c_1).detach().requires_grad_()
    F.linear(F.linear(x, w_1, fc2.bias).relu(), w_2, fc3.bias).square().sum().backward()
    assert w_1.grad is not None and w_2.grad is not None
    grad_c = ((fc2.weight * w_1.grad) @ c_0 + (fc3.weight * w_2.grad).T @ c_2) / 3
    p = fc2.outputs.probabilities
    torch.testing.assert_close(fc2.outputs.logits.grad, grad_c * c_1 * p * (1 - p))
    assert grad_c.mul(c_1).abs().sum() > 0


def test_soft_clusters_that_start_alike_are_one_cluster_that_learns_more_slowly():
    x, y = torch.randn(32, 10, dtype=torch.float64), torch.randint(4, (32,))
    several, single = (chain(k, torch.float64, hard=False) for k in (3, 1))
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        several.get_parameter(name).data.copy_(single.get_parameter(name).data)
    for net, rate in ((several, 30.0), (single, 10.0)):  # each cluster has a third of the slope
        groups = parameter_groups(net, lr=0.1, weight_decay=0.0, membership_scale=rate)
        optimizer = torch.optim.SGD(groups, momentum=0.9)
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    torch.testing.assert_close(several(x), single(x))
    for i in (0, 2):
        p, alone = several[i].outputs.probabilities, single[i].outputs.probabilities
        torch.testing.assert_close(p, alone.expand_as(p))
        assert alone.std() > 0.05, "they have learned"


def test_a_convolution_masks_whole_kernels_between_channels():
    conv = BlockoutConv2d(4, 6, 3, 2, stride=2, padding=1, dtype=torch.float64)
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    y = conv(x)
    weight = masked_weight(conv.weight, drawn(conv.outputs), drawn(conv.inputs))
    torch.testing.assert_close(y, F.conv2d(x, weight, conv.bias, stride=2, padding=1))


@pytest.mark.parametrize("padding", [0, 1, "same"])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "reflect"])
def test_a_convolution_with_all_nodes_in_all_clusters_is_a_plain_one(padding, padding_mode):
    everywhere = {
        "inputs": Memberships.given(torch.ones(3, 2)),
        "outputs": Memberships.given(torch.ones(5, 2)),
    }
    geometry = {"padding": padding, "padding_mode": padding_mode, "dilation": 2}
    conv = BlockoutConv2d(3, 5, (3, 2), 2, **geometry, **everywhere)
    plain = nn.Conv2d(3, 5, (3, 2), **geometry)
    plain.load_state_dict({"weight": conv.weight, "bias": conv.bias})
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(conv(x), plain(x))


def test_flattened_channels_share_the_membership_of_their_node():
    conv = BlockoutConv2d(3, 4, 3, 2, padding=1)
    fc = BlockoutLinear(4 * 6, 5, 2, inputs=conv.outputs, features_per_node=6)
    x = torch.randn(2, 3, 2, 3)
    y = fc(conv(x).flatten(1))
    c_in = drawn(conv.outputs).repeat_interleave(6, 0)
    weight = masked_weight(fc.weight, drawn(fc.outputs), c_in)
    conv_weight = masked_weight(conv.weight, drawn(conv.outputs), drawn(conv.inputs))
    h = F.conv2d(x, conv_weight, conv.bias, padding=1).flatten(1)
    torch.testing.assert_close(y, F.linear(h, weight, fc.bias))


# --- scale at the start -------------------------------------------------------------------------


def _variance_ratios(make_chain, width: int, repeats: int) -> torch.Tensor:
    """Variance after each layer of a ReLU chain, relative to a chain of nn.Linear."""
    x = torch.randn(50, width)
    total = torch.zeros(2, 3)
    with torch.no_grad():
        for _ in range(repeats):
            for row, layers in enumerate(
                (make_chain(), [nn.Linear(width, width) for _ in range(3)])
            ):
                h = x
                for column, layer in enumerate(layers):
                    h = layer(h)
                    total[row, column] += h.square().mean()
                    h = h.relu()
    return total[0] / total[1]


def _blockout_chain(width: int, k: int, **variant):
    layers, inputs = [], None
    for _ in range(3):
        layers.append(BlockoutLinear(width, width, k, inputs=inputs, **variant))
        inputs = layers[-1].outputs
    return layers


@pytest.mark.parametrize("k", [1, 2, 6])
@pytest.mark.parametrize("hard", [True, False])
def test_training_activations_start_with_the_variance_of_a_plain_chain(k, hard):
    """Over 20 chains of width 128 the ratios scatter by 2 to 4 %: 15 % is four deviations and more.
    Without the correction for a shared draw the second layer is off by a factor of 1.3 (k = 6) or
    2 (k = 1)."""
    ratios = _variance_ratios(lambda: _blockout_chain(128, k, hard=hard), 128, 20)
    assert ((ratios - 1).abs() < 0.15).all(), ratios


def test_given_branches_start_with_the_variance_of_a_plain_chain():
    """Unequal branches, every node in at least one; each row is scaled by what it is joined to."""

    def make():
        ends = [torch.zeros(128, 4) for _ in range(4)]
        for matrix in ends:
            matrix[
                torch.arange(128), torch.multinomial(torch.tensor([8.0, 4, 2, 1]), 128, True)
            ] = 1
        nodes = [Memberships.given(matrix) for matrix in ends]
        return [
            BlockoutLinear(128, 128, 4, inputs=nodes[i], outputs=nodes[i + 1]) for i in range(3)
        ]

    ratios = _variance_ratios(make, 128, 20)
    assert ((ratios - 1).abs() < 0.15).all(), ratios


def test_a_convolution_starts_with_the_variance_of_a_plain_one():
    x = torch.randn(4, 64, 12, 12)
    with torch.no_grad():
        ours = torch.stack([BlockoutConv2d(64, 64, 3, 6)(x).var() for _ in range(20)]).mean()
        plain = torch.stack([nn.Conv2d(64, 64, 3)(x).var() for _ in range(20)]).mean()
    assert abs(ours / plain - 1) < 0.15


def test_initial_weights_do_not_depend_on_values_that_are_not_there_yet():
    """to_empty leaves rubbish in the logits; resetting parents before children must not read it."""
    layer = BlockoutLinear(64, 64, 6, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(float("nan"))
    for module in layer.modules():
        module.reset_parameters()
    assert all(p.isfinite().all() for p in layer.parameters())
    assert layer.weight.abs().max() <= 1 / 8 / (0.5**4 + 0.25 * 0.75 / 6) ** 0.5 + 1e-6


# --- what users expect of a layer ---------------------------------------------------------------


def test_the_state_dict_has_one_entry_a_parameter_and_loads_strictly():
    net, other = chain(), chain()
    names = [name for name, _ in net.named_parameters()]
    assert list(net.state_dict()) == names
    assert len(names) == 7
    other.load_state_dict(net.state_dict(), strict=True)
    x = torch.randn(3, 10)
    assert torch.equal(other.eval()(x), net.eval()(x))
    incomplete = {k: v for k, v in net.state_dict().items() if k != "0.outputs.logits"}
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"0.outputs.logits\""):
        other.load_state_dict(incomplete)


def test_memberships_given_to_several_layers_belong_to_the_first():
    shared = Memberships(8, 2)
    first = BlockoutLinear(5, 8, 2, outputs=shared)
    second = BlockoutLinear(6, 8, 2, outputs=shared)
    net = nn.ModuleList([first, second])
    assert [name for name in net.state_dict() if "logits" in name] == [
        "0.inputs.logits",
        "0.outputs.logits",
        "1.inputs.logits",
    ]
    first(torch.randn(1, 5)), second(torch.randn(1, 6))
    assert drawn(first.outputs) is drawn(second.outputs)


@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_copies_share_among_themselves_and_not_with_the_original(how):
    net = chain()
    if how == "deepcopy":
        twin = copy.deepcopy(net)
    else:
        buffer = io.BytesIO()
        torch.save(net, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    assert twin[2].inputs is twin[0].outputs
    assert twin[0].outputs is not net[0].outputs
    x = torch.randn(3, 10)
    torch.manual_seed(4)
    expected = net(x)
    torch.manual_seed(4)
    assert torch.equal(twin(x), expected)


@pytest.mark.parametrize("training", [True, False])
def test_it_compiles_as_one_graph_and_keeps_sharing_draws(training):
    conv = BlockoutConv2d(2, 6, 3, 3, padding=1)
    fc = BlockoutLinear(6 * 16, 5, 3, inputs=conv.outputs, features_per_node=16)
    net = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), fc).train(training)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 2, 4, 4)
    seen = []
    for _ in range(3):
        net.zero_grad()
        y = compiled(x)
        y.square().sum().backward()
        if training:
            seen.append(drawn(conv.outputs).clone())
            expected = _with_this_draw(net, x)
        else:
            expected = net(x)
        torch.testing.assert_close(y, expected)
        assert conv.outputs.logits.grad is not None
        assert conv.outputs.logits.grad.abs().sum() > 0
    assert not training or not torch.equal(seen[0], seen[1])


def _with_this_draw(net: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    conv, fc = net[0], net[3]
    c_0, c_1, c_2 = drawn(conv.inputs), drawn(conv.outputs), drawn(fc.outputs)
    h = F.conv2d(x, masked_weight(conv.weight, c_1, c_0), conv.bias, padding=1).relu().flatten(1)
    return F.linear(h, masked_weight(fc.weight, c_2, c_1.repeat_interleave(16, 0)), fc.bias)


def test_it_compiles_with_the_default_backend():
    net = chain()
    compiled = torch.compile(net, fullgraph=True)
    x = torch.randn(4, 10)
    for _ in range(2):
        y = compiled(x)
        y.sum().backward()
        c_0, c_1, c_2 = drawn(net[0].inputs), drawn(net[0].outputs), drawn(net[2].outputs)
        h = F.linear(x, masked_weight(net[0].weight, c_1, c_0), net[0].bias).relu()
        expected = F.linear(h, masked_weight(net[2].weight, c_2, c_1), net[2].bias)
        torch.testing.assert_close(y, expected)
    net.eval()
    torch.testing.assert_close(compiled(x), net(x))


def test_autocast_computes_in_bfloat16_and_keeps_draws_and_logits_in_float32():
    net = chain()
    with torch.autocast("cpu", torch.bfloat16):
        y = net(torch.randn(3, 10))
    assert y.dtype == torch.bfloat16
    assert drawn(net[0].outputs).dtype == torch.float32
    y.float().sum().backward()
    assert net[0].outputs.logits.grad is not None
    assert net[0].outputs.logits.grad.dtype == torch.float32


def test_layers_of_low_precision_keep_their_logits_in_float32():
    layer = BlockoutLinear(6, 4, 2, dtype=torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    assert layer.outputs.logits.dtype == torch.float32
    assert layer(torch.randn(2, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_the_meta_device_gives_shapes_without_values():
    net = nn.Sequential(BlockoutConv2d(3, 8, 3, 2, device="meta"), nn.Flatten())
    assert net(torch.empty(2, 3, 6, 6, device="meta")).shape == (2, 8 * 16)
    assert all(p.is_meta for p in net.parameters())


def test_dtype_is_taken_by_all_parameters():
    layer = BlockoutLinear(6, 4, 2, dtype=torch.float64)
    assert {p.dtype for p in layer.parameters()} == {torch.float64}


def test_memberships_of_another_precision_are_promoted():
    given = Memberships.given(torch.ones(4, 2, dtype=torch.float64))
    assert BlockoutLinear(6, 4, 2, outputs=given)(torch.randn(3, 6)).dtype == torch.float32


def test_a_refused_layer_leaves_the_memberships_as_they_were():
    m = Memberships(8, 2)
    with pytest.raises(ValueError, match="needs 4 nodes as outputs"):
        BlockoutLinear(8, 4, 2, inputs=m, outputs=Memberships(5, 2))
    assert "inputs.logits" in BlockoutLinear(8, 4, 2, inputs=m).state_dict()


def test_non_finite_logits_never_reach_a_folded_network():
    layer = BlockoutLinear(4, 3, 2)
    with torch.no_grad():
        layer.outputs.logits[0, 0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        to_dense(layer)


def test_without_bias_there_is_none():
    layer = BlockoutLinear(6, 4, 2, bias=False)
    assert layer.bias is None
    assert "bias" not in layer.state_dict()
    assert torch.equal(layer(torch.zeros(1, 6)), torch.zeros(1, 4))


def test_a_layer_in_eval_mode_uses_p_although_its_neighbour_trains():
    fc2, _, fc3 = chain()
    fc3.eval()
    x = torch.randn(3, 8)
    fc2(torch.randn(3, 10))
    torch.testing.assert_close(fc3(x), F.linear(x, fc3.expected_weight(), fc3.bias))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockoutLinear(8, 4, 0), "clusters must be a whole number, at least 1, got 0"),
        (
            lambda: BlockoutLinear(8, 4, True, inputs=Memberships(8, 1), outputs=Memberships(4, 1)),
            "clusters must be a whole number, at least 1, got True",
        ),
        (lambda: BlockoutLinear(0, 4, 2), "in_features must be a whole number, at least 1, got 0"),
        (
            lambda: BlockoutLinear(4, -1, 2),
            "out_features must be a whole number, at least 1, got -1",
        ),
        (
            lambda: BlockoutLinear(8, 4, 6, inputs=Memberships(8, 4)),
            "BlockoutLinear has 6 clusters but its inputs have 4; neighbouring layers must have",
        ),
        (
            lambda: BlockoutLinear(8, 4, 2, inputs=Memberships(9, 2)),
            "needs 8 nodes as inputs but was given memberships of 9 nodes",
        ),
        (
            lambda: BlockoutLinear(8, 4, 2, outputs=Memberships(9, 2)),
            "needs 4 nodes as outputs but was given memberships of 9 nodes",
        ),
        (lambda: BlockoutLinear(8, 4, 2, features_per_node=3), "2 would be left over"),
        (
            lambda: BlockoutConv2d(0, 4, 3, 2),
            "in_channels must be a whole number, at least 1, got 0",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (BlockoutLinear(8, 4, 2), torch.zeros(3, 9)),
        (BlockoutConv2d(8, 4, 3, 2), torch.zeros(3, 9, 5, 5)),
        (BlockoutConv2d(8, 4, 3, 2), torch.zeros(8)),
        (BlockoutConv2d(8, 4, 3, 2), torch.zeros(1, 2, 8, 5, 5)),
    ],
)
def test_an_input_of_the_wrong_width_is_refused(layer, x):
    with pytest.raises(ValueError, match=r"takes 8 .* got an input of shape \("):
        layer(x)
