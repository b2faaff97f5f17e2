"""Exported files give the run's logits, appear whole or not at all, and carry what they need."""

import json
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import torch
from PIL import Image
from torch import nn

from blockout.commands.prediction import find_images, predict
from blockout.compact import Costs, DenseBlocks, to_branches
from blockout.export import (
    FORMATS,
    TOLERANCE,
    ExportError,
    Format,
    compare,
    export,
    folded,
    load_exported,
)
from blockout.models import (
    EfficientNetLite,
    Head,
    ImageClassifier,
    InceptionBN,
    ModelConfig,
    PretrainedTrunk,
    build_model,
)
from blockout.models.config import METHODS
from blockout.models.efficientnet import ConvUnit
from blockout.training import TrainedModel

CLASSES = ("ant", "bee", "zebra – Ω")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.21, 0.22)


def seasoned(model: ImageClassifier, size: int = 32) -> TrainedModel:
    """With statistics of batch normalisation that let the images through to the logits."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 0.9
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(16, 3, size, size))
    return TrainedModel(model.eval(), CLASSES, None, size, MEAN, STD)


def compact(method: str = "blockout", **more) -> TrainedModel:
    config = ModelConfig(method=method, width=0.1, nodes=16, clusters=2, **more)  # pyright: ignore
    return seasoned(build_model(config, classes=3, data_name="own", image_size=32))


def small(method: str) -> TrainedModel:
    """The head as it is, below it next to nothing, because tracing a trunk takes seconds."""
    trunk = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    return seasoned(ImageClassifier(trunk, Head(8, 3, method=method, nodes=16, clusters=2)))


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    torch.manual_seed(0)
    return compact()


@pytest.fixture(scope="module")
def trained_as(trained) -> dict[str, TrainedModel]:
    quick = small("blockout")
    return {"onnx": quick, "pt2": quick, "safetensors": trained}


@pytest.fixture(scope="module")
def exported(trained_as, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exported")
    return {form: export(trained_as[form], folder / f"net.{form}", form).path for form in FORMATS}


def logits(trained: TrainedModel, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return trained.model(images)


def require_same(trained: TrainedModel, path: Path) -> None:
    """Float32 in another order: 1e-5 of logits of size one."""
    read_back = load_exported(path)
    images = torch.randn(8, 3, trained.image_size, trained.image_size)
    expected = logits(trained, images)
    assert expected.std(0).min() > 1e-3  # the images make a difference
    for batch in (1, 2, 5, 8):
        got = read_back.model(images[:batch])
        torch.testing.assert_close(got, expected[:batch], rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize("method", METHODS)
def test_graphs_of_every_method_give_the_logits_of_the_run(tmp_path, method, form):
    trained = small(method)
    require_same(trained, export(trained, tmp_path / f"a.{form}", form).path)


def test_the_graph_of_the_compact_trunk_gives_the_logits_of_the_run(trained, tmp_path):
    require_same(trained, export(trained, tmp_path / "a.pt2", "pt2").path)


@pytest.mark.parametrize("method", METHODS)
def test_safetensors_of_every_method_give_the_logits_of_the_run(tmp_path, method):
    trained = compact(method)
    require_same(trained, export(trained, tmp_path / "a.safetensors", "safetensors").path)


def test_inception_bn_reloads_to_the_logits_of_the_run(tmp_path):
    trained = compact("fc", trunk="inception-bn")
    require_same(trained, export(trained, tmp_path / "a.safetensors", "safetensors").path)


def test_the_graph_of_inception_bn_gives_the_logits_of_the_run(tmp_path):
    """Its stem and three blocks, which have all its kinds of branches; the whole takes longer."""
    trunk = InceptionBN()
    trunk.blocks = trunk.blocks[:3]
    trained = seasoned(ImageClassifier(trunk, Head(576, 3, method="fc", nodes=16)))
    require_same(trained, export(trained, tmp_path / "a.onnx", "onnx").path)


@pytest.mark.parametrize("form", ["pt2", "safetensors"])
def test_a_pretrained_trunk_gives_the_logits_of_the_run(tmp_path, form):
    tiny = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "patch_size": 8,
            "num_attention_heads": 2, "intermediate_size": 16, "image_size": 32}  # fmt: skip
    trunk = PretrainedTrunk.from_configuration(tiny, "first token", features=16)
    trained = seasoned(ImageClassifier(trunk, Head(16, 3, nodes=16, clusters=2)))
    require_same(trained, export(trained, tmp_path / f"a.{form}", form).path)


@pytest.mark.parametrize("form", FORMATS)
def test_an_efficientnet_gives_the_logits_of_the_run(tmp_path, form):
    trunk = EfficientNetLite("efficientnet-lite0")
    if form != "safetensors":  # all kinds of layers, in a seventh of the time
        trunk.blocks, trunk.head = trunk.blocks[:2], ConvUnit(24, trunk.features)
    trained = seasoned(ImageClassifier(trunk, Head(1280, 3, nodes=16, clusters=2)))
    require_same(trained, export(trained, tmp_path / f"a.{form}", form).path)


def test_a_pooling_window_larger_than_the_grid_does_not_reach_the_file(tmp_path):
    """Runtimes disagree about it: onnxruntime cuts it, onnx's own reference divides by more."""
    tiny = {"model_type": "efficientnet", "width_coefficient": 0.25, "depth_coefficient": 0.1,
            "hidden_dim": 320, "in_channels": [32], "out_channels": [16], "kernel_sizes": [3],
            "strides": [1], "num_block_repeats": [1], "expand_ratios": [1],
            "initializer_range": 1.0}  # fmt: skip
    trunk = PretrainedTrunk.from_configuration(tiny, "pooler", features=320)
    trained = seasoned(ImageClassifier(trunk, Head(320, 3, method="baseline")))
    written = export(trained, tmp_path / "a.onnx", "onnx").path
    assert "AveragePool" not in {node.op_type for node in onnx.load(written).graph.node}
    require_same(trained, written)


@pytest.mark.parametrize("form", FORMATS)
def test_branches_of_a_compact_network_are_exported_as_they_are(tmp_path, form):
    whole = compact() if form == "safetensors" else small("blockout")
    both_or_one = torch.tensor([[4.0, 4.0], [4.0, -4.0], [-4.0, 4.0]]).repeat(6, 1)
    for memberships in whole.model.memberships().values():
        with torch.no_grad():
            memberships.logits.copy_(both_or_one[: memberships.nodes])
    blocks = Costs(call=0, value=0, weight=0)  # as many as there can be
    branches = to_branches(whole.model.head, 0.5, measure=False, costs=blocks).eval()
    assert any(isinstance(module, DenseBlocks) for module in branches.modules())
    trained = replace(whole, model=ImageClassifier(whole.model.trunk, branches).eval())
    require_same(trained, export(trained, tmp_path / f"a.{form}", form).path)


def test_blockout_is_folded_and_dropconnect_keeps_the_mean_of_its_activation():
    blockout, dropconnect = small("blockout"), small("dropconnect")
    assert type(folded(blockout.model).get_submodule("head.fc2")) is nn.Linear
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(folded(dropconnect.model)(images), dropconnect.model(images))


def test_what_ships_has_no_batch_normalisation_in_its_trunk(exported):
    program = torch.export.load(exported["pt2"])
    names = [str(node.target) for node in program.graph.nodes]
    assert sum("conv2d" in name for name in names) == 1
    assert sum("batch_norm" in name for name in names) == 2  # of the head's two hidden layers
    graph = onnx.load(exported["onnx"]).graph
    assert "BatchNormalization" not in {node.op_type for node in graph.node}


@pytest.mark.parametrize("form", FORMATS)
def test_predictions_of_a_file_are_those_of_the_run(trained_as, exported, tmp_path, form):
    rng = np.random.default_rng(0)
    for i in range(3):
        pixels = rng.integers(0, 255, (30 + i, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    images = find_images([tmp_path])
    both = trained_as[form], load_exported(exported[form])
    expected, found = (list(predict(one, images)) for one in both)
    for a, b in zip(found, expected, strict=True):
        assert (a.image, a.classes) == (b.image, b.classes)
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-6)  # one float32 rounding


def described(path: Path) -> dict:
    """What the file says about itself, read as somebody without this library would."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return json.loads(session.get_modelmeta().custom_metadata_map["blockout"])
    if path.suffix == ".pt2":
        extra = {"blockout.json": ""}
        torch.export.load(path, extra_files=extra)
        return json.loads(extra["blockout.json"])
    with safetensors.safe_open(path, "pt") as file:
        return json.loads(file.metadata()["blockout"])


@pytest.mark.parametrize("form", FORMATS)
def test_class_names_and_preprocessing_are_in_the_metadata(exported, form):
    about = described(exported[form])
    seen = about["preprocessing"]
    assert (about["format"], tuple(about["classes"])) == (1, CLASSES)
    assert (seen["image_size"], tuple(seen["mean"]), tuple(seen["std"])) == (32, MEAN, STD)
    assert "centred square" in seen["crop"] and "bilinear" in seen["resize"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_stands_alone_and_says_nothing_of_this_machine(exported, form):
    content = exported[form].read_bytes()
    assert os.fsencode(Path(__file__).parents[2]) not in content
    assert os.fsencode(sys.prefix) not in content
    assert {path.name for path in exported[form].parent.iterdir()} == {f"net.{f}" for f in FORMATS}


def test_onnx_passes_the_checker_and_leaves_the_batch_open(exported):
    model = onnx.load(exported["onnx"])
    onnx.checker.check_model(model, full_check=True)
    assert not any(node.metadata_props for node in model.graph.node)  # of this source, long
    (images,), (out,) = model.graph.input, model.graph.output
    assert (images.name, out.name) == ("images", "logits")
    sizes = [d.dim_value for d in images.type.tensor_type.shape.dim]
    assert sizes == [0, 3, 32, 32] and images.type.tensor_type.shape.dim[0].dim_param


def off_by(trained: TrainedModel, share: float) -> TrainedModel:
    """A twin with one logit wrong by that share of the largest."""
    twin = folded(trained.model)
    assert isinstance(twin, ImageClassifier)
    largest = logits(trained, torch.randn(8, 3, 32, 32)).abs().max().clamp_min(1)
    twin.head.get_submodule("classifier").get_parameter("bias")[1] += share * largest
    return TrainedModel(twin, CLASSES, None, 32, MEAN, STD)


def test_a_difference_beyond_the_tolerance_is_an_error_and_below_it_none(trained, exported):
    read_back = load_exported(exported["safetensors"])
    assert compare(off_by(trained, TOLERANCE / 10), read_back) > TOLERANCE / 100
    with pytest.raises(ExportError, match="differs from the run: in a batch of 1 by"):
        compare(off_by(trained, TOLERANCE * 10), read_back)
    with pytest.raises(ExportError, match="outputs that are not finite"):
        compare(off_by(trained, float("nan")), read_back)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_every_batch_size_is_compared(trained, batch):
    def wrong_in_one(images: torch.Tensor) -> torch.Tensor:
        return logits(trained, images) + (len(images) == batch)

    fake = TrainedModel(wrong_in_one, CLASSES, None, 32, MEAN, STD)  # pyright: ignore
    with pytest.raises(ExportError, match=f"in a batch of {batch} by"):
        compare(trained, fake)  # pyright: ignore


@pytest.mark.parametrize("before", [None, b"as it was"])
def test_a_mismatch_leaves_no_file_and_an_old_one_as_it_was(trained, tmp_path, monkeypatch, before):
    path = tmp_path / "a.safetensors"
    if before:
        path.write_bytes(before)
    monkeypatch.setattr("blockout.export.writing.folded", lambda _: off_by(trained, 0.1).model)
    with pytest.raises(ExportError, match="differs from the run"):
        export(trained, path, "safetensors")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([before] if before else [])


def test_a_full_disk_is_said_and_leaves_what_was_there(trained, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"as it was")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(ExportError, match=r"cannot write .*; free some space or name another"):
            export(trained, path, "safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"as it was"]


def test_only_files_are_replaced_and_links_are_followed(trained, tmp_path):
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(ExportError, match=r"folder.safetensors is not a regular file"):
        export(trained, tmp_path / "folder.safetensors", "safetensors")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link-to-pipe.safetensors").symlink_to(tmp_path / "pipe")
    with pytest.raises(ExportError, match="pipe is not a regular file"):
        export(trained, tmp_path / "link-to-pipe.safetensors", "safetensors")
    with pytest.raises(ExportError, match=r"there is no folder .*gone"):
        export(trained, tmp_path / "gone" / "a.safetensors", "safetensors")
    (tmp_path / "old").write_bytes(b"")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "old")
    export(trained, tmp_path / "link.safetensors", "safetensors")
    assert (tmp_path / "link.safetensors").is_symlink() and (tmp_path / "old").stat().st_size


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_names_the_extra(trained, exported, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    reads = package == "onnxruntime"
    with pytest.raises(ImportError, match=rf"package {package}: pip install 'blockout\[export\]'"):
        load_exported(exported["onnx"]) if reads else export(trained, tmp_path / "a.onnx", "onnx")


class Unfollowable(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("form", ["onnx", "pt2"])
def test_a_network_that_cannot_be_traced_is_said(tmp_path, form: Format):
    model = ImageClassifier(nn.Sequential(nn.Conv2d(3, 8, 3), Unfollowable()), Head(8, 3, nodes=4))
    trained = TrainedModel(model.eval(), CLASSES, None, 32, MEAN, STD)
    with pytest.raises(ExportError, match=r"torch\.export cannot follow this network"):
        export(trained, tmp_path / f"a.{form}", form)
    assert not list(tmp_path.iterdir())


class Eigenvalues(nn.Module):
    """Traced by torch, unknown to ONNX."""

    def forward(self, x):
        return torch.linalg.eigvalsh(x @ x.mT).unsqueeze(-1) + x


def test_what_a_format_cannot_hold_is_said_with_one_that_can(tmp_path):
    odd = nn.Sequential(nn.Conv2d(3, 8, 3), Eigenvalues())
    model = ImageClassifier(odd, Head(8, 3, nodes=4)).eval()
    trained = TrainedModel(model, CLASSES, None, 32, MEAN, STD)
    with pytest.raises(ExportError, match=r"ONNX cannot express .* try --format pt2 or safet"):
        export(trained, tmp_path / "a.onnx", "onnx")
    with pytest.raises(ExportError, match=r"read back: it is refused: it calls 'torch\.ops"):
        export(trained, tmp_path / "a.pt2", "pt2")
    with pytest.raises(ExportError, match=r"Sequential is your own trunk; use --format onnx"):
        export(trained, tmp_path / "a.safetensors", "safetensors")
    assert not list(tmp_path.iterdir())
