"""Which files are predicted, and that a prediction is the model's own softmax."""

import numpy as np
import pytest
import torch
from PIL import Image

from blockout.commands.prediction import BATCH, find_images, predict
from blockout.data import DataError, prepare
from blockout.models import ModelConfig, build_model
from blockout.training import TrainedModel

CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    torch.manual_seed(0)
    config = ModelConfig(width=0.1, nodes=16, clusters=2)
    model = build_model(config, classes=3, data_name="own", image_size=32)
    return TrainedModel(model.eval(), CLASSES, None, 32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, mode in (("b.png", "RGBA"), ("a.jpg", "L"), ("sub/C.PNG", "RGB"), (".d.png", "RGB")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (30, 40, 4), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(path)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    return tmp_path / "images"


def test_folders_give_their_images_in_order_without_hidden_ones(folder):
    names = [p.relative_to(folder).as_posix() for p in find_images([folder / "b.png", folder])]
    assert names == ["b.png", "a.jpg", "b.png", "sub/C.PNG"]


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no image or folder .*gone\.png"):
        find_images([tmp_path / "gone.png"])
    with pytest.raises(DataError, match="no images in"):
        find_images([tmp_path])


def test_predictions_are_the_softmax_of_each_image_alone(trained, folder):
    images = find_images([folder])
    for path, found in zip(images, predict(trained, images, top=2), strict=True):
        x = prepare(path, 32, trained.mean, trained.std)[None]
        p = trained.model(x).softmax(1)[0].tolist()
        best = sorted(range(3), key=lambda i: -p[i])[:2]
        assert found.image == str(path)
        assert found.classes == tuple(CLASSES[i] for i in best)
        # float32 rounds differently in a batch
        assert found.probabilities == pytest.approx([p[i] for i in best], abs=1e-5)


def test_more_images_than_a_batch_keep_their_order(trained, folder):
    images = [folder / "a.jpg"] * BATCH + [folder / "b.png"]
    assert [found.image for found in predict(trained, images)] == [str(path) for path in images]


def test_more_classes_than_there_are_gives_all_of_them(trained, folder):
    (found,) = predict(trained, [folder / "a.jpg"], top=99)
    assert sorted(found.classes) == sorted(CLASSES)
    assert sum(found.probabilities) == pytest.approx(1, abs=1e-5)  # three float32


def test_a_damaged_file_is_named(trained, folder):
    (folder / "bad.png").write_bytes(b"\x89PNG rubbish")
    with pytest.raises(DataError, match=r"bad\.png"):
        list(predict(trained, [folder / "a.jpg", folder / "bad.png"]))
