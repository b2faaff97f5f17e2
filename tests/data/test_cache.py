import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from blockout.data import DataError, cache
from blockout.data.cache import Decoded
from blockout.data.tables import Catalogue


@pytest.fixture
def decoded() -> Decoded:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    labels, parts = np.array([0, 1, 2, 0, 1, 2]), np.array([0, 0, 0, 2, 2, 2])
    contents = np.random.default_rng(1).integers(0, 256, (6, 16), np.uint8)
    known = ("a", "b", "c"), (0, 1, 1), ("x", "y"), labels, parts, ("a note",), contents
    return Decoded(Catalogue(*known), images, cache.moments_of(images), tuple("uvwxyz"))


def test_what_is_read_is_what_was_written(tmp_path: Path, decoded: Decoded) -> None:
    cache.write(tmp_path, "it", decoded)
    found = cache.read(tmp_path, "it")
    assert found is not None
    assert np.array_equal(found.images, decoded.images)
    assert np.array_equal(found.moments, decoded.moments) and found.names == decoded.names
    for field in dataclasses.fields(Catalogue):
        ours, theirs = getattr(found.catalogue, field.name), getattr(decoded.catalogue, field.name)
        assert type(ours) is type(theirs) and np.array_equal(ours, theirs), field.name


def test_groups_may_be_unknown(tmp_path: Path, decoded: Decoded) -> None:
    plain = dataclasses.replace(decoded.catalogue, groups=None, group_names=None)
    cache.write(tmp_path, "it", dataclasses.replace(decoded, catalogue=plain))
    found = cache.read(tmp_path, "it")
    assert found is not None and found.catalogue.groups is None


@pytest.mark.parametrize("name", ["images.npy", "rows.npy", "about.json"])
@pytest.mark.parametrize("damage", ["gone", "cut", "one bit", "empty"])
def test_a_damaged_entry_is_not_read(
    tmp_path: Path, decoded: Decoded, name: str, damage: str
) -> None:
    cache.write(tmp_path, "it", decoded)
    file = tmp_path / "decoded" / "it" / name
    content = file.read_bytes()
    flipped = content[:-20] + bytes([content[-20] ^ 4]) + content[-19:]
    file.unlink()
    if damage != "gone":
        file.write_bytes({"cut": content[:-7], "one bit": flipped, "empty": b""}[damage])
    assert cache.read(tmp_path, "it") is None
    cache.write(tmp_path, "it", decoded)
    assert cache.read(tmp_path, "it") is not None


def test_a_changed_name_of_a_class_is_noticed(tmp_path: Path, decoded: Decoded) -> None:
    cache.write(tmp_path, "it", decoded)
    file = tmp_path / "decoded" / "it" / "about.json"
    file.write_text(file.read_text().replace('"b"', '"d"'))
    assert cache.read(tmp_path, "it") is None


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{}", '{"checksums": 1, "more": 2}', "3"])
def test_an_entry_that_is_something_else_is_not_read(tmp_path, decoded, text) -> None:
    cache.write(tmp_path, "it", decoded)
    (tmp_path / "decoded" / "it" / "about.json").write_text(text)
    assert cache.read(tmp_path, "it") is None


def test_an_entry_without_a_digest_is_not_read(tmp_path: Path, decoded: Decoded) -> None:
    cache.write(tmp_path, "it", decoded)
    file = tmp_path / "decoded" / "it" / "about.json"
    about = json.loads(file.read_text())
    del about["sha256"]
    file.write_text(json.dumps(about | {"classes": ["c", "b", "a"]}))
    assert cache.read(tmp_path, "it") is None


def test_entries_that_nobody_writes_any_more_are_deleted(tmp_path: Path, decoded: Decoded) -> None:
    place = tmp_path / "decoded"
    unfinished = [".it.99", ".other-0f.12", "older-0123456789abcdef.x8_abcde", ".living.3"]
    for name in unfinished:
        (place / name).mkdir(parents=True)
        (place / name / "images.npy").write_bytes(b"half")
    with FileLock(place / "living.lock"), cache.locked(tmp_path, "it"):
        cache.write(tmp_path, "it", decoded)
    assert {path.name for path in place.iterdir() if path.is_dir()} == {"it", ".living.3"}


def test_an_entry_that_fails_while_written_leaves_nothing(
    tmp_path: Path, decoded: Decoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.np, "save", full)
    with pytest.raises(DataError, match=r"cannot write to the cache .* No space left .* --cache"):
        cache.write(tmp_path, "it", decoded)
    assert list((tmp_path / "decoded").iterdir()) == []


def test_a_cache_folder_that_cannot_be_made_names_the_flag(
    tmp_path: Path, decoded: Decoded
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose another with --cache or BLOCKOUT_CACHE_DIR"):
        cache.write(tmp_path / "file", "it", decoded)
    with (
        pytest.raises(DataError, match="choose another with --cache"),
        cache.locked(tmp_path / "file", "it"),
    ):
        pass


def test_moments_are_exact_sums(decoded: Decoded) -> None:
    pixels = decoded.images.reshape(6, 64, 3).astype(object)
    expected = np.concatenate([pixels.sum(1), (pixels**2).sum(1)], axis=1)
    assert (cache.moments_of(decoded.images, chunk=4) == expected).all()


def test_moments_of_large_white_images_do_not_overflow() -> None:
    moments = cache.moments_of(np.full((1, 300, 300, 3), 255, np.uint8))
    assert moments[0].tolist() == [255 * 300**2] * 3 + [255**2 * 300**2] * 3


def test_a_key_depends_on_every_fact() -> None:
    assert cache.key_of("a", 32, None) == cache.key_of("a", 32, None)
    assert len({cache.key_of(*f) for f in (("a", 32), ("a", None), ("b", 32), ("a", 32, 1))}) == 4


def test_a_result_is_computed_once_and_again_when_damaged(tmp_path: Path) -> None:
    calls = []

    def compute() -> list[int]:
        calls.append(1)
        return [1, 2]

    assert cache.remembered(tmp_path, "it", compute) == [1, 2]
    assert cache.remembered(tmp_path, "it", compute) == [1, 2] and len(calls) == 1
    (file,) = (tmp_path / "results").iterdir()
    file.write_text(file.read_text()[:-3])
    assert cache.remembered(tmp_path, "it", compute) == [1, 2] and len(calls) == 2
    file.write_text(file.read_text().replace("[1, 2]", "[1, 3]"))
    assert cache.remembered(tmp_path, "it", compute) == [1, 2] and len(calls) == 3
    for text in ("[1, 4]", '{"result": [1, 4]}'):  # of older versions, or somebody's, undigested
        file.write_text(text)
        assert cache.remembered(tmp_path, "it", compute) == [1, 2]
    assert len(calls) == 5
