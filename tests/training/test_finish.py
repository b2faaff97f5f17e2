"""A run starts from the weights of an earlier one, as far as they fit."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from blockout.runs import RunError
from blockout.runs import folder as files
from blockout.training.finish import initial_weights


@pytest.fixture
def earlier(tmp_path):
    torch.manual_seed(0)
    weights = nn.Sequential(OrderedDict(a=nn.Linear(3, 4), b=nn.Linear(4, 2))).state_dict()
    files.write_tensors(tmp_path / files.FINAL, weights)
    return tmp_path, weights


def test_what_fits_is_taken_and_what_does_not_starts_fresh_and_is_said(earlier):
    folder, weights = earlier
    later = nn.Sequential(OrderedDict(a=nn.Linear(3, 4), b=nn.Linear(4, 5), c=nn.Linear(5, 2)))
    before = {name: value.clone() for name, value in later.state_dict().items()}
    (said,) = initial_weights(later, folder)
    assert said == (
        f"2 tensors taken from {folder}, 4 start fresh: b.weight, b.bias, c.weight, ..."
    )
    for name, value in later.state_dict().items():
        assert torch.equal(value, (weights if name.startswith("a.") else before)[name]), name


def test_where_everything_fits_nothing_starts_fresh(earlier):
    folder, weights = earlier
    later = nn.Sequential(OrderedDict(a=nn.Linear(3, 4), b=nn.Linear(4, 2)))
    assert initial_weights(later, folder) == [f"4 tensors taken from {folder}"]
    assert all(torch.equal(value, weights[name]) for name, value in later.state_dict().items())


def test_a_run_of_which_nothing_fits_is_refused(earlier):
    with pytest.raises(RunError, match="none of its weights fit this model"):
        initial_weights(nn.Linear(3, 4), earlier[0])
