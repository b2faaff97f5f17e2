import numpy as np
import pytest
import torch

from blockout.masking import block_mask
from blockout.show.masks import (
    CLUSTERS,
    MOST_CELLS,
    example_masks,
    learned_masks,
    order_by_code,
)

from .made import made_run


def test_dropout_is_one_block_and_blockout_some_and_dropconnect_none():
    dropout, blockout, dropconnect = (mask.in_order for mask in example_masks())
    assert np.linalg.matrix_rank(dropout) == 1
    rows, columns = dropout.any(1), dropout.any(0)
    assert (
        dropout[: rows.sum(), : columns.sum()].all() and dropout.sum() == rows.sum() * columns.sum()
    )
    assert 1 < np.linalg.matrix_rank(blockout) <= CLUSTERS
    assert np.linalg.matrix_rank(dropconnect) > 40
    assert set(np.unique(dropconnect)) == {0, 1}


def test_the_learned_mask_is_the_papers_with_nodes_in_the_order_of_their_codes():
    rng = np.random.default_rng(0)
    p_0, p_1 = rng.random((7, 3)).astype(np.float32), rng.random((5, 3)).astype(np.float32)
    run = made_run(np.eye(4)[:, :3], p_0=p_0, p_1=p_1)
    found = learned_masks(run)[0].in_order
    ordered = [torch.tensor(p[order_by_code(p)]) for p in (p_1, p_0)]
    assert found == pytest.approx(block_mask(*ordered).numpy())


def test_a_large_mask_is_averaged_not_thinned():
    p_0 = np.random.default_rng(0).random((4 * MOST_CELLS, 3)).astype(np.float32)
    run = made_run(np.eye(4)[:, :3], p_0=p_0, p_1=np.eye(3))
    found = learned_masks(run)[0].in_order
    whole = p_0[order_by_code(p_0)].reshape(MOST_CELLS, 4, 3).mean(1) / 3
    assert found.shape == (3, MOST_CELLS)
    order = order_by_code(np.eye(3))
    assert found == pytest.approx(whole.T[order], abs=1e-6)  # float32


def test_a_mask_in_order_holds_the_same_weights():
    for mask in example_masks():
        assert mask.in_order.sum() == mask.as_it_is.sum()
        assert sorted(mask.in_order.sum(0)) == sorted(mask.as_it_is.sum(0))


def test_what_is_left_are_pairs_of_nodes_that_share_a_cluster():
    run = made_run(p_0=[[1, 1], [0, 0]], p_1=[[1, 0], [0, 1]])
    assert run.structure.total.left == (2 + 4) / (4 + 8)
