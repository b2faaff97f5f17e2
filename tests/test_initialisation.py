"""The calculation of the initial scale against enumeration of every draw."""

import itertools

import pytest
import torch

from blockout import Memberships
from blockout.initialisation import input_gram, output_second_moments


def _every_draw(p):
    """All assignments of one node with their probabilities."""
    for bits in itertools.product((0.0, 1.0), repeat=len(p)):
        c = torch.tensor(bits, dtype=torch.float64)
        yield c, torch.where(c == 1, p, 1 - p).prod()


def _memberships(nodes, k, **kind):
    return Memberships(nodes, k, probability=torch.rand(nodes, k, dtype=torch.float64), **kind)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_gram_of_free_inputs_is_the_mean_of_c_times_c(k):
    inputs = _memberships(3, k)
    by_hand = sum(
        weight * torch.outer(c, c) for p in inputs.initial for c, weight in _every_draw(p)
    )
    torch.testing.assert_close(input_gram(inputs), by_hand / 3)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_gram_of_inputs_from_a_masked_layer_weighs_draws_by_their_size(k):
    inputs = _memberships(3, k)
    root = torch.randn(k, k, dtype=torch.float64)
    inputs.profile = root @ root.T
    total = torch.zeros(k, k, dtype=torch.float64)
    for p in inputs.initial:
        draws = list(_every_draw(p))
        size = sum(w * (c @ inputs.profile @ c) for c, w in draws)
        total += sum(w * (c @ inputs.profile @ c) / size * torch.outer(c, c) for c, w in draws)
    torch.testing.assert_close(input_gram(inputs), total / 3)


@pytest.mark.parametrize("k", [1, 3])
def test_the_second_moment_of_a_mask_is_the_mean_over_draws_of_both_sides(k):
    """E[m^2] = p^4 + p^2 (1 - p^2) / k where all P are p."""
    p = 0.3
    inputs, outputs = Memberships(4, k, probability=p), Memberships(5, k, probability=p)
    moments = output_second_moments(outputs, input_gram(inputs))
    torch.testing.assert_close(moments, torch.full_like(moments, p**4 + p**2 * (1 - p**2) / k))


def test_soft_and_given_memberships_have_no_variance_of_their_own():
    inputs, outputs = _memberships(6, 3, hard=False), _memberships(5, 3, hard=False)
    mask = outputs.initial @ inputs.initial.T / 3
    expected = mask.square().mean(1)
    torch.testing.assert_close(output_second_moments(outputs, input_gram(inputs)), expected)
