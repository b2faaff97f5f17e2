"""Fig. 5, and the order of its nodes."""

import numpy as np

from blockout.show.figures.masks import masks
from blockout.show.masks import example_masks, expected_mask, learned_masks, order_by_code

from .made import text_of


def test_fig_5_shows_examples_and_both_learned_layers(run):
    figure = masks([run])
    assert [axes.get_title("left") for axes in figure.axes[:5]] == [
        "(a) Dropout",
        "(b) Blockout, 4 clusters",
        "(c) DropConnect",
        "(d) learned, fc2",
        "(e) learned, classifier",
    ]
    last = figure.axes[9]
    assert last.get_xlabel() == "8 nodes of $P_{1}$" and last.get_ylabel() == "6 classes"
    assert "ordered by code" in text_of(figure)
    for column, mask in enumerate([*example_masks(), *learned_masks(run)]):
        above, below = (figure.axes[row + column].images[0].get_array() for row in (0, 5))
        assert (above == mask.as_it_is).all() and (below == mask.in_order).all()


def test_nodes_of_a_code_stand_together_and_neighbouring_codes_differ_by_one_cluster():
    codes = np.array(list(np.ndindex(2, 2, 2)), float)[np.random.default_rng(0).permutation(8)]
    p = np.repeat(codes, 3, axis=0)[np.random.default_rng(1).permutation(24)]
    ordered = p[order_by_code(p)]
    changes = np.abs(np.diff(ordered, axis=0)).sum(1)
    assert sorted(changes.tolist()) == [0] * 16 + [1] * 7
    assert ordered[0].tolist() == [1, 0, 0] and ordered[-1].tolist() == [0, 0, 0]


def test_within_a_code_the_decided_come_first_and_one_half_belongs():
    assert order_by_code(np.array([[0.6], [0.9], [0.5], [0.49], [0.1]])).tolist() == [1, 0, 2, 4, 3]


def test_expected_mask_is_the_mean_of_many_draws():
    p_out, p_in = np.random.default_rng(0).random((2, 4, 3))
    chance = np.random.default_rng(1)
    draws = [
        (chance.random((4, 3)) < p_out).astype(float) @ (chance.random((4, 3)) < p_in).T / 3
        for _ in range(20_000)
    ]
    # Standard error below 0.5 / sqrt(20000) = 0.0036; six of them in 16 cells: 3e-8 to fail.
    np.testing.assert_allclose(np.mean(draws, axis=0), expected_mask(p_out, p_in), atol=0.022)
