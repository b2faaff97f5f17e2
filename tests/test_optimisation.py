"""Who decays, who learns how fast, and who must not be forgotten."""

import pytest
import torch
from torch import nn

from blockout import BlockoutLinear, Memberships, convert, parameter_groups


def _names(model: nn.Module, parameters) -> set[str]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)] for p in parameters}


def test_memberships_learn_faster_and_nothing_but_weights_decays():
    fc2 = BlockoutLinear(8, 6, 2)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Flatten(), fc2, nn.LayerNorm((6,)),
        BlockoutLinear(6, 4, 2, inputs=fc2.outputs),
    )  # fmt: skip
    weights, undecayed, memberships = parameter_groups(net, lr=0.1, weight_decay=1e-4)
    assert _names(net, weights["params"]) == {"0.weight", "3.weight", "5.weight"}
    assert _names(net, memberships["params"]) == {
        "3.inputs.logits", "3.outputs.logits", "5.outputs.logits",
    }  # fmt: skip
    everything = [p for g in (weights, undecayed, memberships) for p in g["params"]]
    assert len(everything) == len(set(everything)) == len(list(net.parameters()))
    assert (weights["lr"], weights["weight_decay"]) == (0.1, 1e-4)
    assert (undecayed["lr"], undecayed["weight_decay"]) == (0.1, 0.0)
    assert (memberships["lr"], memberships["weight_decay"]) == (pytest.approx(30), 0.0)


def test_a_normalisation_over_two_dimensions_does_not_decay():
    groups = parameter_groups(nn.LayerNorm((3, 4)), lr=1, weight_decay=1)
    assert [group["name"] for group in groups] == ["undecayed"]


def test_the_scale_of_the_memberships_rate_can_be_chosen():
    groups = parameter_groups(BlockoutLinear(3, 2, 2), lr=0.1, membership_scale=10)
    assert groups[-1]["lr"] == pytest.approx(1.0)


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_any_optimiser_takes_the_groups_and_moves_everything(optimiser):
    net = convert(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), ["0", "2"], 2)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    step = optimiser(parameter_groups(net, lr=0.1))
    for _ in range(5):
        net(torch.randn(16, 8)).square().sum().backward()
        step.step()
    assert all(not torch.equal(before[name], p) for name, p in net.named_parameters())


def test_a_plain_model_has_no_group_of_memberships():
    groups = parameter_groups(nn.Linear(3, 2), lr=0.1)
    assert [group["name"] for group in groups] == ["weights", "undecayed"]


def test_memberships_outside_the_model_are_refused_because_they_would_not_learn():
    outside = BlockoutLinear(4, 6, 2)
    net = nn.Sequential(BlockoutLinear(6, 3, 2, inputs=outside.outputs))
    with pytest.raises(ValueError, match=r"0 uses memberships \(inputs\) that belong to a lay"):
        parameter_groups(net, lr=0.1)
    net.shared = outside.outputs
    assert len(parameter_groups(net, lr=0.1)[-1]["params"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "lr must not be negative, got -1"),
        ({"lr": float("nan")}, "lr must not be negative, got nan"),
        ({"membership_scale": float("nan")}, "membership_scale must be positive, got nan"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative, got -1"),
        ({"membership_scale": 0.0}, "membership_scale must be positive, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        parameter_groups(nn.Linear(2, 2), **{"lr": 0.1, **arguments})


def test_a_rate_of_zero_is_a_rate_for_warm_up():
    assert parameter_groups(Memberships(3, 2), lr=0.0)[0]["lr"] == 0
