"""A compact network is rebuilt from JSON and its weights."""

import json

import pytest
import torch
from torch import nn

from blockout import to_branches
from blockout.compact import DenseBlocks, describe_layers, rebuild_layers

from .conftest import chain, conv_chain


def made(conv: bool) -> nn.Module:
    if conv:
        return conv_chain(3, True, nn.ReLU, 1, "reflect")
    return chain(3, True, True, nn.ReLU, "plain")


@pytest.mark.parametrize("conv", [False, True])
def test_what_is_described_in_json_is_rebuilt_to_the_bit(conv, monkeypatch):
    last_is_fastest = "blockout.compact.layout._measured"
    monkeypatch.setattr(last_is_fastest, lambda modules, _: list(range(len(modules), 0, -1)))
    blocks = 0
    for seed in range(6):
        torch.manual_seed(seed)
        model, rebuilt = made(conv), made(conv)
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                norm.eps, norm.momentum = 0.5, 0.02
        small = to_branches(model, 0.5)
        rebuild_layers(rebuilt, json.loads(json.dumps(describe_layers(small))))
        rebuilt.load_state_dict(small.state_dict())
        x = torch.randn(4, *((2, 8, 9) if conv else (6,)))
        with torch.no_grad():
            assert torch.equal(rebuilt.eval()(x), small.eval()(x))
        assert repr(rebuilt) == repr(small)
        blocks += sum(isinstance(layer, DenseBlocks) for layer in small.modules())
    assert blocks > 3


@pytest.mark.parametrize(("name", "value"), [("eps", "0.1"), ("momentum", "'"), ("eps", 10**400)])
def test_a_normalisation_with_wrong_numbers_is_refused(name, value):
    described = describe_layers(to_branches(made(conv=False), 0.5))
    norm = next(about for about in described.values() if "eps" in about)
    norm[name] = value
    with pytest.raises(ValueError, match="described wrongly: expected numbers between 0 and 1"):
        rebuild_layers(made(conv=False), described)
