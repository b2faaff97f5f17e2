"""blockout.models.pretrained: image models of Hugging Face, saved on the spot."""

import json
import logging
import shutil
import socket
import sys

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    EfficientNetConfig,
    EfficientNetModel,
    IJepaConfig,
    PoolFormerConfig,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
    ViTMSNConfig,
)

from blockout.models import (
    ModelConfig,
    PretrainedTrunk,
    build_model,
    from_description,
    pretrained,
    trunk_preprocessing,
)
from blockout.models.configurations import IMAGE_MODELS

TRANSFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.fixture(autouse=True)
def quiet_transformers():
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def resnet():
    return ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    )


def saved(model, folder):
    """The model's folder; every weight and statistic made different from its initial value."""
    torch.manual_seed(1)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.add_(torch.rand_like(value) * 0.1)
    model.eval().save_pretrained(folder)
    return str(folder)


def build(trunk, **options):
    config = ModelConfig(trunk=trunk, nodes=8, clusters=2, **options)
    return build_model(config, classes=5, data_name="own", image_size=32)


def images():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_features_of_a_resnet_are_the_mean_of_its_last_map(tmp_path):
    reference = resnet()
    model = build(saved(reference, tmp_path)).eval()
    grid = reference.resnet(images()).last_hidden_state
    assert grid.shape[2:] == (4, 4)
    torch.testing.assert_close(model.features(images()), grid.mean((2, 3)))
    assert model.head.fc1.in_features == 12


def test_a_vit_without_a_trained_pooler_gives_its_class_token(tmp_path):
    reference = ViTForImageClassification(ViTConfig(**TRANSFORMER))
    model = build(saved(reference, tmp_path)).eval()
    token = reference.vit(images()).last_hidden_state[:, 0]
    torch.testing.assert_close(model.features(images()), token)
    assert not [name for name, _ in model.named_parameters() if "pooler" in name]


def test_a_vit_with_a_trained_pooler_gives_its_pooled_output(tmp_path):
    reference = ViTModel(ViTConfig(**TRANSFORMER))
    model = build(saved(reference, tmp_path)).eval()
    torch.testing.assert_close(model.features(images()), reference(images()).pooler_output)


def test_models_without_a_pooler_give_class_token_mean_of_tokens_or_map(tmp_path):
    expected = {
        "first token": (ViTMSNConfig(**TRANSFORMER), lambda hidden: hidden[:, 0]),
        "mean of tokens": (IJepaConfig(**TRANSFORMER), lambda hidden: hidden.mean(1)),
        "map": (
            PoolFormerConfig(hidden_sizes=[4, 4, 4, 8], depths=[1] * 4),
            lambda hidden: hidden.mean((2, 3)),
        ),
    }
    for readout, (config, read) in expected.items():
        with pretrained._quietly(transformers):
            reference = transformers.AutoModel.from_config(config)
        folder = saved(reference, tmp_path / readout)
        model = build(folder).eval()
        assert model.trunk.readout == readout
        hidden = reference(pixel_values=images()).last_hidden_state
        torch.testing.assert_close(model.features(images()), read(hidden))


@pytest.mark.parametrize("kind", ["resnet", "vit"])
def test_a_run_comes_back_without_the_folder_that_it_began_with(kind, tmp_path):
    reference = (
        resnet() if kind == "resnet" else ViTForImageClassification(ViTConfig(**TRANSFORMER))
    )
    folder = saved(reference, tmp_path / "trunk")
    model = build(folder)
    with torch.no_grad():
        model.train()(images())
        save_file(model.state_dict(), tmp_path / "model.safetensors")
        description = json.dumps(model.describe())
        shutil.rmtree(folder)
        twin = from_description(json.loads(description))
        twin.load_state_dict(load_file(tmp_path / "model.safetensors"))
        assert torch.equal(twin.eval()(images()), model.eval()(images()))


def test_a_frozen_trunk_keeps_its_weights_and_statistics_and_a_fine_tuned_one_does_not(tmp_path):
    folder = saved(resnet(), tmp_path)
    for frozen in (True, False):
        model = build(folder, freeze_trunk=frozen).train()
        before = {name: value.clone() for name, value in model.trunk.state_dict().items()}
        learning = [p for p in model.parameters() if p.requires_grad]
        model(images()).square().sum().backward()
        assert all(p.grad is not None for p in learning)
        torch.optim.SGD(learning, lr=0.1).step()
        after = model.trunk.state_dict()
        unchanged = {name for name in before if torch.equal(before[name], after[name])}
        assert unchanged == (set(before) if frozen else set())


def efficientnet():
    """With the pooling and the momentum of Hugging Face's EfficientNet, a hundredth of its size."""
    sizes = {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320}
    return EfficientNetModel(EfficientNetConfig(**sizes, initializer_range=0.2))


def momenta(model):
    found = (m.momentum for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    return {round(momentum, 6) for momentum in found}


def test_a_pooling_window_larger_than_any_grid_becomes_global_pooling(tmp_path):
    reference = efficientnet()
    assert reference.pooler.kernel_size == 320
    model = build(saved(reference, tmp_path)).eval()
    for twin in (model, from_description(model.describe())):
        assert isinstance(twin.trunk.model.pooler, torch.nn.AdaptiveAvgPool2d)
    with torch.no_grad():
        expected = reference(images()).pooler_output
        assert expected.std() > 0.01
        torch.testing.assert_close(model.features(images()), expected)


def test_momentum_in_the_convention_of_tensorflow_becomes_that_of_torch(tmp_path):
    reference = efficientnet()
    assert momenta(reference) == {0.99, 0.1}  # 0.1 in blocks that are torch's own
    model = build(saved(reference, tmp_path), freeze_trunk=False).train()
    for twin in (model, from_description(model.describe())):
        assert momenta(twin.trunk) == {0.01, 0.1}
    norm = model.trunk.model.embeddings.batchnorm
    seen = []
    norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    before = norm.running_mean.clone()
    with torch.no_grad():
        model(images())
    mean = seen[0].mean((0, 2, 3))
    torch.testing.assert_close(norm.running_mean, 0.99 * before + 0.01 * mean)


def test_a_checkpoint_in_half_precision_is_read_as_float32(tmp_path):
    folder = saved(resnet().half(), tmp_path)
    assert {p.dtype for p in build(folder).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("preprocessor", "size", "crop"),
    [
        ({"size": 30}, 30, 1),
        ({"size": {"height": 30, "width": 30}}, 30, 1),
        ({"size": {"shortest_edge": 40}, "crop_size": {"height": 30, "width": 30}}, 30, 0.75),
        ({"size": 40, "crop_size": 30, "do_center_crop": False}, 40, 1),
        ({}, 32, 1),  # the model's own
    ],
)
def test_preprocessing_is_read_from_the_folder(preprocessor, size, crop, tmp_path):
    folder = saved(ViTModel(ViTConfig(**TRANSFORMER)), tmp_path)
    preprocessor |= {"image_mean": [0.5, 0.25, 0.125], "image_std": [1, 2, 3]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    found = trunk_preprocessing(ModelConfig(trunk=folder))
    assert found == (size, (0.5, 0.25, 0.125), (1.0, 2.0, 3.0), crop)


def test_preprocessing_that_is_not_recorded_is_imagenets(tmp_path):
    folder = saved(resnet(), tmp_path)
    imagenet = (224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 1)
    assert trunk_preprocessing(ModelConfig(trunk=folder)) == imagenet
    (tmp_path / "preprocessor_config.json").write_text('{"do_normalize": false}')
    assert trunk_preprocessing(ModelConfig(trunk=folder)) == (224, (0, 0, 0), (1, 1, 1), 1)


@pytest.mark.parametrize("trunk", ["auto", "inception-small", "inception-bn"])
def test_our_own_trunks_need_no_preprocessing(trunk):
    assert trunk_preprocessing(ModelConfig(trunk=trunk)) is None


@pytest.mark.parametrize("trunk", ["compct", "./nowhere", "/no/where", "~/no/where", "a/b/c"])
def test_a_name_that_is_neither_folder_nor_id_is_refused_at_once(trunk):
    with pytest.raises(ValueError, match=f"--trunk {trunk} is neither a folder nor"):
        build(trunk)


def test_a_model_that_the_hub_does_not_give_is_a_clear_error(monkeypatch, tmp_path):
    asked = []

    def offline(name, **options):
        asked.append(options.get("local_files_only", False))
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    message = r"--trunk hf://some/model is not in .* could not be downloaded \(no connection\);"
    with pytest.raises(ValueError, match=message):
        build("hf://some/model")
    assert asked == [True, False]  # the cache before the hub


def test_a_name_that_may_be_a_folder_is_not_asked_of_the_hub(monkeypatch):
    asked = []

    def cache_alone(name, *, local_files_only=False, **_):
        asked.append(local_files_only)
        raise huggingface_hub.errors.LocalEntryNotFoundError("not there")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cache_alone)
    message = r"--trunk my/models is neither a folder nor .* write --trunk hf://my/models"
    with pytest.raises(ValueError, match=message):
        build("my/models")
    assert asked == [True]


def test_a_model_in_the_cache_is_found_without_the_hub(monkeypatch, tmp_path):
    repository = tmp_path / "models--some--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    reference = resnet()
    saved(reference, repository / "snapshots" / ("0" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    grid = reference.resnet(images()).last_hidden_state
    for name in ("hf://some/model", "some/model"):
        model = build(name).eval()
        torch.testing.assert_close(model.features(images()), grid.mean((2, 3)))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder without config\.json"):
        build(str(tmp_path))


def test_a_folder_without_weights_is_refused(tmp_path):
    ResNetConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"--trunk .* cannot be loaded: .*model\.safetensors"):
        build(str(tmp_path))


def test_a_checkpoint_that_is_not_complete_is_refused(tmp_path):
    folder = saved(resnet(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["resnet.embedder.embedder.convolution.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of the weights of ResNetModel, .*embedder"):
        build(folder)


def test_a_model_of_text_is_refused(tmp_path):
    small = {key: TRANSFORMER[key] for key in list(TRANSFORMER)[:4]}
    with pretrained._quietly(transformers):
        model = transformers.AutoModel.from_config(BertConfig(vocab_size=9, **small))
    with pytest.raises(ValueError, match="its type is 'bert', which is no image model"):
        build(saved(model, tmp_path))


def test_a_model_that_cannot_read_the_image_size_says_so(tmp_path):
    folder = saved(ViTModel(ViTConfig(**TRANSFORMER)), tmp_path)
    with pytest.raises(ValueError, match=r"cannot read images of 48 px: .*\(32\*32\)"):
        PretrainedTrunk.load(folder, 48)


def test_without_transformers_the_error_says_what_to_install(monkeypatch, tmp_path):
    folder = saved(resnet(), tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'blockout\[pretrained\]'"):
        build(folder)


def test_loading_is_quiet_and_leaves_the_log_level_of_transformers_as_it_was(tmp_path, capfd):
    folder = saved(ViTForImageClassification(ViTConfig(**TRANSFORMER)), tmp_path)
    settings = transformers.utils.logging
    settings.enable_progress_bar()
    before = settings.get_verbosity()
    said = []
    listener = logging.Handler()
    listener.emit = said.append
    logging.getLogger("transformers").addHandler(listener)
    try:
        settings.set_verbosity_warning()
        capfd.readouterr()
        build(folder)
        after = settings.get_verbosity(), settings.is_progress_bar_enabled()
    finally:
        logging.getLogger("transformers").removeHandler(listener)
        settings.set_verbosity(before)
    assert (said, capfd.readouterr()) == ([], ("", ""))
    assert after == (settings.WARNING, True)


# --- configurations that somebody was given -------------------------------------------------------

VIT = {"model_type": "vit", **TRANSFORMER}


def described(**configuration):
    """A model whose trunk is described by this configuration."""
    description = build_model(
        ModelConfig(width=0.1, nodes=8, clusters=2), classes=5, data_name="own", image_size=32
    ).describe()
    trunk = {"kind": "pretrained", "configuration": configuration, "readout": "first token"}
    return description | {"trunk": trunk | {"features": 16}}


@pytest.fixture
def _nobody_to_ask(monkeypatch):
    """A network that fails the test as soon as it is used."""

    def used(*_, **__):
        pytest.fail("the network was used")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, used)
    monkeypatch.setattr(socket.socket, "connect", used)


HOSTILE = {
    "code": {"auto_map": {"AutoModel": "someone/evil--model.Model"}},
    "kernel": {"attn_implementation": "someone/kernel"},
    "kernel, in private": {"_attn_implementation": "someone/kernel"},
    "kernel, in a part": {"_attn_implementation_internal": {"": "someone/kernel"}},
    "quantised": {"quantization_config": {"quant_method": "bitsandbytes"}},
    "backbone": {"model_type": "dpt", "backbone": "someone/backbone"},
    "timm": {"model_type": "timm_wrapper", "architecture": "hf_hub:someone/evil"},
    "another model inside": {"model_type": "detr"},
    "text": {"model_type": "bert"},
    "no type": {"model_type": None},
    "a path for a word": {"hidden_act": "someone/activation"},
    "a billion layers": {"num_hidden_layers": 10**9},
    "a number beyond numbers": {"hidden_size": 10**400},
    "deep": {"patch_size": [[[[8]]]]},
}


@pytest.mark.usefixtures("_nobody_to_ask")
@pytest.mark.parametrize("more", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_configuration_that_reaches_for_more_is_refused(more, tmp_path):
    with pytest.raises(ValueError, match=r"asks for|no image model|cannot be right"):
        from_description(described(**(VIT | more)))
    folder = saved(ViTModel(ViTConfig(**TRANSFORMER)), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(VIT | more))
    with pytest.raises(ValueError, match=r"--trunk .* cannot be loaded: .*"):
        build(folder)


@pytest.mark.usefixtures("_nobody_to_ask")
def test_what_a_configuration_only_remembers_is_left_out():
    """Where it came from, how it was trained, and what older versions have recorded."""
    remembered = {
        "_name_or_path": "someone/model",
        "_attn_implementation": "sdpa",
        "auto_map": None,
        "transformers_version": "4.50",
        "torch_dtype": "float16",
        "trust_remote_code": True,
    }
    model = from_description(described(**VIT, **remembered))
    assert model.trunk.describe()["configuration"].keys() >= VIT.keys()
    assert not model.trunk.describe()["configuration"].keys() & remembered.keys()
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_every_image_model_that_is_listed_needs_no_other(monkeypatch):
    """Built without memory; those that this version of transformers knows."""
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **_: asked.append(a))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **_: asked.append(a))
    known = sorted(IMAGE_MODELS & set(transformers.CONFIG_MAPPING))
    assert len(known) > 30
    for kind in known:
        with torch.device("meta"):
            trunk = PretrainedTrunk.from_configuration({"model_type": kind}, "map", 8)
        assert trunk.model.main_input_name == "pixel_values", kind
    assert asked == []


@pytest.mark.parametrize(
    ("preprocessor", "said"),
    [
        ({"image_std": [0, 1, 1]}, "std positive"),
        ({"image_mean": [1e999, 1, 1]}, "must be finite"),
        ({"size": 10**6}, "1 to 1024 px"),
        ({"image_std": "none"}, "cannot be read"),
    ],
)
def test_preprocessing_that_cannot_be_right_is_refused(preprocessor, said, tmp_path):
    folder = saved(resnet(), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    with pytest.raises(ValueError, match=f"--trunk .*{said}"):
        trunk_preprocessing(ModelConfig(trunk=folder))
