"""The compact network computes what the thresholded one computes, and nothing twice."""

from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from blockout import to_branches, to_dense
from blockout.compact import (
    Costs,
    SparseLinear,
    connected_weights,
    multiply_adds,
)

from .conftest import (
    CHEAP_CALLS,
    EXACT,
    THRESHOLDS,
    assert_same,
    chain,
    conv_chain,
    layer_of,
    masked,
    random_codes,
)

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
    model = chain(clusters, bias, norm, act, last).double()
    small = to_branches(model, threshold, measure=False, costs=costs)
    assert_same(small, model, threshold, torch.randn(4, 6).double())


@given(
    seed=st.integers(0, 10**6), clusters=st.integers(1, 4), bias=st.booleans(), act=ACTIVATIONS,
    padding=st.integers(0, 1), mode=st.sampled_from(["zeros", "reflect"]),
    threshold=st.sampled_from(THRESHOLDS), costs=COSTS,
)  # fmt: skip
def test_convolutions_and_what_reads_them_flat_compute_the_masked_dense_network(
    seed, clusters, bias, act, padding, mode, threshold, costs
):
    torch.manual_seed(seed)
    model = conv_chain(clusters, bias, act, padding, mode).double()
    small = to_branches(model, threshold, measure=False, costs=costs)
    assert_same(small, model, threshold, torch.randn(2, 2, 8, 9).double())


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
    model = (conv_chain(clusters, bias, nn.Sigmoid, 1, "zeros") if conv
             else chain(clusters, bias, True, nn.Sigmoid, "plain")).double()  # fmt: skip
    with patch("blockout.compact.layout._measured", measured):
        small = to_branches(model, 0.4, costs=costs)
    assert_same(small, model, 0.4, torch.randn(3, *((2, 8, 9) if conv else (6,))).double())


def test_at_threshold_zero_it_is_the_dense_network():
    model = conv_chain(3, True, nn.ReLU, 1, "zeros")
    small, dense = to_branches(model, 0.0), to_dense(model)
    x = torch.randn(2, 2, 8, 9)
    torch.testing.assert_close(small(x), dense(x))
    assert [type(m) for m in small.modules()] == [type(m) for m in dense.modules()]


@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.35))
def test_no_connection_is_computed_twice_and_nothing_else_is_computed(seed, share):
    torch.manual_seed(seed)
    c_in, c_out = random_codes(40, 5, share), random_codes(30, 5, share)
    model = layer_of(c_in, c_out)
    connected = c_out @ c_in.T > 0
    constant = int((~connected.any(1)).sum())  # a bias that reads one input with weight zero
    small = to_branches(model, measure=False, costs=Costs(call=0, value=0, weight=0))
    assert multiply_adds(small, torch.randn(1, 40)) == int(connected.sum()) + constant
    assert connected_weights(model, 0.5) == int(connected.sum())


@given(seed=st.integers(0, 10**6), clusters=st.integers(2, 6))
def test_disjoint_clusters_become_one_block_each_whose_neighbours_absorb_the_order(seed, clusters):
    torch.manual_seed(seed)
    codes = [torch.eye(clusters)[torch.randperm(12 * clusters) % clusters] for _ in range(3)]
    fc2, fc3 = layer_of(codes[0], codes[1]), layer_of(codes[1], codes[2])
    model = nn.Sequential(nn.Linear(4, 12 * clusters), nn.ReLU(), fc2, nn.ReLU(), fc3)
    small = to_branches(model, measure=False, costs=Costs(call=1e-12, value=1e-12))
    assert [type(block) for block in small[2].blocks] == [nn.Linear] * clusters
    assert small[2].order is None
    assert all(start is not None for start in (*small[2].starts, *small[4].starts))


def test_rare_codes_are_merged_into_blocks_with_zeros_where_that_is_cheaper():
    model = layer_of(random_codes(600), random_codes(600))
    small = to_branches(model, measure=False)
    x = torch.randn(8, 600)
    finest = to_branches(model, measure=False, costs=EXACT)
    assert 2 < len(small.blocks) < len(finest.blocks) / 2
    assert any(type(block) is SparseLinear for block in small.blocks)
    assert multiply_adds(finest, x) < multiply_adds(small, x) < multiply_adds(model, x)
    torch.testing.assert_close(small(x), masked(model, 0.5)(x), atol=1e-5, rtol=1e-4)


def test_more_codes_than_groups_are_covered():
    model = layer_of(random_codes(300, 12), random_codes(300, 12)).double()
    small = to_branches(model, measure=False, costs=EXACT)
    assert 1 < len(small.blocks) <= 65
    assert_same(small, model, 0.5, torch.randn(2, 300).double())
