"""Dead nodes go, and what they gave constantly stays."""

import pytest
import torch
from torch import nn

from blockout import BlockoutConv2d, Memberships, to_branches
from blockout.compact import (
    connected_weights,
    notes,
)
from blockout.models.heads import Head

from .conftest import assert_same, layer_of, stirred


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


def test_a_constant_moves_through_normalisation_and_activation_into_a_new_bias():
    codes = torch.eye(2).repeat(2, 1)
    first = layer_of(codes, torch.tensor([[1.0, 0], [0, 0]]), bias=False)
    second = layer_of(torch.ones(2, 2), torch.ones(3, 2), bias=False)
    model = stirred(nn.Sequential(first, nn.BatchNorm1d(2), nn.Sigmoid(), second))
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
    layers = [layer_of(without_3, every), layer_of(every, every), layer_of(every, without_2)]
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *layers).double()
    small = to_branches(model, measure=False)
    assert [small[i].weight.shape[0] for i in (0, 2, 3, 4)] == [2, 2, 2, 6]
    assert_same(small, model, 0.5, torch.randn(3, 4).double())


def test_a_layer_of_which_all_inputs_are_dead_keeps_one():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.Sigmoid(), layer_of(torch.zeros(4, 2), torch.ones(2, 2))
    )
    small = to_branches(model.double())
    assert small[0].out_features == 1
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
