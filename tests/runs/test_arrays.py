"""Arrays of a run are checked when they are read: later code needs no guards."""

import json

import pytest
import torch

from blockout.runs import folder as files
from blockout.runs.arrays import read_distributions, read_memberships, read_predictions
from blockout.runs.documents import BINS
from blockout.runs.errors import RunError

P = torch.tensor([[0.0, 1.0], [0.25, 0.5]])


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (P + 0.01, "P_0 holds no probabilities"),
        (P - 0.01, "P_0 holds no probabilities"),
        (P.masked_fill(P == 1, torch.nan), "P_0 holds no probabilities"),
        (P[0], "P_0 has no nodes and clusters"),
        (P[:0], "P_0 has no nodes and clusters"),
        (P.long(), "it holds torch.int64, not floating point"),
    ],
)
def test_memberships_are_probabilities_of_nodes_in_clusters(tmp_path, value, problem):
    path = tmp_path / files.MEMBERSHIPS
    files.write_tensors(path, {"P_1": P.half(), "P_0": P})
    found = read_memberships(path)
    assert list(found) == ["P_0", "P_1"] and found["P_1"].tolist() == P.tolist()
    files.write_tensors(path, {"P_0": value, "P_1": P})
    with pytest.raises(RunError, match=rf"memberships.safetensors is damaged: {problem}"):
        read_memberships(path)


SAID = {
    "labels": torch.tensor([0, 2]),
    "classes": torch.tensor([[2, 0], [2, 1]]),
    "probabilities": torch.tensor([[0.6, 0.4], [0.9, 0.1]]),
}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"labels": torch.tensor([0, 3])}, "it names a class that is not"),
        ({"classes": torch.tensor([[2, 0], [-1, 1]])}, "it names a class that is not"),
        ({"probabilities": torch.tensor([[0.6, 0.4], [1.9, 0.1]])}, "it holds no probabilities"),
        ({"labels": torch.tensor([0, 2, 1])}, "its shapes do not fit"),
        ({"classes": torch.tensor([[2], [2]])}, "its shapes do not fit"),
        ({"labels": torch.tensor([0.0, 2.0])}, "it holds torch.float32, not whole numbers"),
        ({"more": torch.zeros(1)}, "it holds classes, labels, more, probabilities"),
    ],
)
def test_predictions_name_classes_that_there_are(tmp_path, changes, problem):
    path = tmp_path / files.PREDICTIONS
    files.write_tensors(path, SAID)
    found = read_predictions(path, 3)
    assert found.labels.tolist() == [0, 2] and found.classes.tolist() == [[2, 0], [2, 1]]
    files.write_tensors(path, SAID | changes)
    with pytest.raises(RunError, match=rf"predictions.safetensors is damaged: {problem}"):
        read_predictions(path, 3)


def test_distributions_say_the_same_sets_at_every_step(tmp_path):
    path = tmp_path / files.DISTRIBUTIONS
    one = {"histogram": [4] + [0] * (BINS - 1), "quartiles": [0.0, 0.0, 0.01]}
    two = {"histogram": [0] * (BINS - 1) + [4], "quartiles": [0.99, 1.0, 1.0]}
    lines = [{"step": 1, "P_1": one, "P_0": two}, {"step": 5, "P_0": one, "P_1": one}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_distributions(path)
    assert list(found) == ["P_0", "P_1"] and found["P_0"].steps.tolist() == [1, 5]
    assert found["P_0"].histograms[:, [0, -1]].tolist() == [[0, 4], [4, 0]]
    assert found["P_0"].quartiles.tolist() == [[0.99, 1.0, 1.0], [0.0, 0.0, 0.01]]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"step": 6, "P_0": one}]))
    with pytest.raises(RunError, match=r"damaged at line 3: it does not say how P is distributed"):
        read_distributions(path)
