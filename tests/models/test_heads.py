"""blockout.models.heads: the architectures of Fig. 7, value for value."""

import copy
import json
import warnings

import pytest
import torch
from torch import nn

from blockout import to_branches, to_dense
from blockout.compact import Costs
from blockout.layers import memberships_of
from blockout.models import Head
from blockout.models.config import METHODS

NAMES = {
    "baseline": ["classifier"],
    "fc": ["fc1", "norm1", "act1", "fc2", "norm2", "act2", "classifier"],
    "dropout": ["fc1", "norm1", "act1", "drop1", "fc2", "norm2", "act2", "drop2", "classifier"],
    "dropconnect": ["fc1", "norm1", "act1", "fc2", "classifier"],
    "blockout": ["fc1", "norm1", "act1", "fc2", "norm2", "act2", "classifier"],
}


def make_head(method, seed=0, **options):
    """A small head in float64 whose normalisations and memberships are not those of the start."""
    torch.manual_seed(seed)
    head = Head(6, 5, method=method, **{"nodes": 8, "clusters": 3, **options}).double().eval()
    for name, tensor in head.state_dict().items():
        if "norm" in name and tensor.is_floating_point():
            tensor.uniform_(0.5, 2)
        if name.endswith("logits"):
            tensor.normal_()
    return head


def normalised(total, norm):
    scale = norm.weight / (norm.running_var + 1e-5).sqrt()
    return ((total - norm.running_mean) * scale + norm.bias).clamp_min(0)


@pytest.mark.parametrize("method", METHODS)
def test_the_layers_have_the_names_that_checkpoints_rely_on(method):
    assert list(make_head(method)._modules) == NAMES[method]


def test_the_baseline_is_one_linear_layer():
    head, x = make_head("baseline"), torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(head(x), x @ head.classifier.weight.T + head.classifier.bias)


@pytest.mark.parametrize("method", ["fc", "dropout"])
def test_fc_is_two_normalised_layers_and_dropout_is_the_same_in_inference(method):
    head, x = make_head(method), torch.randn(4, 6, dtype=torch.float64)
    x1 = normalised(x @ head.fc1.weight.T, head.norm1)
    x2 = normalised(x1 @ head.fc2.weight.T, head.norm2)
    expected = x2 @ head.classifier.weight.T + head.classifier.bias
    torch.testing.assert_close(head(x), expected)


def test_blockout_in_inference_has_the_expected_weights_of_equation_5():
    head, x = make_head("blockout"), torch.randn(4, 6, dtype=torch.float64)
    p0, p1 = head.fc2.inputs.logits.sigmoid(), head.fc2.outputs.logits.sigmoid()
    p2 = head.classifier.outputs.logits.sigmoid()
    x1 = normalised(x @ head.fc1.weight.T, head.norm1)
    x2 = normalised(x1 @ (head.fc2.weight * (p1 @ p0.T) / 3).T, head.norm2)
    expected = x2 @ (head.classifier.weight * (p2 @ p1.T) / 3).T + head.classifier.bias
    torch.testing.assert_close(head(x), expected)


def test_both_blockout_layers_of_a_training_step_use_one_draw_of_p_1():
    head = make_head("blockout").train()
    drawn = {}
    for layer in (head.fc2, head.classifier):
        layer.register_forward_hook(
            lambda layer, _, output: drawn.update(
                {layer: (layer.inputs.drawn, layer.outputs.drawn)}
            )
        )
    head(torch.randn(4, 6, dtype=torch.float64))
    assert drawn[head.fc2][1] is drawn[head.classifier][0]
    assert set(drawn[head.fc2][1].unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("learned", [True, False])
def test_the_papers_variants_reach_all_three_sets_of_memberships(hard, learned):
    head = make_head("blockout", hard=hard, learned=learned)
    sets = [head.fc2.inputs, head.fc2.outputs, head.classifier.outputs]
    assert [m.nodes for m in sets] == [8, 8, 5]
    assert head.classifier.inputs is head.fc2.outputs
    assert {(m.hard, m.learned, m.clusters) for m in sets} == {(hard, learned, 3)}


def test_dropout_drops_the_given_share_of_both_activations():
    """800,000 draws: 30 % within 0.26 points, five standard errors (false alarms: 6e-7)."""
    torch.manual_seed(0)
    head = Head(6, 5, method="dropout", nodes=400, dropout=0.3)
    seen = {}
    for name in ("drop1", "drop2"):
        head.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, name=name: seen.update({name: (inputs[0], output)})
        )
    head(torch.randn(4000, 6))
    for before, after in seen.values():
        assert bool((before >= 0).all())  # after the ReLU
        alive = before > 0
        kept = after[alive] > 0
        torch.testing.assert_close(after[alive][kept], before[alive][kept] / 0.7)
        assert abs(kept.float().mean().item() - 0.7) < 0.0026


def test_dropconnect_in_inference_is_the_mean_over_its_masks():
    """Logits agree with the mean of 4,000 draws to five standard errors and 2 % of their scale.

    The 2 % are for what the Gaussian leaves out of a sum of 64 terms. A normalisation between sum
    and activation, or plain mean weights, miss by several times that.
    """
    torch.manual_seed(0)
    head = Head(16, 5, method="dropconnect", nodes=64, dropout=0.5).eval()
    head.fc2.bias.data.fill_(-0.5)
    x = torch.randn(8, 16)
    with torch.no_grad():
        exact = head(x)
        head.fc2.sampling = head.classifier.sampling = True
        draws = torch.stack([head(x) for _ in range(4000)])
        mean, error = draws.mean(0), draws.std(0) / 4000**0.5
        activation_of_the_mean = to_dense_quietly(head)(x)
    scale = mean.std()
    assert bool(((exact - mean).abs() < 5 * error + 0.02 * scale).all())
    assert bool(((activation_of_the_mean - mean).abs() > 5 * error + 0.02 * scale).any())


def to_dense_quietly(head):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return to_dense(head)


def test_dropconnect_keeps_what_dropout_does_not_drop():
    head = make_head("dropconnect", dropout=0.3)
    assert head.fc2.keep == head.classifier.keep == 0.7
    assert isinstance(head.fc2.activation, nn.ReLU)
    assert head.classifier.activation is None


@pytest.mark.parametrize("method", METHODS)
def test_a_description_builds_the_same_head_again(method):
    chosen = {"nodes": 7, "clusters": 2, "hard": False, "learned": False, "dropout": 0.25}
    head, x = make_head(method, **chosen), torch.randn(4, 6, dtype=torch.float64)
    assert head.describe() == {"features": 6, "classes": 5, "method": method, **chosen}
    twin = Head(**head.describe()).double().eval()
    twin.load_state_dict(head.state_dict())
    assert torch.equal(twin(x), head(x))


def loaded(head: Head, description: dict) -> Head:
    """Built from its description as JSON, with its weights."""
    twin = Head(**json.loads(json.dumps(description))).double().eval()
    twin.load_state_dict(head.state_dict())
    return twin


def test_a_folded_blockout_head_says_that_it_is_blockout_and_dense():
    head, x = make_head("blockout"), torch.randn(4, 6, dtype=torch.float64)
    dense = to_dense(head)
    described = dense.describe()
    assert (described["method"], described["form"]) == ("blockout", "dense")
    twin = loaded(dense, described)
    assert twin.describe() == described
    torch.testing.assert_close(twin(x), head(x))
    as_before = {name: v for name, v in described.items() if name != "form"} | {"method": "fc"}
    torch.testing.assert_close(loaded(dense, as_before)(x), head(x))


def test_a_compact_blockout_head_says_that_it_is_blockout_and_compact():
    head, x = make_head("blockout", nodes=24), torch.randn(4, 6, dtype=torch.float64)
    small = to_branches(head, 0.6, measure=False, costs=Costs(call=0, value=0)).eval()
    described = small.describe()
    assert (described["method"], described["form"]) == ("blockout", "compact")
    assert described["layers"]["fc2"]["kind"] == "DenseBlocks"
    assert torch.equal(loaded(small, described)(x), small(x))
    written_before = {name: v for name, v in described.items() if name != "form"}
    written_before = json.loads(json.dumps(written_before | {"method": "fc"}))
    for layer in written_before["layers"].values():
        layer["kind"] = layer["kind"].replace("DenseBlocks", "Branches")
    twin = loaded(small, written_before)
    assert torch.equal(twin(x), small(x))
    assert twin.describe() == described


@pytest.mark.parametrize(("method", "form"), [("fc", "dense"), ("blockout", "small")])
def test_a_form_that_a_method_does_not_have_is_refused(method, form):
    with pytest.raises(ValueError, match=f"form of a {method} head must be trained.* got '{form}'"):
        Head(6, 5, method=method, form=form)


def test_a_folded_dropconnect_head_says_that_it_cannot_be_described():
    with pytest.raises(
        ValueError, match="cannot describe a dropconnect head whose layers have become"
    ):
        to_dense_quietly(make_head("dropconnect")).describe()


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match=r"method must be one of baseline, .* got 'softmax'"):
        Head(6, 5, method="softmax")


def test_the_answer_is_the_mean_of_the_linear_classifier_and_the_other_layers():
    torch.manual_seed(0)
    head = Head(6, 4, nodes=8, clusters=2, with_linear=True).eval()
    alone = Head(6, 4, nodes=8, clusters=2).eval()
    alone.load_state_dict({k: v for k, v in head.state_dict().items() if "linear" not in k})
    x = torch.randn(5, 6)
    torch.testing.assert_close(head(x), (alone(x) + head.linear(x)) / 2)


def test_a_step_of_training_leaves_what_the_linear_classifier_says_and_copies_do_not_have_it():
    head, x = Head(6, 4, nodes=8, clusters=2, with_linear=True), torch.randn(5, 6)
    head(x)
    assert torch.equal(head.led, head.linear(x))
    assert "led" not in vars(copy.deepcopy(head))


def test_a_linear_classifier_beside_begins_as_a_baseline_does():
    torch.manual_seed(0)
    beside = Head(6, 4, nodes=8, clusters=2, with_linear=True)
    torch.manual_seed(0)
    baseline = Head(6, 4, method="baseline")
    assert torch.equal(beside.linear.weight, baseline.classifier.weight)


@pytest.mark.parametrize("make", [lambda h: h, to_dense, lambda h: to_branches(h, measure=False)])
def test_a_head_with_a_linear_classifier_can_be_described_folded_and_cut(make):
    torch.manual_seed(0)
    head = Head(6, 4, nodes=8, clusters=2, with_linear=True).eval()
    for memberships, turn in zip(memberships_of(head).values(), (1, 2, 1), strict=True):
        place = torch.arange(memberships.nodes) // turn % 2
        memberships.put(nn.functional.one_hot(place, 2).float())
    made, x = make(head).eval(), torch.randn(5, 6)
    twin = Head(**made.describe()).eval()
    twin.load_state_dict(made.state_dict())
    torch.testing.assert_close(twin(x), head(x))


@pytest.mark.parametrize("method", ["fc", "dropout", "dropconnect"])
def test_heads_of_other_methods_may_have_a_linear_classifier_too(method):
    head, x = Head(6, 4, method=method, nodes=8, with_linear=True).eval(), torch.randn(5, 6)
    alone = Head(6, 4, method=method, nodes=8).eval()
    alone.load_state_dict({k: v for k, v in head.state_dict().items() if "linear." not in k})
    torch.testing.assert_close(head(x), (alone(x) + head.linear(x)) / 2)


def test_a_baseline_has_no_linear_classifier_beside_itself():
    with pytest.raises(ValueError, match="a baseline is a linear classifier"):
        Head(6, 4, method="baseline", with_linear=True)
