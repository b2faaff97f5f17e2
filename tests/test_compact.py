"""The compact network computes what the thresholded one computes, with less."""

import copy
import itertools
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from blockout import BlockoutConv2d, BlockoutLinear, Memberships, to_branches, to_dense
from blockout.compact import (
    Branches,
    Costs,
    SparseConv2d,
    SparseLinear,
    connected_weights,
    multiply_adds,
    notes,
)
from blockout.layers import BlockoutLayer
from blockout.models.heads import Head

EXACT = Costs(call=0, value=0)
"""Every merging costs, so that blocks hold the connections and nothing else."""
CHEAP_CALLS = Costs(call=1e-9, multiply_add=1e-10, weight=1e-10, value=1e-10)
"""Some codes are merged, some not, in layers of a few nodes."""
THRESHOLDS = [0.0, 0.3, 0.5, 0.8, 1.0]


def _masked(model: nn.Module, threshold: float) -> nn.Module:
    """The reference: Eq. 5's weights, and zero wherever no cluster is shared, pair by pair."""
    net = to_dense(model)
    for name, layer in model.named_modules():
        if isinstance(layer, BlockoutLayer):
            f = layer.features_per_node
            weight = net.get_submodule(name).weight.data
            for (i, a), (j, b) in itertools.product(
                enumerate((layer.outputs.probabilities >= threshold).tolist()),
                enumerate((layer.inputs.probabilities >= threshold).tolist()),
            ):
                if not any(p and q for p, q in zip(a, b, strict=True)):
                    weight[i, j * f : (j + 1) * f] = 0
    return net.eval()


def _some(nodes: int, clusters: int, empty: float = 0.3) -> Memberships:
    """Memberships in which codes differ, repeat and overlap, and some nodes belong nowhere."""
    p = torch.rand(nodes, clusters) * (torch.rand(nodes, 1) > empty)
    return Memberships(nodes, clusters, probability=p, learned=False)


def _stirred(net: nn.Module) -> nn.Module:
    """Normalisation that is not neutral, in eval mode."""
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            for values in (norm.weight.data, norm.bias.data, norm.running_mean):
                values.normal_()
            norm.running_var.uniform_(0.5, 2)
    return net.eval()


def _chain(clusters: int, bias: bool, norm: bool, act: type[nn.Module], last: str) -> nn.Module:
    """A plain layer, two Blockout layers and what may stand between, behind and at the end."""
    p = [_some(n, clusters) for n in (9, 8, 5)]
    parts = [nn.Linear(6, 9, bias=bias)]
    parts += [nn.BatchNorm1d(9)] * norm + [act()]
    parts += [BlockoutLinear(9, 8, clusters, inputs=p[0], outputs=p[1], bias=bias)]
    parts += [nn.BatchNorm1d(8)] * norm + [act(), nn.Dropout(0.5)]
    parts += [BlockoutLinear(8, 5, clusters, inputs=p[1], outputs=p[2], bias=bias)]
    parts += {"": [], "plain": [act(), nn.Linear(5, 3, bias=bias)], "mixed": [nn.LayerNorm(5)]}[
        last
    ]
    return _stirred(nn.Sequential(*parts))


def _conv_chain(clusters: int, bias: bool, act: type[nn.Module], padding: int, mode) -> nn.Module:
    """Channels as nodes, through pooling and flatten to linear nodes."""
    p = [_some(n, clusters) for n in (4, 6, 5, 4)]
    geometry = {"padding": padding, "padding_mode": mode, "bias": bias}
    return _stirred(
        nn.Sequential(
            nn.Conv2d(2, 4, 1, bias=bias),
            act(),
            BlockoutConv2d(4, 6, 3, clusters, inputs=p[0], outputs=p[1], **geometry),
            nn.BatchNorm2d(6),
            act(),
            nn.MaxPool2d(2),
            BlockoutConv2d(6, 5, (1, 3), clusters, inputs=p[1], outputs=p[2], stride=(1, 2)),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.BatchNorm1d(20),
            act(),
            BlockoutLinear(20, 4, clusters, inputs=p[2], outputs=p[3], features_per_node=4),
        )
    )


def _assert_same(small: nn.Module, model: nn.Module, threshold: float, x: torch.Tensor) -> None:
    with torch.no_grad():
        expected = _masked(model, threshold)(x)
        # sums in another order, in float64: a few thousand roundings of 1e-16 at most
        torch.testing.assert_close(small(x), expected, rtol=1e-9, atol=1e-10)


ACTIVATIONS = st.sampled_from([nn.ReLU, nn.Sigmoid, nn.GELU, nn.Identity])
COSTS = st.sampled_from([EXACT, CHEAP_CALLS, Costs()])


@given(
    seed=st.integers(0, 10**6), clusters=st.integers(1, 5), bias=st.booleans(),
    norm=st.booleans(), act=ACTIVATIONS, last=st.sampled_from(["", "plain", "mixed"]),
    threshold=st.sampled_from(THRESHOLDS), costs=COSTS,
)  # fmt: skip
def test_a_chain_of_linear_layers_computes_the_masked_dense_network(
    seed, clusters, bias, norm, act, last, threshold, costs
):
    torch.manual_seed(seed)
    model = _chain(clusters, bias, norm, act, last).double()
    small = to_branches(model, threshold, measure=False, costs=costs)
    _assert_same(small, model, threshold, torch.randn(4, 6).double())


@given(
    seed=st.integers(0, 10**6), clusters=st.integers(1, 4), bias=st.booleans(), act=ACTIVATIONS,
    padding=st.integers(0, 1), mode=st.sampled_from(["zeros", "reflect"]),
    threshold=st.sampled_from(THRESHOLDS), costs=COSTS,
)  # fmt: skip
def test_convolutions_and_what_reads_them_flat_compute_the_masked_dense_network(
    seed, clusters, bias, act, padding, mode, threshold, costs
):
    torch.manual_seed(seed)
    model = _conv_chain(clusters, bias, act, padding, mode).double()
    small = to_branches(model, threshold, measure=False, costs=costs)
    _assert_same(small, model, threshold, torch.randn(2, 2, 8, 9).double())


@given(
    seed=st.integers(0, 10**6), clusters=st.integers(2, 5), conv=st.booleans(),
    bias=st.booleans(), which=st.integers(0, 5), costs=COSTS,
)  # fmt: skip
def test_every_layout_that_may_be_chosen_computes_the_same(
    seed, clusters, conv, bias, which, costs
):
    """Whatever the measurement says is fastest, the blocks that are summed among them."""

    def measured(modules, example):
        return [1.0 + (i != min(which, len(modules) - 1)) for i in range(len(modules))]

    torch.manual_seed(seed)
    model = (_conv_chain(clusters, bias, nn.Sigmoid, 1, "zeros") if conv
             else _chain(clusters, bias, True, nn.Sigmoid, "plain")).double()  # fmt: skip
    with patch("blockout.compact.layout._measured", measured):
        small = to_branches(model, 0.4, costs=costs)
    _assert_same(small, model, 0.4, torch.randn(3, *((2, 8, 9) if conv else (6,))).double())


def _layer(c_in: torch.Tensor, c_out: torch.Tensor, bias: bool = True) -> BlockoutLinear:
    memberships = {"inputs": Memberships.given(c_in), "outputs": Memberships.given(c_out)}
    return BlockoutLinear(len(c_in), len(c_out), c_in.shape[1], bias=bias, **memberships).eval()


def _random_codes(nodes: int, clusters: int = 6, share: float = 0.25) -> torch.Tensor:
    return (torch.rand(nodes, clusters) < share).float()


def test_at_threshold_zero_it_is_the_dense_network():
    model = _conv_chain(3, True, nn.ReLU, 1, "zeros")
    small, dense = to_branches(model, 0.0), to_dense(model)
    x = torch.randn(2, 2, 8, 9)
    torch.testing.assert_close(small(x), dense(x))
    assert [type(m) for m in small.modules()] == [type(m) for m in dense.modules()]


@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.35))
def test_no_connection_is_computed_twice_and_nothing_else_is_computed(seed, share):
    torch.manual_seed(seed)
    c_in, c_out = _random_codes(40, 5, share), _random_codes(30, 5, share)
    model = _layer(c_in, c_out)
    connected = c_out @ c_in.T > 0
    constant = int((~connected.any(1)).sum())  # a bias that reads one input with weight zero
    small = to_branches(model, measure=False, costs=Costs(call=0, value=0, weight=0))
    assert multiply_adds(small, torch.randn(1, 40)) == int(connected.sum()) + constant
    assert connected_weights(model, 0.5) == int(connected.sum())


@given(seed=st.integers(0, 10**6), clusters=st.integers(2, 6))
def test_disjoint_clusters_become_one_block_each_whose_neighbours_absorb_the_order(seed, clusters):
    torch.manual_seed(seed)
    codes = [torch.eye(clusters)[torch.randperm(12 * clusters) % clusters] for _ in range(3)]
    fc2, fc3 = _layer(codes[0], codes[1]), _layer(codes[1], codes[2])
    model = nn.Sequential(nn.Linear(4, 12 * clusters), nn.ReLU(), fc2, nn.ReLU(), fc3)
    small = to_branches(model, measure=False, costs=Costs(call=1e-12, value=1e-12))
    assert [type(block) for block in small[2].blocks] == [nn.Linear] * clusters
    assert small[2].order is None
    assert all(start is not None for start in (*small[2].starts, *small[4].starts))


def test_rare_codes_are_merged_into_blocks_with_zeros_where_that_is_cheaper():
    model = _layer(_random_codes(600), _random_codes(600))
    small = to_branches(model, measure=False)
    x = torch.randn(8, 600)
    finest = to_branches(model, measure=False, costs=EXACT)
    assert 2 < len(small.blocks) < len(finest.blocks) / 2
    assert any(type(block) is SparseLinear for block in small.blocks)
    assert multiply_adds(finest, x) < multiply_adds(small, x) < multiply_adds(model, x)
    torch.testing.assert_close(small(x), _masked(model, 0.5)(x), atol=1e-5, rtol=1e-4)


def test_more_codes_than_groups_are_covered():
    model = _layer(_random_codes(300, 12), _random_codes(300, 12)).double()
    small = to_branches(model, measure=False, costs=EXACT)
    assert 1 < len(small.blocks) <= 65
    _assert_same(small, model, 0.5, torch.randn(2, 300).double())


# --- the dead -----------------------------------------------------------------------------------


def _settled_head() -> Head:
    """2 of 6 inputs of FC2 are read; of its 5 outputs one is dead, one constant, one unread."""
    head = Head(3, 2, nodes=6, clusters=2)
    p0 = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0], [1, 0], [0, 0]])
    p1 = torch.tensor([[1, 0], [0, 0], [0, 1], [1, 0], [1, 1], [0, 0]])
    p2 = torch.tensor([[0, 1], [1, 1]])
    for memberships, p in zip((head.fc2.inputs, head.fc2.outputs, head.classifier.outputs),
                              (p0, p1, p2), strict=True):  # fmt: skip
        memberships.logits.data.copy_(20.0 * p - 10)
    return _stirred(head)


def test_dead_nodes_go_from_the_plain_producer_and_its_normalisation_too():
    head = _settled_head().double()
    small = to_branches(head)
    assert small.fc1.weight.shape == (2, 3)
    assert small.norm1.num_features == len(small.norm1.running_var) == 2
    assert small.fc2.weight.shape == (3, 2)  # nodes 0, 3 and 4; 2 has no inputs in its cluster
    assert small.norm2.num_features == 3
    assert small.classifier.weight.shape[1] == 3
    _assert_same(small, head, 0.5, torch.randn(8, 3).double())
    assert notes(small)["fc2"].endswith("3 of 6 outputs live")
    assert connected_weights(head, 0.5) == 2 * 3 + 3 * 2 + (1 + 3)  # class 0 reads node 4 only
    assert connected_weights(head, 0.0) == 6 * 3 + 6 * 6 + 2 * 6


def test_a_constant_moves_through_normalisation_and_activation_into_a_new_bias():
    codes = torch.eye(2).repeat(2, 1)
    first = _layer(codes, torch.tensor([[1.0, 0], [0, 0]]), bias=False)
    second = _layer(torch.ones(2, 2), torch.ones(3, 2), bias=False)
    model = _stirred(nn.Sequential(first, nn.BatchNorm1d(2), nn.Sigmoid(), second))
    constant = torch.sigmoid(model[1](torch.zeros(1, 2)))[0, 1]
    small = to_branches(model)
    assert small[0].out_features == small[3].in_features == 1
    expected = second.expected_weight()[:, 1] * constant
    torch.testing.assert_close(small[3].bias, expected)


def test_death_spreads_forwards_and_backwards():
    """Cluster 2 breaks off at the last layer, cluster 3 at the first: all on their way die."""
    every = torch.eye(3).repeat_interleave(2, dim=0)
    without_2, without_3 = every.clone(), every.clone()
    without_2[:, 1] = 0
    without_3[:, 2] = 0
    layers = [_layer(without_3, every), _layer(every, every), _layer(every, without_2)]
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *layers).double()
    small = to_branches(model, measure=False)
    assert [small[i].weight.shape[0] for i in (0, 2, 3, 4)] == [2, 2, 2, 6]
    _assert_same(small, model, 0.5, torch.randn(3, 4).double())


def test_a_layer_of_which_all_inputs_are_dead_keeps_one():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.Sigmoid(), _layer(torch.zeros(4, 2), torch.ones(2, 2))
    )
    small = to_branches(model.double())
    assert small[0].out_features == 1
    _assert_same(small, model, 0.5, torch.randn(3, 3).double())


@pytest.mark.parametrize(
    ("padding", "mode", "act", "channels"),
    [
        (0, "zeros", nn.Sigmoid, 2),  # a constant map: folded
        (1, "reflect", nn.Sigmoid, 2),
        (1, "zeros", nn.Sigmoid, 3),  # its border is zero, its inside is not: stays
        (1, "zeros", nn.ReLU, 2),  # constant -1 before, zero after: folded
    ],
)
def test_a_constant_channel_is_folded_only_where_that_is_exact(padding, mode, act, channels):
    everyone, last_is_dead = torch.ones(3, 1), torch.tensor([[1.0], [1], [0]])
    dead = {"inputs": Memberships.given(everyone), "outputs": Memberships.given(last_is_dead)}
    first = BlockoutConv2d(3, 3, 1, 1, **dead)
    first.bias.data[2] = -1
    reads = {"inputs": Memberships.given(everyone), "outputs": Memberships.given(everyone)}
    second = BlockoutConv2d(3, 3, 3, 1, padding=padding, padding_mode=mode, **reads)
    model = nn.Sequential(first, act(), second).double().eval()
    small = to_branches(model, measure=False)
    assert small[2].in_channels == channels
    _assert_same(small, model, 0.5, torch.randn(2, 3, 5, 5).double())


# --- what is not ours to move -------------------------------------------------------------------


class _Net(nn.Module):
    """Two Blockout layers in the middle of something."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.a = BlockoutLinear(6, 6, 3, inputs=_some(6, 3), outputs=_some(6, 3))
        self.b = BlockoutLinear(6, 6, 3, inputs=self.a.outputs, outputs=_some(6, 3))
        self.gamma = nn.Parameter(torch.randn(6))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.b(self.a(self.stem(x).sigmoid()).sigmoid())


class _Residual(_Net):
    def forward(self, x):
        h = self.stem(x).relu()
        return self.b((h + self.a(h)).sigmoid())


class _Mixed(_Net):
    def forward(self, x):
        return self.b(F.layer_norm(self.a(self.stem(x).softmax(-1)), (6,)))


class _Twice(_Net):
    def forward(self, x):
        return self.b(self.a(self.a(self.stem(x).sigmoid()).sigmoid()))


class _NormTwice(_Net):
    def forward(self, x):
        return self.b(self.norm(self.a(self.norm(self.stem(x)))))


class _Scaled(_Net):
    def forward(self, x):
        return self.b((self.a(self.stem(x)) * self.gamma).sigmoid())


class _Shown(_Net):
    def forward(self, x):
        h = self.a(self.stem(x).sigmoid())
        return self.b(h.sigmoid()), h


class _Control(_Net):
    def forward(self, x):
        h = self.a(self.stem(x))
        return self.b(h.sigmoid()) if h.sum() < 1e9 else h


class _InPlace(_Net):
    def forward(self, x):
        h = self.a(self.stem(x))
        h.sigmoid_()
        return self.b(h)


class _Width(_Net):
    def forward(self, x):
        return self.b(self.a(self.stem(x)).sigmoid().view(-1, 6))


class _ReadsWeight(_Net):
    def forward(self, x):
        h = self.stem(x) + F.linear(x, self.stem.weight)
        return self.b(self.a(h.sigmoid()))


class _Fork(_Net):
    def forward(self, x):
        h = self.a(self.stem(x).sigmoid()).sigmoid()
        return self.b(h), self.gamma + F.relu(h)


@pytest.mark.parametrize(
    "kind",
    [_Net, _Residual, _Mixed, _Twice, _NormTwice, _Scaled, _Shown, _Control, _InPlace, _Width,
     _ReadsWeight, _Fork],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_whatever_stands_around_the_layers_outputs_are_the_same(kind, seed):
    torch.manual_seed(seed)
    model = _stirred(kind()).double()
    small = to_branches(model, measure=False, costs=EXACT)
    x = torch.randn(5, 4).double()
    torch.testing.assert_close(small(x), _masked(model, 0.5)(x), rtol=1e-9, atol=1e-10)
    rows = sum(len(b.weight) for b in (getattr(small.a, "blocks", None) or [small.a]))
    assert rows == 6 or kind in (_Net, _ReadsWeight)


def test_leading_dimensions_and_several_readers():
    class Fork(_Net):
        def __init__(self):
            super().__init__()
            self.c = nn.Linear(6, 2)

        def forward(self, x):
            h = self.a(self.stem(x).relu()).sigmoid()
            return self.b(h), self.c(h)

    model = Fork().double().eval()
    small = to_branches(model, measure=False, costs=EXACT)
    x = torch.randn(2, 3, 4).double()
    torch.testing.assert_close(small(x), _masked(model, 0.5)(x))
    assert small.c.in_features < 6


def test_a_flattened_map_with_memberships_of_its_own_stays_in_place():
    conv = nn.Conv2d(2, 3, 1)
    fc = BlockoutLinear(12, 5, 3, inputs=_some(12, 3), outputs=_some(5, 3))
    model = nn.Sequential(conv, nn.Flatten(), fc).double().eval()
    small = to_branches(model, measure=False, costs=EXACT)
    assert small[0].out_channels == 3
    _assert_same(small, model, 0.5, torch.randn(2, 2, 2, 2).double())


# --- a network like any other -------------------------------------------------------------------


def _blocky() -> nn.Module:
    """A head whose FC2 becomes gathered, contiguous and zero-padded blocks."""
    torch.manual_seed(3)
    fc2 = _layer(_random_codes(60, 4), _random_codes(50, 4))
    model = nn.Sequential(nn.Linear(5, 60), nn.ReLU(), fc2, nn.BatchNorm1d(50), nn.Tanh(),
                          nn.Linear(50, 3))  # fmt: skip
    small = to_branches(_stirred(model), measure=False, costs=CHEAP_CALLS)
    kinds = {type(block) for block in small[2].blocks}
    assert kinds == {nn.Linear, SparseLinear}
    assert None in small[2].starts
    return small


def test_the_original_is_left_as_it_was_and_gives_the_same_again():
    model = _conv_chain(3, True, nn.ReLU, 1, "zeros").train()
    before = copy.deepcopy(model)
    small = to_branches(model, 0.5, measure=False, costs=EXACT)
    with torch.no_grad():
        for tensor in small.state_dict().values():
            tensor.add_(1)
    assert repr(model) == repr(before)
    assert model.training
    assert all(map(torch.equal, model.state_dict().values(), before.state_dict().values()))
    again = to_branches(model, 0.5, measure=False, costs=EXACT)
    assert list(again.state_dict()) == list(small.state_dict())


def test_mode_dtype_and_frozen_weights_are_kept():
    model = _chain(3, True, True, nn.ReLU, "plain").bfloat16().train()
    model[3].weight.requires_grad_(False)
    model[1].eval()
    small = to_branches(model, measure=False, costs=EXACT)
    assert {p.dtype for p in small.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for n, p in small[3].named_parameters() if "weight" in n)
    assert small[7].training
    assert not small[1].training


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_fine_tuning_trains_what_is_there_and_leaves_zeros_zero(optimiser):
    small = _blocky().train()
    momentum = {"momentum": 0.9} if optimiser is torch.optim.SGD else {}
    optimizer = optimiser(small.parameters(), lr=0.05, weight_decay=1e-3, **momentum)
    zeros = {name: p == 0 for name, p in small.named_parameters() if "weight" in name}
    before = {name: p.detach().clone() for name, p in small.named_parameters()}
    x, y = torch.randn(64, 5), torch.randint(3, (64,))
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(small(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    assert sum(int(zero.sum()) for zero in zeros.values()) > 40
    for name, zero in zeros.items():
        p = small.get_parameter(name)
        assert torch.all(p[zero] == 0)
        assert not torch.any(p[~zero] == before[name][~zero])


def test_convolutions_keep_their_zeros_as_well():
    conv = SparseConv2d(2, 1, 3).train()
    conv.weight.data[0, 1] = 0
    conv(torch.randn(1, 2, 4, 4)).square().sum().backward()
    assert torch.all(conv.weight.grad[0, 1] == 0)
    assert torch.all(conv.weight.grad[0, 0] != 0)


def test_it_can_be_copied_saved_and_loaded():
    small = _blocky().eval()
    twin = copy.deepcopy(small)
    x = torch.randn(4, 5)
    assert torch.equal(twin(x), small(x))
    assert notes(twin) == notes(small)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    twin.load_state_dict(small.state_dict())
    assert torch.equal(twin(x), small(x))


@pytest.mark.parametrize("conv", [False, True])
def test_exported_programs_take_any_batch(conv):
    small, size = (_blocky().eval(), (5,)) if not conv else (None, (2, 8, 9))
    if small is None:
        model = _conv_chain(3, True, nn.ReLU, 1, "zeros")
        small = to_branches(model, 0.5, measure=False, costs=EXACT)
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(small, (torch.randn(3, *size),), dynamic_shapes=({0: batch},))
    for count in (2, 7):
        x = torch.randn(count, *size)
        torch.testing.assert_close(program.module()(x), small(x))


@pytest.mark.filterwarnings("ignore")  # of the exporter's own making
def test_onnx_computes_the_same(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    small = _blocky().eval()
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.onnx.export(
        small, (torch.randn(3, 5),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    program.save(tmp_path / "small.onnx")
    session = runtime.InferenceSession(tmp_path / "small.onnx")
    for count in (1, 7):
        x = torch.randn(count, 5)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), small(x), atol=1e-5, rtol=1e-4)


# --- never slower than dense --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "dense", "word"),
    [
        ([1.0, 0.5, 0.7], False, "measured 2.0 times as fast as dense"),
        ([1.0, 0.85, 1.2], True, "would not be worth it; measured 1.2 times as fast as dense"),
        ([1.0, 3.0, 2.0], True, "would not be worth it; measured 1.0 times as fast as dense"),
    ],
)
def test_the_measurement_decides_and_says_so(monkeypatch, seconds, dense, word):
    shapes = []

    def measured(modules, example):
        shapes.append(tuple(example.shape))
        return seconds[: len(modules)] + [9.0] * (len(modules) - len(seconds))

    monkeypatch.setattr("blockout.compact.layout._measured", measured)
    model = _layer(_random_codes(64, 4), _random_codes(64, 4))
    small = to_branches(model, batch_size=5)
    assert isinstance(small, SparseLinear if dense else Branches)
    assert notes(small)[""].endswith(word)
    assert shapes == [(5, 64)]
    x = torch.randn(2, 64)
    torch.testing.assert_close(small(x), _masked(model, 0.5)(x))


def test_small_layers_stay_dense_and_large_ones_do_not_by_the_cost_model():
    for nodes, kind in ((64, SparseLinear), (1024, Branches)):
        codes = torch.eye(4).repeat_interleave(nodes // 4, dim=0)
        small = to_branches(_layer(codes, codes), measure=False, batch_size=64)
        assert type(small) is kind
    single = to_branches(_layer(codes, codes), measure=False, batch_size=1)
    assert type(single) is Branches


def test_a_real_measurement_takes_the_branches_of_a_large_layer():
    codes = torch.eye(8).repeat_interleave(128, dim=0)
    small = to_branches(_layer(codes, codes), batch_size=128)
    assert len(small.blocks) == 8  # 5 to 8 times as fast as dense on any machine we saw
    assert "8 blocks hold 12 % of the connections; measured" in small.note


def test_an_example_says_how_large_maps_are(monkeypatch):
    seen = []

    def measured(modules, example):
        seen.append(tuple(example.shape))
        return [1.0] * len(modules)

    monkeypatch.setattr("blockout.compact.layout._measured", measured)
    torch.manual_seed(1)
    model = _conv_chain(4, True, nn.ReLU, 1, "zeros")
    to_branches(model, batch_size=3, example=torch.randn(1, 2, 8, 9))
    assert {shape[:1] + shape[2:] for shape in seen} == {(3, 8, 9), (3, 4, 4), (3,)}
    seen.clear()
    to_branches(model, batch_size=3)
    assert {shape[:1] + shape[2:] for shape in seen} == {(3, 16, 16), (3,)}


def test_multiply_adds_count_every_position():
    conv = nn.Conv2d(2, 3, 3, padding=1)
    assert multiply_adds(conv, torch.randn(1, 2, 5, 7)) == 5 * 7 * 2 * 3 * 9
    assert multiply_adds(nn.Linear(4, 3), torch.randn(2, 5, 4)) == 10 * 12
    layer = BlockoutLinear(4, 3, 2).train()
    assert multiply_adds(layer, torch.randn(1, 4)) == 12
    assert layer.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 1.5}, r"threshold must lie in \[0, 1\], as memberships do, got 1.5"),
        ({"threshold": -0.1}, "got -0.1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        to_branches(_layer(torch.ones(2, 1), torch.ones(2, 1)), **arguments)


def test_a_model_without_blockout_layers_is_refused():
    with pytest.raises(ValueError, match="Sequential has no Blockout layers to compact"):
        to_branches(nn.Sequential(nn.Linear(2, 2)))
