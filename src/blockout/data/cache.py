"""Decoded images on disk: a second start neither decodes nor imports a decoder.

    <cache>/decoded/<name>-<key>/images.npy     all images, memory-mapped when read
                                 rows.npy       per image: label, split, content (two numbers),
                                                sums and sums of squares
                                 about.json     classes, groups, names, notes, checksums of the two
    <cache>/results/<name>-<key>.json           a small result

An entry is written elsewhere and then renamed, so a reader finds all of it or nothing. If its
checksums or the digest of its JSON are wrong, it is rebuilt. What processes that were killed have
left is deleted by the next one that writes.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64, UInt8

from blockout import files
from blockout.data.config import DataError
from blockout.data.tables import Catalogue

VERSION = 2
"""Part of every key. Raise it when the files or the decoding change their meaning."""

ARRAYS = ("images.npy", "rows.npy")
UNFINISHED = re.compile(r"\.(?P<entry>.+)\.\d+|(?P<older>.+)\.[a-z0-9_]{8}")
"""Names of entries that are being written, by us and by older versions."""

Json = TypeVar("Json")


@dataclass(frozen=True)
class Decoded:
    """A data set decoded into memory."""

    catalogue: Catalogue
    images: UInt8[np.ndarray, "n size size 3"]
    moments: Int64[np.ndarray, "n 6"]
    """Per image: the sums of the three channels, then their sums of squares."""
    names: tuple[str, ...] = ()
    """Of the images."""


def moments_of(
    images: UInt8[np.ndarray, "n size size 3"], chunk: int = 512
) -> Int64[np.ndarray, "n 6"]:
    """Exact sums of each channel and of its squares; they give mean and std of any subset."""
    moments = np.empty((len(images), 6), np.int64)
    for first in range(0, len(images), chunk):
        pixels = images[first : first + chunk].reshape(-1, images.shape[1] ** 2, 3).astype(np.int64)
        moments[first : first + chunk, :3] = pixels.sum(1)
        moments[first : first + chunk, 3:] = np.einsum("npc,npc->nc", pixels, pixels)
    return moments


def key_of(*facts: object) -> str:
    return hashlib.sha256(json.dumps([VERSION, *facts]).encode()).hexdigest()[:16]


def read(folder: Path, entry: str) -> Decoded | None:
    """The entry, or None if it is missing or damaged."""
    place = folder / "decoded" / entry
    try:
        for name in ARRAYS:
            files.require_regular(place / name)
        about = _read_json(place / "about.json")
        if about.pop("checksums") != _checksums(place):
            return None
        rows = np.load(place / "rows.npy")
        images = np.load(place / "images.npy", mmap_mode="c")
        about = {name: tuple(v) if isinstance(v, list) else v for name, v in about.items()}
        names = about.pop("names")
        contents = np.ascontiguousarray(rows[:, 2:4]).view(np.uint8)
        labels, parts = rows[:, 0].copy(), rows[:, 1].copy()
        catalogue = Catalogue(labels=labels, parts=parts, contents=contents, **about)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return None
    return Decoded(catalogue, np.asarray(images), rows[:, 4:], names)


def write(folder: Path, entry: str, decoded: Decoded) -> None:
    """Writes the entry and replaces an earlier one.

    Raises:
        DataError: `folder` cannot be written.
    """
    with writing(folder):
        place = folder / "decoded" / entry
        unfinished = place.with_name(f".{entry}.{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            _save(unfinished, decoded)
            shutil.rmtree(place, ignore_errors=True)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _save(place: Path, decoded: Decoded) -> None:
    catalogue = decoded.catalogue
    assert catalogue.contents is not None
    contents = np.ascontiguousarray(catalogue.contents).view(np.int64)
    np.save(place / "images.npy", decoded.images)
    np.save(
        place / "rows.npy",
        np.column_stack([catalogue.labels, catalogue.parts, contents, decoded.moments]),
    )
    about = {
        "classes": catalogue.classes,
        "groups": catalogue.groups,
        "group_names": catalogue.group_names,
        "notes": catalogue.notes,
        "names": decoded.names,
        "checksums": _checksums(place),
    }
    (place / "about.json").write_text(_with_digest(about))


@contextlib.contextmanager
def locked(folder: Path, entry: str, kind: str = "decoded") -> Iterator[None]:
    """Lets one process at a time work on an entry of a kind."""
    from filelock import FileLock

    with writing(folder):
        place = folder / kind
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / f"{entry}.lock")
        lock.acquire()
    try:
        _remove_unfinished(place, entry)
        yield
    finally:
        lock.release()


def _remove_unfinished(place: Path, entry: str) -> None:
    """Deletes what nobody is writing any more; ``entry`` is held by this process.

    An entry is written by the process that holds its lock. If nobody does, the writer is gone.
    """
    from filelock import FileLock, Timeout

    for path in place.iterdir():
        found = UNFINISHED.fullmatch(path.name)
        if found is None or not path.is_dir():
            continue
        other = found["entry"] or found["older"]
        with contextlib.suppress(Timeout, OSError), contextlib.ExitStack() as held:
            if other != entry:
                held.enter_context(FileLock(place / f"{other}.lock").acquire(blocking=False))
            shutil.rmtree(path)


def remembered(folder: Path, entry: str, compute: Callable[[], Json]) -> Json:
    """A small result as JSON: read from disk, or computed and stored there."""
    place = folder / "results" / f"{entry}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, RecursionError):
        return _read_json(place)["result"]
    result = compute()
    with writing(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
        files.remove_litter(place.parent)
        text = _with_digest({"result": result})
        files.write_atomically(place, lambda beside: beside.write_text(text))
    return result


def _with_digest(content: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest})


def _read_json(path: Path) -> dict[str, Any]:
    """What was written with a digest.

    Nobody knows whether a file without one is what was written, and all can be computed again.

    Raises:
        ValueError: it is damaged, or has no digest.
    """
    content = json.loads(files.read_bytes(path))
    if not isinstance(content, dict) or "sha256" not in content:
        raise ValueError("without a digest")
    digest = content.pop("sha256")
    if hashlib.sha256(json.dumps(content).encode()).hexdigest() != digest:
        raise ValueError("damaged")
    return content


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write to the cache folder {folder}: {error.strerror or error}; "
            f"choose another with --cache or {files.CACHE_DIR_VARIABLE}"
        ) from error


def _checksums(place: Path) -> dict[str, int]:
    return {name: _crc(place / name) for name in ARRAYS}


def _crc(file: Path) -> int:
    """CRC-32 of a file; a gigabyte takes about a second."""
    crc = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc
