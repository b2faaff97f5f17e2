import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from blockout.data import DataConfig, DataError, MemorySplit, StreamSplit, load, prepare, shapes
from blockout.data import load as load_function

Folder = Callable[..., Path]
load_module = sys.modules[load_function.__module__]


def config_of(folder: Path, tmp_path: Path, **options: object) -> DataConfig:
    settings = {"cache": tmp_path / "cache", "workers": 0, "holdout": 0.0, **options}
    return DataConfig(data=str(folder), **settings)  # type: ignore[arg-type]


def test_shapes_come_with_their_groups_and_need_no_disk(tmp_path: Path) -> None:
    data = load(DataConfig(cache=tmp_path / "cache", holdout=0.0))
    assert data.name == "shapes" and data.image_size == 32
    assert data.classes == shapes.CLASSES and data.groups == shapes.GROUPS
    assert data.train.labels.bincount().tolist() == [500] * 20
    assert data.test.labels.bincount().tolist() == [100] * 20 and len(data.holdout) == 0
    images, _ = shapes.generate(500, 0)
    assert np.array_equal(data.train.images_at([7, 9000]), images[[7, 9000]])
    assert not (tmp_path / "cache").exists()


def test_shapes_change_with_the_data_seed_and_refuse_another_size() -> None:
    config = DataConfig(data_seed=1, per_class=2, holdout=0.1)
    data = load(config)
    assert len(data.train) == 40
    # a tenth of 10,000 by chance; five standard deviations of 30
    assert 850 < len(data.holdout) < 1150 and data.holdout.labels.bincount().min() > 0
    images, labels = shapes.generate(100, 1, part=2)
    assert np.array_equal(data.test.images_at(range(2000)), images)
    assert data.test.labels.tolist() == labels.tolist()
    for wrong in ({"image_size": 64}, {"stream": True}):
        with pytest.raises(DataError, match="generated in memory at 32 pixels"):
            load(DataConfig(**wrong))


def test_training_images_have_mean_zero_and_deviation_one(
    image_folder: Folder, tmp_path: Path
) -> None:
    data = load(config_of(image_folder({"a": 9, "b": 8}), tmp_path, holdout=0.3))
    (images, _), *rest = data.train.batches(100, train=False)
    assert not rest
    # float32 sums of 10,000 values
    assert images.mean((0, 2, 3)).abs().max() < 1e-5
    assert (images.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("stream", [None, True])
def test_prepare_sees_what_evaluation_sees(
    image_folder: Folder, tmp_path: Path, stream: bool | None
) -> None:
    folder = image_folder({f"{s}/{c}": 2 for s in ("train", "test") for c in "ab"}, "s", 50, 40)
    data = load(config_of(folder, tmp_path, stream=stream))
    (images, labels), *_ = data.test.batches(4, train=False)
    assert labels.tolist() == [0, 0, 1, 1]
    assert type(data.test) is (StreamSplit if stream else MemorySplit)
    for i, name in enumerate(("a/000", "a/001", "b/000", "b/001")):
        file = folder / "test" / f"{name}.png"
        assert torch.equal(prepare(file, data.image_size, data.mean, data.std), images[i])


def test_streamed_and_decoded_data_agree_in_all_but_the_crops(
    image_folder: Folder, tmp_path: Path
) -> None:
    folder = image_folder({"g/a": 5, "g/b": 6, "h/c": 7}, "s", 40, 40)
    memory, stream = (
        load(config_of(folder, tmp_path, stream=s, holdout=0.2, balance=True, image_size=32))
        for s in (False, True)
    )
    for name in ("name", "classes", "groups", "group_names", "mean", "std", "image_size", "notes"):
        assert getattr(memory, name) == getattr(stream, name), name
    assert memory.groups == (0, 0, 1)
    assert isinstance(memory.train, MemorySplit) and isinstance(stream.train, StreamSplit)
    assert torch.equal(memory.class_weights, stream.class_weights)  # type: ignore[arg-type]
    for name in ("train", "holdout", "test"):
        ours, theirs = getattr(memory, name), getattr(stream, name)
        assert torch.equal(ours.labels, theirs.labels)
        every = range(len(ours))
        assert torch.equal(ours.images_at(every), theirs.images_at(every))


@pytest.mark.parametrize("stream", [False, True])
def test_without_augmentation_training_sees_the_images_as_they_are(
    image_folder: Folder, tmp_path: Path, stream: bool
) -> None:
    folder = image_folder({"a": 8, "b": 7}, "s", 40, 40)

    def seen(augment: bool) -> list[torch.Tensor]:
        """The training images in their own order, in two epochs."""
        config = config_of(folder, tmp_path, stream=stream, image_size=32, augment=augment)
        train, epochs = load(config).train, []
        for epoch in range(2):
            order = np.random.default_rng([0, epoch]).permutation(len(train))
            x = torch.cat(
                [x for x, _ in train.batches(4, train=True, epoch=epoch, drop_last=False)]
            )
            epochs.append(x[np.argsort(order)])
        plain = torch.cat([x for x, _ in train.batches(4, train=False)])
        return [*epochs, plain]

    first, second, plain = seen(augment=False)
    assert torch.equal(first, plain) and torch.equal(second, plain)
    first, second, plain = seen(augment=True)
    assert not torch.equal(first, plain) and not torch.equal(first, second)


def test_sets_beyond_the_limit_of_memory_are_streamed(
    image_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder({"a": 5, "b": 5})
    monkeypatch.setattr(load_module, "MEMORY_LIMIT", 10 * 32 * 32 * 3)
    assert isinstance(load(config_of(folder, tmp_path)).train, MemorySplit)
    monkeypatch.setattr(load_module, "MEMORY_LIMIT", 10 * 32 * 32 * 3 - 1)
    other = tmp_path / "other"
    assert isinstance(load(config_of(folder, other)).train, StreamSplit)
    assert isinstance(load(config_of(folder, other, stream=False)).train, MemorySplit)


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(32, 32, 32), (40, 50, 40), (8, 8, 28), (90, 90, 64), (97, 120, 64), (300, 230, 64)],
)
def test_the_size_follows_the_images(
    image_folder: Folder, tmp_path: Path, width: int, height: int, size: int
) -> None:
    folder = image_folder({"a": 2, "b": 2}, "s", width, height)
    data = load(config_of(folder, tmp_path))
    assert data.image_size == size and data.train.images_at([0]).shape == (1, size, size, 3)
    assert load(config_of(folder, tmp_path, image_size=16)).train.images_at([0]).shape[1] == 16


def test_balance_weighs_classes_inversely_to_their_size(
    image_folder: Folder, tmp_path: Path
) -> None:
    folder = image_folder({"train/a": 6, "train/b": 2, "test/a": 1, "test/b": 1})
    data = load(config_of(folder, tmp_path, balance=True))
    assert data.class_weights is not None
    torch.testing.assert_close(data.class_weights, torch.tensor([8 / 12, 8 / 4]))
    assert data.class_weights[data.train.labels].mean().item() == pytest.approx(1)
    assert load(config_of(folder, tmp_path)).class_weights is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_damaged_file_stops_or_is_skipped_and_counted(
    image_folder: Folder, tmp_path: Path, stream: bool
) -> None:
    folder = image_folder({"a": 5, "b": 4})
    (folder / "a" / "001.png").write_bytes(b"broken")
    whole = (folder / "b" / "003.png").read_bytes()
    (folder / "b" / "003.png").write_bytes(whole[:1500])
    with pytest.raises(DataError, match=r"cannot read .*(a.001|b.003)\.png"):
        load(config_of(folder, tmp_path, stream=stream, image_size=32, test_share=0.01))
    data = load(config_of(folder, tmp_path, stream=stream, skip_corrupt=True))
    assert len(data.train) + len(data.test) == 7
    (note,) = [n for n in data.notes if "unreadable" in n]
    assert note.startswith("skipped 2 unreadable images: ") and str(folder) not in note
    assert "001.png" in note and "003.png" in note
    kept = sorted(
        image.numpy().tobytes()
        for split in (data.train, data.test)
        for image in split.images_at(range(len(split)))
    )
    names = ["a/000", "a/002", "a/003", "a/004", "b/000", "b/001", "b/002"]
    files = [np.asarray(Image.open(folder / f"{n}.png").copy()).tobytes() for n in names]
    assert kept == sorted(files)


@pytest.mark.parametrize("stream", [False, True])
def test_what_only_looks_like_an_image_is_refused_or_skipped_and_counted(
    image_folder: Folder, tmp_path: Path, stream: bool
) -> None:
    folder = image_folder({"a": 4, "b": 4})
    (folder / "a" / "1 empty.png").touch()
    (folder / "b" / "3 zero.png").symlink_to("/dev/zero")
    Image.new("RGB", (32, 32)).save(folder / "b" / "4 script.png", "EPS")
    os.mkfifo(folder / "a" / "2 pipe.png")
    names = ("1 empty", "2 pipe", "3 zero", "4 script")
    with pytest.raises(DataError, match=f"cannot read .*({'|'.join(names)})"):
        load(config_of(folder, tmp_path, stream=stream, image_size=32, test_share=0.01))
    data = load(config_of(folder, tmp_path, stream=stream, skip_corrupt=True))
    assert len(data.train) + len(data.test) == 8
    assert any(note.startswith("skipped 4 unreadable images") for note in data.notes)


@pytest.mark.parametrize("stream", [False, True])
def test_a_class_with_no_readable_image_is_refused(
    image_folder: Folder, tmp_path: Path, stream: bool
) -> None:
    folder = image_folder({"a": 3, "b": 1})
    (folder / "b" / "000.png").write_bytes(b"")
    with pytest.raises(DataError, match="has no image of 'b'"):
        load(config_of(folder, tmp_path, stream=stream, skip_corrupt=True))


def test_one_class_only_is_refused(image_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has only one class, 'a'"):
        load(config_of(image_folder({"a": 3}), tmp_path))


def test_a_second_start_decodes_nothing_and_sees_the_same(
    image_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(image_folder({"a": 5, "b": 5}), tmp_path)
    first = load(config)

    def decode(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(load_module, "_decode", decode)
    second = load(config)
    for split in ("train", "test"):
        one, two = getattr(first, split), getattr(second, split)
        for (a, b), (c, d) in zip(
            one.batches(3, train=True), two.batches(3, train=True), strict=True
        ):
            assert torch.equal(a, c) and torch.equal(b, d)
    assert (first.mean, first.std, first.notes) == (second.mean, second.std, second.notes)


def test_a_damaged_cache_is_rebuilt(image_folder: Folder, tmp_path: Path) -> None:
    config = config_of(image_folder({"a": 5, "b": 5}), tmp_path)
    kept = load(config).train
    before = kept.images_at(range(len(kept))).clone()
    (entry,) = (e for e in (tmp_path / "cache" / "decoded").iterdir() if e.is_dir())
    content = bytearray((entry / "images.npy").read_bytes())
    content[-1] ^= 255
    (entry / "images.npy").write_bytes(content)
    assert torch.equal(load(config).train.images_at(range(len(before))), before)
    assert (entry / "images.npy").read_bytes() != bytes(content)


def test_a_changed_folder_is_decoded_anew(
    image_folder: Folder, tmp_path: Path, picture: Callable[..., Image.Image]
) -> None:
    folder = image_folder({"a": 5, "b": 5})
    before = load(config_of(folder, tmp_path))
    picture(77).save(folder / "a" / "new.png")
    picture(78).save(folder / "b" / "new.png")
    after = load(config_of(folder, tmp_path))
    assert len(before.train) + len(before.test) == 10 and len(after.train) + len(after.test) == 12


def test_importing_the_data_room_does_not_import_datasets() -> None:
    """It takes a second, and a second start does not need it."""
    code = "import sys, blockout.data; print('datasets' in sys.modules, 'pandas' in sys.modules)"
    source = Path(load_module.__file__ or "").parents[2]
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(source)},
    ).stdout
    assert output.split() == ["False", "False"]


@pytest.fixture
def cifar() -> None:
    folder = os.environ.get("BLOCKOUT_DATA_DIR")
    if not folder or not (Path(folder) / "cifar100").is_dir():
        pytest.skip("needs $BLOCKOUT_DATA_DIR with cifar100/ in it")


@pytest.mark.usefixtures("cifar")
def test_cifar100_has_its_classes_superclasses_and_known_mean(tmp_path: Path) -> None:
    config = DataConfig(data="cifar100", cache=tmp_path / "cache", holdout=0.1)
    data = load(config)
    assert (len(data.train) + len(data.holdout), len(data.test)) == (50_000, 10_000)
    assert abs(len(data.holdout) - 5000) < 400  # drawn by content: six standard deviations
    held = data.holdout.labels.bincount(minlength=100)
    assert torch.equal(data.train.labels.bincount(), 500 - held)
    assert held.min() > 15 and held.max() < 95  # 50 each: five and seven standard deviations
    assert data.test.labels.bincount().tolist() == [100] * 100
    assert data.groups is not None and data.group_names is not None
    assert np.bincount(data.groups).tolist() == [5] * 20
    trees = {c for c, g in zip(data.classes, data.groups, strict=True) if g == 17}
    assert data.group_names[17] == "trees" and "oak_tree" in trees and len(trees) == 5
    # published for all 50,000 training images; a tenth of them moves it by less than 0.002
    assert np.abs(np.subtract(data.mean, (0.5071, 0.4865, 0.4409))).max() < 0.002
    assert np.abs(np.subtract(data.std, (0.2673, 0.2564, 0.2762))).max() < 0.002
    assert not (tmp_path / "cache" / "arrow").exists() or not any(
        (tmp_path / "cache" / "arrow").iterdir()
    )
    before = time.perf_counter()
    again = load(config)
    assert time.perf_counter() - before < 3  # about 0.2 s
    assert torch.equal(again.train.images_at([0, 44_000]), data.train.images_at([0, 44_000]))
