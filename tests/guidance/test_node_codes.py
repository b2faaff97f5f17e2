"""Which clusters hidden nodes take."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from blockout import BlockoutConv2d, BlockoutLinear
from blockout.guidance.node_codes import chosen_codes, codes_of_nodes


@given(
    seed=st.integers(0, 2**31), nodes=st.integers(1, 30), clusters=st.integers(1, 5),
    budget=st.floats(0.1, 6),
)  # fmt: skip
@example(seed=984, nodes=5, clusters=4, budget=1.25)  # one cluster has more of 5 than of 6
@settings(max_examples=100, deadline=None)
def test_the_budget_is_met_every_node_has_a_cluster_and_no_empty_cluster_is_used(
    seed, nodes, clusters, budget
):
    torch.manual_seed(seed)
    sizes = torch.rand(clusters) * (torch.rand(clusters) < 0.7)
    sizes[0] = 1
    code = chosen_codes(torch.rand(nodes, clusters), budget, sizes / sizes.sum())
    assert set(code.unique().tolist()) <= {0.0, 1.0}
    assert (code[:, sizes == 0] == 0).all()
    most = nodes * int((sizes > 0).sum())
    assert code.sum() == min(round(min(budget, clusters) * nodes), most)
    if budget >= 1:
        assert (code.sum(1) >= 1).all()


def test_clusters_are_as_large_as_their_share():
    torch.manual_seed(0)
    code = chosen_codes(torch.rand(100, 3), 1.5, torch.tensor([0.5, 0.3, 0.2]))
    assert code.sum(0).tolist() == [75, 45, 30]


def test_nodes_take_the_clusters_that_their_largest_weights_lead_to():
    torch.manual_seed(0)
    fc = BlockoutLinear(6, 4, clusters=2)
    classes = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    with torch.no_grad():
        fc.weight.normal_(std=0.01)
        fc.weight[:2, :3] = 1  # the first three nodes serve the first two classes
        fc.weight[2:, 3:] = -1
    code = codes_of_nodes([fc], {fc.outputs: classes}, budget=1)[fc.inputs]
    assert code.tolist() == [[1, 0]] * 3 + [[0, 1]] * 3


def test_codes_reach_back_through_convolutions_and_flattened_maps():
    torch.manual_seed(0)
    conv = BlockoutConv2d(4, 6, 3, clusters=2)
    fc = BlockoutLinear(6 * 4, 2, clusters=2, inputs=conv.outputs, features_per_node=4)
    with torch.no_grad():
        fc.weight.fill_(0.01)
        fc.weight[0, :12] = fc.weight[1, 12:] = 1  # channels 0 to 2 serve class 0
        conv.weight.fill_(0.01)
        conv.weight[:3, :2] = conv.weight[3:, 2:] = -1
    code = codes_of_nodes([conv, fc], {fc.outputs: torch.eye(2)}, budget=1)
    assert code[conv.outputs].tolist() == [[1, 0]] * 3 + [[0, 1]] * 3
    assert code[conv.inputs].tolist() == [[1, 0]] * 2 + [[0, 1]] * 2


def test_branches_are_sized_by_the_classes_they_serve_and_none_is_starved():
    torch.manual_seed(0)
    fc = BlockoutLinear(200, 20, clusters=4)
    classes = torch.zeros(20, 4)
    classes[:15, 0] = classes[15:19, 1] = classes[19:, 2] = 1  # and none in the last cluster
    sizes = codes_of_nodes([fc], {fc.outputs: classes}, budget=1)[fc.inputs].sum(0).tolist()
    assert sizes[3] == 0 and sum(sizes) == 200
    assert sizes[0] > 2.5 * sizes[1] and sizes[2] >= 200 * 0.5 / 3 * 0.8


def test_nodes_that_nobody_reads_are_divided_evenly():
    net = nn.ModuleList([BlockoutLinear(8, 10, clusters=3)])
    code = codes_of_nodes(list(net), {}, budget=1)
    assert sorted(code[net[0].outputs].sum(0).tolist()) == [3, 3, 4]


@pytest.mark.parametrize("budget", [0.01, 0.5])
def test_a_budget_below_one_leaves_nodes_without_a_cluster(budget):
    code = chosen_codes(torch.rand(100, 4), budget, torch.full((4,), 0.25))
    assert (code.sum(1) == 0).sum() == 100 - 100 * budget
