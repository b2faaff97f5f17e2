import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blockout.data import DataError, sources
from blockout.data.sources import find
from blockout.data.tables import HOLDOUT, TEST, TRAIN

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data folder, an empty working folder, and a hub that cannot be reached."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.delenv("BLOCKOUT_DATA_DIR", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sources.socket, "create_connection", refuse)
    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)


def dataset_of(labels: list[int], seed: int = 0) -> "datasets.Dataset":
    stored = []
    for i in range(len(labels)):
        file = io.BytesIO()
        pixels = np.random.default_rng([seed, i]).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(file, "PNG")
        stored.append({"bytes": file.getvalue(), "path": None})
    features = {"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    return datasets.Dataset.from_dict(
        {"img": stored, "label": labels}, features=datasets.Features(features)
    )


def write_parquet(file: Path, labels: list[int], seed: int = 0) -> None:
    import pyarrow.parquet

    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(dataset_of(labels, seed).data.table, file)


def test_an_image_folder_is_found_by_its_path(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = find(str(image_folder({"a": 1, "b": 2})), tmp_path)
    assert source.name == "set" and source.open().catalogue.labels.tolist() == [0, 1, 1]


def test_a_parquet_file_is_one_split(tmp_path: Path) -> None:
    write_parquet(tmp_path / "pets.parquet", [1, 0, 1])
    source = find(str(tmp_path / "pets.parquet"), tmp_path / "cache")
    table = source.open()
    assert source.name == "pets" and table.catalogue.classes == ("cat", "dog")
    assert table.catalogue.labels.tolist() == [1, 0, 1]
    assert np.array_equal(
        table.rows.image(1), np.random.default_rng([0, 1]).integers(0, 256, (8, 8, 3), np.uint8)
    )
    assert source.scratch is not None and any(source.scratch.iterdir())


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"),
        ("data/train-0.parquet", "data/test-0.parquet"),
        ("train/0000.parquet", "test/0000.parquet"),
        ("train.parquet", "validation.parquet"),
    ],
)
def test_parquet_files_belong_to_the_split_they_are_named_after(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    write_parquet(tmp_path / "pets" / names[0], [0, 1, 0])
    write_parquet(tmp_path / "pets" / names[1], [1, 1], seed=1)
    catalogue = find(str(tmp_path / "pets"), tmp_path / "cache").open().catalogue
    assert catalogue.labels.tolist() == [0, 1, 0, 1, 1]
    assert catalogue.parts.tolist() == [TRAIN] * 3 + [TEST] * 2


def test_several_parquet_files_of_a_split_are_joined_in_order(tmp_path: Path) -> None:
    for name, labels in (("train-0", [0, 0]), ("train-1", [1]), ("val-0", [1]), ("test-0", [0])):
        write_parquet(tmp_path / "pets" / f"{name}.parquet", labels)
    catalogue = find(str(tmp_path / "pets"), tmp_path / "cache").open().catalogue
    assert catalogue.labels.tolist() == [0, 0, 1, 1, 0]
    assert catalogue.parts.tolist() == [TRAIN] * 3 + [HOLDOUT, TEST]


def test_parquet_files_without_split_names_are_all_training(tmp_path: Path) -> None:
    for name in ("part1", "part2"):
        write_parquet(tmp_path / "pets" / f"{name}.parquet", [0, 1])
    assert len(find(str(tmp_path / "pets"), tmp_path / "cache").open().rows) == 4
    write_parquet(tmp_path / "pets" / "test.parquet", [0, 1])
    with pytest.raises(DataError, match=r"part1.parquet belongs to no split"):
        find(str(tmp_path / "pets"), tmp_path / "cache")


def test_parquet_files_that_name_their_classes_differently_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", [0, 1])
    dataset = dataset_of([0, 1])
    label = next(name for name, kind in dataset.features.items() if hasattr(kind, "names"))
    names = dataset.features[label].names
    swapped = dataset.cast_column(label, datasets.ClassLabel(names=names[::-1]))
    swapped.to_parquet(str(tmp_path / "test-0.parquet"))
    with pytest.raises(DataError, match=rf"name their classes differently \(columns {label}\)"):
        find(str(tmp_path), tmp_path / "cache").open()


def test_a_parquet_file_of_one_enormous_group_of_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "pets.parquet", [0, 1] * 40)
    monkeypatch.setattr(sources, "LARGEST_ROW_GROUP", 5000)
    with pytest.raises(DataError, match=r"pets\.parquet holds [\d,]+ bytes in one row group"):
        find(str(tmp_path / "pets.parquet"), tmp_path / "cache").open()
    monkeypatch.setattr(sources, "LARGEST_ROW_GROUP", 50000)
    table = find(str(tmp_path / "pets.parquet"), tmp_path / "cache").open()
    assert table.catalogue.labels.tolist() == [0, 1] * 40


def test_a_copy_that_was_touched_is_made_anew(tmp_path: Path) -> None:
    write_parquet(tmp_path / "pets.parquet", [1, 0, 1])
    source = find(str(tmp_path / "pets.parquet"), tmp_path / "cache")
    source.open()
    copy = next((tmp_path / "cache").rglob("train.arrow"))
    whole = copy.read_bytes()
    before = copy.stat().st_mtime_ns
    assert source.open().catalogue.labels.tolist() == [1, 0, 1]
    assert copy.stat().st_mtime_ns == before  # used again
    copy.write_bytes(whole[:-40])
    assert source.open().catalogue.labels.tolist() == [1, 0, 1]
    assert copy.read_bytes() == whole


def test_a_pipe_called_parquet_is_not_waited_for(tmp_path: Path) -> None:
    write_parquet(tmp_path / "pets" / "train.parquet", [1, 0, 1])
    os.mkfifo(tmp_path / "pets" / "more.parquet")
    source = find(str(tmp_path / "pets"), tmp_path / "cache")
    assert source.open().catalogue.labels.tolist() == [1, 0, 1]


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pets.parquet").write_bytes(b"PAR1 not really")
    source = find(str(tmp_path / "pets.parquet"), tmp_path / "cache")
    with pytest.raises(DataError, match=r"cannot read the parquet files of .*pets.parquet"):
        source.open()


def test_the_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    file = tmp_path / "pets.parquet"
    write_parquet(file, [0, 1])
    one = find(str(file), tmp_path).fingerprint
    assert find(str(file), tmp_path).fingerprint == one
    write_parquet(file, [0, 1, 1])
    assert find(str(file), tmp_path).fingerprint != one


@pytest.mark.parametrize("name", ["cifar10", "pets"])
def test_a_name_is_looked_up_in_the_data_folder(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKOUT_DATA_DIR", str(tmp_path / "data"))
    write_parquet(tmp_path / "data" / name / "train.parquet", [0, 1, 1])
    source = find(name, tmp_path / "cache")
    assert source.name == name and source.open().catalogue.labels.tolist() == [0, 1, 1]


def test_a_known_name_is_asked_of_the_hub_under_its_full_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def hub(name: str, configuration: str | None) -> "datasets.DatasetDict":
        asked.append((name, configuration))
        return datasets.DatasetDict(train=dataset_of([0, 1]), test=dataset_of([1, 0]))

    monkeypatch.setattr(datasets, "load_dataset", hub)
    Path("cifar100").mkdir()  # a folder of that name beside the caller is not meant
    assert find("cifar100", tmp_path).open().catalogue.labels.tolist() == [0, 1, 1, 0]
    assert find("hf://owner/pets:large", tmp_path).name == "owner-pets-large"
    assert asked == [("uoft-cs/cifar100", None), ("owner/pets", "large")]


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionError("Couldn't reach the Hub\nwith details"),
        FileNotFoundError("Dataset doesn't exist"),
        ValueError("Config name is missing"),
        ConnectionError(),
    ],
)
def test_what_is_not_found_says_where_was_looked_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def hub(*_: object) -> None:
        raise failure

    monkeypatch.setattr(datasets, "load_dataset", hub)
    with pytest.raises(DataError) as caught:
        find("cifar100", tmp_path)
    message = str(caught.value)
    assert "$BLOCKOUT_DATA_DIR (not set)" in message and "Hugging Face cache" in message
    assert "set BLOCKOUT_DATA_DIR" in message and "connect to the network" in message
    assert "'uoft-cs/cifar100'" in message and "\n" not in message
    assert (str(failure).split("\n")[0] or "ConnectionError") in message


def test_without_a_network_only_the_hugging_face_cache_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets.config
    import huggingface_hub.constants as constants

    seen = []

    def hub(*_: object) -> "datasets.DatasetDict":
        seen.append((constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE))
        return datasets.DatasetDict(train=dataset_of([0, 1]))

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", hub)
    find("hf://owner/pets", tmp_path)
    assert seen == [(True, True)]
    assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (False, False)


def test_what_may_not_be_fetched_is_not_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real library, with a network that notes who is asked."""
    import socket

    asked = []

    def note(host: object, *_: object, **__: object) -> None:
        asked.append(host)
        raise OSError("no network in tests")

    monkeypatch.setattr(sources.socket, "create_connection", note)
    monkeypatch.setattr(socket, "getaddrinfo", note)
    monkeypatch.setattr(socket.socket, "connect", note)
    fetched = r"asked nobody else.* say --data hf://owner/pets to fetch it"
    with pytest.raises(DataError, match=fetched):
        find("hf://owner/pets", tmp_path, fetch=False)
    with pytest.raises(DataError) as caught:  # the name of a folder, perhaps, and private
        find("my/photos", tmp_path)
    assert str(caught.value) == (
        "there is no file or folder 'my/photos', and the Hugging Face cache has no data set of "
        "this name; to ask the hub for it, write --data hf://my/photos"
    )
    assert asked == []
    with pytest.raises(DataError, match=r"Looked in the Hugging Face cache and on the hub for"):
        find("hf://owner/pets", tmp_path)
    assert asked != []


def test_an_id_of_older_runs_finds_what_the_hugging_face_cache_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants as constants

    offline = []

    def hub(*_: object) -> "datasets.DatasetDict":
        offline.append(constants.HF_HUB_OFFLINE)
        return datasets.DatasetDict(train=dataset_of([0, 1]))

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(sources, "_reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", hub)
    old, new = (find(name, tmp_path) for name in ("owner/pets", "hf://owner/pets"))
    assert offline == [True, False] and old.name == new.name == "owner-pets"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("cifar-100", "no data set or folder 'cifar-100'; did you mean 'cifar100'?"),
        ("shape", "no data set or folder 'shape'; did you mean 'shapes'?"),
        ("flowrs", "no data set or folder 'flowrs'; did you mean 'flowers'?"),
        ("./flowrs", "no file or folder './flowrs'; did you mean 'flowers'?"),
        ("flowers/rose", "no file or folder 'flowers/rose'"),
        ("gone.parquet", "no file or folder 'gone.parquet'"),
        (
            "wedding",
            "no data set or folder 'wedding'; a data set of the Hugging Face hub is "
            "hf://owner/name",
        ),
        ("some where/else", "no file or folder 'some where/else'"),
    ],
)
def test_a_typing_error_is_told_from_the_nearest_name(
    typed: str, message: str, tmp_path: Path
) -> None:
    Path("flowers").mkdir()
    with pytest.raises(DataError) as caught:
        find(typed, tmp_path)
    assert str(caught.value) == f"there is {message}"


def test_what_is_no_id_is_not_asked_of_the_hub(tmp_path: Path) -> None:
    for name in ("hf://", "hf://a/b/c", "hf://../x y"):
        with pytest.raises(DataError, match=r"a data set of the hub is hf://owner/name"):
            find(name, tmp_path)


def test_a_relative_path_stays_right_when_the_working_folder_changes(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder({"a": 1, "b": 1})
    monkeypatch.chdir(tmp_path)
    table = find("set", tmp_path / "cache").open()
    monkeypatch.chdir(tmp_path / "here")
    assert table.rows.image(0).size == (32, 32)


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(sources, "list_folder", refuse)
    with pytest.raises(DataError, match=r"cannot read .*locked: Permission denied"):
        find(str(tmp_path / "locked"), tmp_path)


def test_a_file_that_is_no_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"is a file; expected a folder of images or a \.parquet"):
        find(str(tmp_path / "notes.txt"), tmp_path)
