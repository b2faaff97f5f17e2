"""blockout.models.classifier: trunk and head in one module."""

import pytest
import torch
from torch import nn

from blockout import Memberships, convert
from blockout.models import (
    Head,
    ImageClassifier,
    SmallInception,
    count_features,
)
from blockout.models.config import METHODS


def make_model(method="blockout", **options):
    torch.manual_seed(0)
    return ImageClassifier(
        SmallInception(0.125, early_downsampling=True),
        Head(42, 10, method=method, nodes=16, clusters=3),
        **options,
    )


class TokenTrunk(nn.Module):
    def forward(self, x):
        return x.flatten(2)


def test_a_grid_of_features_is_averaged():
    model, x = make_model().eval(), torch.randn(2, 3, 32, 32)
    grid = model.trunk(x)
    expected = torch.stack([grid[:, :, i, j] for i in range(4) for j in range(4)]).mean(0)
    torch.testing.assert_close(model.features(x), expected)
    torch.testing.assert_close(model(x), model.head(expected))


def test_features_without_a_grid_are_taken_as_they_are():
    model = ImageClassifier(nn.Flatten(), nn.Identity())
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(model(x), x.flatten(1))


def test_a_trunk_that_gives_tokens_is_told_what_to_do():
    model = ImageClassifier(TokenTrunk(), nn.Identity())
    with pytest.raises(ValueError, match=r"must give \(N, features\) or .* got shape \(2, 3, 16\)"):
        model(torch.zeros(2, 3, 4, 4))


def test_memberships_are_p_0_to_p_2_in_the_order_of_the_layers():
    model = make_model()
    found = model.memberships()
    assert list(found) == ["P_0", "P_1", "P_2"]
    assert found["P_0"] is model.head.fc2.inputs
    assert found["P_1"] is model.head.fc2.outputs is model.head.classifier.inputs
    assert found["P_2"] is model.head.classifier.outputs
    assert {id(m) for m in found.values()} == {
        id(m) for m in model.modules() if isinstance(m, Memberships)
    }


@pytest.mark.parametrize("method", [method for method in METHODS if method != "blockout"])
def test_other_methods_have_no_memberships(method):
    assert make_model(method).memberships() == {}


def test_a_frozen_trunk_neither_learns_nor_changes_while_the_head_trains():
    model = make_model(freeze_trunk=True).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.1)
    model(torch.randn(8, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if (value != before[name]).any()}
    assert {name.split(".")[0] for name in changed} == {"head"}
    assert {"head.fc1.weight", "head.norm1.running_mean", "head.classifier.weight"} <= changed
    assert model.head.training
    assert not any(module.training for module in model.trunk.modules())


def test_a_trunk_that_is_not_frozen_learns_and_its_normalisation_follows():
    model = make_model().train()
    model(torch.randn(8, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None for p in model.trunk.parameters())
    assert model.trunk.stem.conv.norm.num_batches_tracked == 1


def test_convert_follows_the_model_from_layer_to_layer():
    model, x = make_model("fc").eval(), torch.randn(2, 3, 32, 32)
    converted = convert(model, ["head.fc2", "head.classifier"], clusters=2)
    assert converted.head.classifier.inputs is converted.head.fc2.outputs
    torch.testing.assert_close(converted(x), model(x))


def test_export_gives_the_same_logits():
    model, x = make_model().eval(), torch.randn(2, 3, 32, 32)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))


def test_counting_features_leaves_the_trunk_as_it_was():
    trunk = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.Dropout())
    trunk[2].eval()
    assert count_features(trunk, 32) == 7
    assert [module.training for module in trunk.modules()] == [True, True, True, False]
    assert trunk[1].num_batches_tracked == 0


def test_a_head_of_the_users_own_cannot_be_described():
    with pytest.raises(ValueError, match=r"only a blockout\.models\.Head .* got Linear"):
        ImageClassifier(nn.Flatten(), nn.Linear(3, 2)).describe()


def make_led():
    torch.manual_seed(0)
    head = Head(42, 10, nodes=16, clusters=3, with_linear=True)
    head.leads = True
    return ImageClassifier(SmallInception(0.125, early_downsampling=True), head)


def test_the_trunk_learns_from_the_linear_classifier_and_the_head_from_its_own_loss():
    model, x, y = make_led(), torch.randn(4, 3, 32, 32), torch.arange(4)
    trunk = list(model.trunk.parameters())
    head = [p for name, p in model.head.named_parameters() if "linear" not in name]
    of_head = nn.functional.cross_entropy(model(x), y)
    of_linear = nn.functional.cross_entropy(model.head.led, y)
    assert all(g is None for g in torch.autograd.grad(of_head, trunk, allow_unused=True))
    torch.manual_seed(0)
    alone = nn.functional.cross_entropy(model.head.linear(model.features(x)), y)
    expected = torch.autograd.grad(alone, trunk)
    found = torch.autograd.grad(of_linear, [*trunk, *head], allow_unused=True)
    for got, wanted in zip(found, expected, strict=False):
        torch.testing.assert_close(got, wanted)
    assert all(g is None for g in found[len(trunk) :])
