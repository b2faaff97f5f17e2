import numpy as np
import pytest
import torch

from blockout.masking import block_mask
from blockout.report.masks import MOST_CELLS, example_masks, learned_mask, section
from blockout.report.numbers import order_by_code

from .made import made_run


def test_dropout_is_one_block_and_blockout_some_and_dropconnect_none():
    dropout, blockout, dropconnect = example_masks().values()
    assert np.linalg.matrix_rank(dropout) == 1
    rows, columns = dropout.any(1), dropout.any(0)
    assert (
        dropout[: rows.sum(), : columns.sum()].all() and dropout.sum() == rows.sum() * columns.sum()
    )
    assert 1 < np.linalg.matrix_rank(blockout) <= 6
    assert np.linalg.matrix_rank(dropconnect) > 40
    assert set(np.unique(dropconnect)) == {0, 1}


def test_the_learned_mask_is_the_papers_with_nodes_in_the_order_of_their_codes():
    rng = np.random.default_rng(0)
    p_0, p_1 = rng.random((7, 3)).astype(np.float32), rng.random((5, 3)).astype(np.float32)
    run = made_run(np.eye(4)[:, :3], p_0=p_0, p_1=p_1)
    found = learned_mask(run, run.structure.layers[0])
    ordered = [torch.tensor(p[order_by_code(p)]) for p in (p_1, p_0)]
    assert found == pytest.approx(block_mask(*ordered).numpy())


def test_a_large_mask_is_averaged_not_thinned():
    p_0 = np.random.default_rng(0).random((4 * MOST_CELLS, 3)).astype(np.float32)
    run = made_run(np.eye(4)[:, :3], p_0=p_0, p_1=np.eye(3))
    found = learned_mask(run, run.structure.layers[0])
    whole = p_0[order_by_code(p_0)].reshape(MOST_CELLS, 4, 3).mean(1) / 3
    assert found.shape == (3, MOST_CELLS)
    order = order_by_code(np.eye(3))
    assert found == pytest.approx(whole.T[order], abs=1e-6)  # float32


def test_there_is_a_panel_for_each_layer_and_classes_can_be_marked():
    examples, learned = section([made_run()]).figures
    assert [a["text"] for a in examples.layout["annotations"]] == [
        "Dropout", "Blockout, 6 branches", "DropConnect",
    ]  # fmt: skip
    assert [a["text"] for a in learned.layout["annotations"]] == ["FC2", "the classifier"]
    assert learned.data[0]["z"].tolist() == [[50, 50, 0, 0]] * 2 + [[0, 0, 50, 50]] * 2
    assert learned.data[0]["z"].dtype == np.uint8
    (points,) = [trace for trace in learned.data if trace.get("meta")]
    assert points["customdata"] == [[0], [1], [2], [3]] and points["y"] == [0, 1, 2, 3]


def test_runs_without_blockout_have_no_masks():
    assert section([made_run(None)]) is None
