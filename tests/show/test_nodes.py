"""Nodes as points in a plane."""

import numpy as np
import pytest

from blockout.show.nodes import principal_components, strongest_clusters


def test_components_are_those_of_a_singular_value_decomposition():
    p = np.random.default_rng(0).random((40, 5))
    centred = p - p.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    seen = principal_components(p.astype(np.float32))
    np.testing.assert_allclose(np.abs(seen.points), np.abs(u[:, :2] * s[:2]), atol=1e-5)  # float32
    np.testing.assert_allclose(seen.shares, (s**2 / (s**2).sum())[:2], atol=1e-6)


def test_components_have_a_sign_and_survive_one_cluster_and_equal_nodes():
    p = np.random.default_rng(1).random((9, 3))
    order = np.random.default_rng(2).permutation(9)
    one, two = principal_components(p).points, principal_components(p[order]).points
    np.testing.assert_allclose(one[order], two, atol=1e-12)
    single = principal_components(np.array([[0.0], [1.0]]))
    assert single.points.tolist() == [[-0.5, 0], [0.5, 0]] and single.shares.tolist() == [1, 0]
    assert principal_components(np.full((4, 3), 0.5)).points.tolist() == [[0, 0]] * 4


def test_the_digits_of_float32_are_no_second_component_and_no_strongest_cluster():
    chance = np.random.default_rng(3)
    p = np.repeat(chance.random((30, 1)), 4, axis=1) + 1e-7 * chance.standard_normal((30, 4))
    seen = principal_components(p.astype(np.float32))
    assert (seen.points[:, 1] == 0).all() and np.ptp(seen.points[:, 0]) > 1
    assert seen.shares.tolist() == pytest.approx([1, 0], abs=1e-9) and seen.shares[1] == 0
    assert not strongest_clusters(p.astype(np.float32)).any()
