"""Any model, by layer name, to Blockout and back to plain layers."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from blockout import (
    BlockoutConv2d,
    BlockoutLinear,
    DropConnectLinear,
    Memberships,
    convert,
    to_dense,
)


class ConvNet(nn.Module):
    """Everything that may stand between neighbours, as modules and as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 6, (3, 1), stride=2, dilation=(2, 1), bias=False)
        self.pool = nn.AdaptiveAvgPool2d((2, 3))
        self.fc1 = nn.Linear(36, 10)
        self.fc2 = nn.Linear(10, 5)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = self.pool(self.conv2(x).relu())
        x = x.view(x.size(0), -1)
        return self.fc2(self.drop(torch.sigmoid(self.fc1(x))))


LAYERS = ["conv1", "conv2", "fc1", "fc2"]


def _settled(model: nn.Module) -> nn.Module:
    """Running statistics that are not the neutral ones."""
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 3, 12, 12))
    return model.eval()


@given(p=st.floats(0.01, 1), k=st.integers(1, 7), seed=st.integers(0, 20))
def test_a_converted_model_computes_what_the_original_computes(p, k, seed):
    torch.manual_seed(seed)
    net = _settled(ConvNet())
    x = torch.randn(4, 3, 12, 12)
    expected = net(x)
    converted = convert(net, LAYERS, k, probability=p, learned=p < 1)
    torch.testing.assert_close(converted(x), expected, atol=1e-4, rtol=1e-3)
    assert type(converted.fc1) is BlockoutLinear
    assert type(converted.conv2) is BlockoutConv2d


def test_neighbours_are_linked_through_elementwise_pooling_and_flatten():
    net = convert(ConvNet(), LAYERS, 3)
    assert net.conv2.inputs is net.conv1.outputs
    assert net.fc1.inputs is net.conv2.outputs
    assert net.fc1.features_per_node == 6
    assert net.fc2.inputs is net.fc1.outputs
    assert sum("logits" in name for name in net.state_dict()) == 5


def test_layers_with_a_plain_one_between_them_are_not_linked():
    net = convert(ConvNet(), ["conv1", "fc1"], 3)
    assert net.fc1.inputs is not net.conv1.outputs


def test_several_consumers_share_the_nodes_of_one_producer():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 3)

        def forward(self, x):
            h = self.stem(x).relu()
            return self.left(h), self.right(h)

    net = convert(Fork(), ["right", "stem", "left"], 2)
    assert net.left.inputs is net.stem.outputs is net.right.inputs


def test_the_original_is_left_as_it_was():
    net = ConvNet().train()
    before = copy.deepcopy(net)
    converted = convert(net, LAYERS, 3)
    with torch.no_grad():
        for p in converted.parameters():
            p.add_(1)
    assert type(net.fc1) is nn.Linear
    for a, b in zip(net.state_dict().values(), before.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert net.training


def test_mode_dtype_and_frozen_weights_are_kept():
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double().eval()
    net[0].weight.requires_grad_(False)
    converted = convert(net, ["0", "1"], 2)
    assert not converted.training
    assert not converted[0].training
    assert not converted[0].weight.requires_grad
    assert converted[1].weight.requires_grad
    assert converted[0].weight.dtype == converted[0].outputs.logits.dtype == torch.float64


def test_variants_are_passed_on():
    converted = convert(nn.Sequential(nn.Linear(4, 3)), ["0"], 2, hard=False, learned=False)
    assert not converted[0].inputs.hard
    assert not converted[0].inputs.learned


def test_the_model_itself_may_be_the_layer():
    plain = nn.Linear(4, 3)
    converted = convert(plain, [""], 2).eval()
    x = torch.randn(2, 4)
    torch.testing.assert_close(converted(x), plain(x))
    assert type(to_dense(converted)) is nn.Linear


def test_a_layer_that_stands_in_two_places_is_replaced_in_both():
    shared = nn.Linear(4, 4)
    net = nn.ModuleDict({"a": shared, "b": shared})
    converted = convert(net, ["b"], 2)
    assert converted["a"] is converted["b"]
    assert type(converted["a"]) is BlockoutLinear


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = self.a(x).relu()
        return self.c((h + self.b(h)).relu())


class Undecided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(self.a(x)) if x.sum() > 0 else self.a(x)


class Transposed(Undecided):
    def forward(self, x):
        return self.b(self.a(x).T)


class Twice(Undecided):
    def forward(self, x):
        return self.b(self.a(self.a(x)))


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(self.a(x).relu())


class ReadsWeights(Undecided):
    def forward(self, x):
        return self.b(F.linear(x, self.a.weight))


class AddsInPlace(Residual):
    def forward(self, x):
        h = self.a(x)
        h.add_(self.b(x))
        return self.c(h)


class PoolsFeatures(nn.Module):
    """Pooling over the last dimension of a linear layer's output joins its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(F.max_pool2d(self.a(x), 2))


@pytest.mark.parametrize(
    ("model", "layers", "message"),
    [
        (ConvNet(), [], "layers must name at least one layer"),
        (ReadsWeights(), ["a", "b"], "a cannot be converted: the model reads its weight directly"),
        (ReadsWeights(), ["a"], "a cannot be converted: the model reads its weight directly"),
        (AddsInPlace(), ["a", "b", "c"], "the nodes of a and b are joined before it"),
        (PoolsFeatures(), ["a", "b"], "max_pool2d stands between it and a"),
        (ConvNet(), ["fc9"], "the model has no layer 'fc9'; there is fc2, fc1"),
        (ConvNet(), ["norm1"], "norm1 cannot be converted: it is a BatchNorm2d"),
        (nn.Sequential(nn.Conv2d(4, 4, 1, groups=2)), ["0"], "it has groups=2"),
        (nn.Sequential(BlockoutLinear(4, 4, 2)), ["0"], "it is a Blockout layer already"),
        (
            nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))),
            ["0"],
            "not subclasses or parametrised layers",
        ),
        (nn.TransformerEncoderLayer(8, 2, 16), ["linear1"], "TransformerEncoderLayer reads its"),
        (nn.MultiheadAttention(8, 2), ["out_proj"], "NonDynamicallyQuantizableLinear"),
        (Residual(), ["a", "b", "c"], "cannot tell whose nodes c reads: the nodes of a and b are"),
        (Residual(), ["b", "c"], "the nodes of a layer that is not converted and b are joined"),
        (Undecided(), ["a", "b"], "cannot follow the forward of Undecided"),
        (Transposed(), ["a", "b"], r"stands between it and a. Write links=\{'b': 'producer'\}"),
        (Twice(), ["a", "b"], "it is called several times on different nodes"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(6, 2)),
            ["0", "2"],
            "2 reads 6 features, which are not the 3 nodes of its producer",
        ),
        (ChannelsLast(), ["a", "b"], "it does not read the channels of a as its inputs"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_reason(model, layers, message):
    with pytest.raises(ValueError, match=message):
        convert(model, layers, 2)


def test_tied_weights_and_hooks_are_refused():
    tied = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "out": nn.Linear(4, 9, bias=False)})
    tied["out"].weight = tied["embedding"].weight
    with pytest.raises(ValueError, match="its weight is tied to that of embedding"):
        convert(tied, ["out"], 2)
    hooked = nn.Sequential(nn.Linear(4, 4))
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="it has hooks that would be lost"):
        convert(hooked, ["0"], 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clusters": 0}, "clusters must be a whole number, at least 1, got 0"),
        ({"probability": 1e-30}, "are too large for torch.float32; choose a larger probability"),
        ({"probability": 0.0}, r"probability must lie in \(0, 1\], got 0"),
        ({"links": {"fc7": None}}, "links names 'fc7', which is not among layers"),
        ({"links": {"fc1": "fc2", "fc2": "fc1", "conv1": None, "conv2": None}}, "in a circle"),
        ({"links": {"fc2": "conv1"}}, "fc2 reads 10 features, which are not the 8 nodes"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        convert(ConvNet(), LAYERS, **{"clusters": 2, **arguments})


class Block(nn.Module):
    """A part with weights and control flow of its own, which tracing cannot enter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else x


def test_parts_without_named_layers_need_not_be_followed():
    net = nn.Sequential(Block(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    converted = convert(net, ["1", "3"], 2)
    assert converted[3].inputs is converted[1].outputs


def test_plain_layers_inside_blocks_part_the_nodes():
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    converted = convert(net, ["0", "2"], 2)
    assert converted[2].inputs is not converted[0].outputs


def test_a_scale_for_each_channel_keeps_the_nodes():
    class Scaled(Undecided):
        def __init__(self):
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.b(self.a(x) * self.gamma)

    converted = convert(Scaled(), ["a", "b"], 2)
    assert converted.b.inputs is converted.a.outputs


def test_tracing_leaves_no_trace_in_the_model():
    class Remembers(Undecided):
        calls = 0

        def forward(self, x):
            self.calls += 1
            self.last = self.a(x)
            return self.b(self.last)

    net = Remembers()
    converted = convert(net, ["a", "b"], 2)
    assert (net.calls, converted.calls) == (0, 0)
    assert not hasattr(converted, "last")


def test_links_decide_where_the_graph_does_not():
    net = convert(Undecided(), ["a", "b"], 2, links={"a": None, "b": "a"})
    assert net.b.inputs is net.a.outputs
    net = convert(Residual(), ["a", "b", "c"], 2, links={"c": None})
    assert net.b.inputs is net.a.outputs
    assert net.c.inputs not in (net.a.outputs, net.b.outputs)


# --- to_dense -----------------------------------------------------------------------------------


def _trained(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Memberships) and module.learned:
                module.logits.normal_(0, 2)
    return model.eval()


@pytest.mark.parametrize("variant", [{}, {"hard": False}, {"learned": False}])
def test_dense_layers_compute_the_inference_network_of_equation_5(variant):
    net = _trained(_settled(convert(ConvNet(), LAYERS, 3, **variant)))
    before = copy.deepcopy(net.state_dict())
    dense = to_dense(net)
    x = torch.randn(4, 3, 12, 12)
    torch.testing.assert_close(dense(x), net(x))
    kinds = {type(m).__module__.split(".")[0] for m in dense.modules() if m is not dense}
    assert kinds == {"torch"}
    assert list(dense.state_dict()) == list(ConvNet().state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True)
    )
    assert type(net.fc1) is BlockoutLinear


def test_dense_is_idempotent_and_shares_no_memory_with_its_source():
    net = _trained(convert(ConvNet(), LAYERS, 3))
    dense = to_dense(net)
    again = to_dense(dense)
    for a, b in zip(dense.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        for p in again.parameters():
            p.add_(1)
    x = torch.randn(2, 3, 12, 12)
    torch.testing.assert_close(dense(x), net(x))


def test_memberships_registered_by_hand_do_not_stay_behind():
    net = nn.Module()
    net.shared = Memberships(6, 2)
    net.fc = BlockoutLinear(4, 6, 2, outputs=net.shared)
    dense = to_dense(net)
    assert [type(m).__name__ for m in dense.modules()] == ["Module", "Linear"]


def test_a_dense_dropconnect_layer_is_the_activation_of_the_mean_and_says_so():
    layer = DropConnectLinear(6, 4, keep=0.7, activation=nn.ReLU())
    x = torch.randn(3, 6)
    with pytest.warns(UserWarning, match="so outputs differ"):
        dense = to_dense(layer)
    expected = F.linear(x, layer.weight * 0.7, layer.bias).relu()
    torch.testing.assert_close(dense(x), expected)


def test_a_dense_dropconnect_layer_without_activation_is_exact():
    layer = DropConnectLinear(6, 4, keep=0.7).eval()
    x = torch.randn(3, 6)
    torch.testing.assert_close(to_dense(layer)(x), layer(x))
