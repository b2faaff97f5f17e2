"""Dead nodes go, and the constants they gave stay."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from blockout import BlockoutConv2d, BlockoutLinear, Memberships, Structure, to_branches
from blockout.compact import connected_weights, notes
from blockout.models.heads import Head

from .conftest import CHEAP_CALLS, EXACT, THRESHOLDS, assert_same, layer_of, masked, some, stirred


def _settled_head() -> Head:
    """2 of 6 inputs of FC2 are read; of its 5 outputs one is dead, one constant, one unread."""
    head = Head(3, 2, nodes=6, clusters=2)
    p0 = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0], [1, 0], [0, 0]])
    p1 = torch.tensor([[1, 0], [0, 0], [0, 1], [1, 0], [1, 1], [0, 0]])
    p2 = torch.tensor([[0, 1], [1, 1]])
    for memberships, p in zip((head.fc2.inputs, head.fc2.outputs, head.classifier.outputs),
                              (p0, p1, p2), strict=True):  # fmt: skip
        memberships.logits.data.copy_(20.0 * p - 10)
    return stirred(head)


def test_dead_nodes_go_from_the_plain_producer_and_its_normalisation_too():
    head = _settled_head().double()
    small = to_branches(head)
    assert small.fc1.weight.shape == (2, 3)
    assert small.norm1.num_features == len(small.norm1.running_var) == 2
    assert small.fc2.weight.shape == (3, 2)  # nodes 0, 3 and 4; 2 has no inputs in its cluster
    assert small.norm2.num_features == 3
    assert small.classifier.weight.shape[1] == 3
    assert_same(small, head, 0.5, torch.randn(8, 3).double())
    assert notes(small)["fc2"].endswith("3 of 6 outputs live")
    assert connected_weights(head, 0.5) == 2 * 3 + 3 * 2 + (1 + 3)  # class 0 reads node 4 only
    assert connected_weights(head, 0.0) == 6 * 3 + 6 * 6 + 2 * 6
    assert [cost.weights_after for cost in Structure.from_model(head).costs] == [3 * 2, 1 + 3]


def test_a_constant_moves_through_normalisation_and_activation_into_a_new_bias():
    codes = torch.eye(2).repeat(2, 1)
    first = layer_of(codes, torch.tensor([[1.0, 0], [0, 0], [1, 0]]), bias=False)
    second = layer_of(torch.ones(3, 2), torch.ones(3, 2), bias=False)
    model = stirred(nn.Sequential(first, nn.BatchNorm1d(3), nn.Sigmoid(), second))
    constant = torch.sigmoid(model[1](torch.zeros(1, 3)))[0, 1]
    small = to_branches(model)
    assert small[0].out_features == small[3].in_features == 2
    expected = second.expected_weight()[:, 1] * constant
    torch.testing.assert_close(small[3].bias, expected)


def test_death_spreads_forwards_and_backwards():
    """Cluster 2 breaks off at the last layer, cluster 3 at the first: all on their way die."""
    every = torch.eye(3).repeat_interleave(2, dim=0)
    without_2, without_3 = every.clone(), every.clone()
    without_2[:, 1] = 0
    without_3[:, 2] = 0
    layers = [layer_of(without_3, every), layer_of(every, every), layer_of(every, without_2)]
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *layers).double()
    small = to_branches(model, measure=False)
    assert [small[i].weight.shape[0] for i in (0, 2, 3, 4)] == [2, 2, 2, 6]
    assert_same(small, model, 0.5, torch.randn(3, 4).double())


class _Fork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        codes = torch.eye(2)
        self.a = layer_of(codes, codes)
        self.b = layer_of(codes, torch.tensor([[1.0, 0]]))
        self.c = nn.Linear(2, 1)

    def forward(self, x):
        h = self.a(x).relu()
        return self.b(h), self.c(h)


def test_a_node_stays_while_one_of_two_readers_needs_it():
    """Only the plain reader reads cluster 1."""
    model = _Fork().double().eval()
    small = to_branches(model, measure=False)
    assert small.a.out_features == small.c.in_features == 2
    x = torch.randn(3, 2).double()
    torch.testing.assert_close(small(x), masked(model, 0.5)(x))


def weights_held(small: nn.Module) -> int:
    return sum(int((p != 0).sum()) for n, p in small.named_parameters() if n.endswith("weight"))


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 8), min_size=2, max_size=5),
    clusters=st.integers(1, 4),
    empty=st.sampled_from([0.2, 0.6, 0.9]),
    threshold=st.sampled_from(THRESHOLDS[1:]),
    act=st.sampled_from([nn.ReLU, nn.Sigmoid]),
    costs=st.sampled_from([EXACT, CHEAP_CALLS]),
)
def test_what_is_left_is_what_the_structure_says_and_what_the_compact_network_holds(
    seed, sizes, clusters, empty, threshold, act, costs
):
    """Over random chains; some lose all nodes of a set, so that one must stay as a placeholder."""
    torch.manual_seed(seed)
    p = [some(nodes, clusters, empty) for nodes in sizes]
    layers = [
        BlockoutLinear(a.nodes, b.nodes, clusters, inputs=a, outputs=b)
        for a, b in itertools.pairwise(p)
    ]
    for layer in layers:
        layer.weight.data.uniform_(0.5, 1)
        layer.bias.data.normal_()
    model = nn.Sequential(*(part for layer in layers for part in (layer, act()))).double().eval()
    structure = Structure.from_model(model, threshold)
    small = to_branches(model, threshold, measure=False, costs=costs)
    assert_same(small, model, threshold, torch.randn(3, sizes[0]).double())
    left = structure.total.weights_after
    assert left == sum(cost.weights_after for cost in structure.costs)
    assert left == connected_weights(model, threshold) == weights_held(small)


def test_a_layer_of_which_all_inputs_are_dead_keeps_two():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.Sigmoid(), layer_of(torch.zeros(4, 2), torch.ones(2, 2))
    )
    small = to_branches(model.double())
    assert small[0].out_features == 2
    assert_same(small, model, 0.5, torch.randn(3, 3).double())


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
    assert_same(small, model, 0.5, torch.randn(2, 3, 5, 5).double())
