"""Decoded images on disk: a second start neither decodes nor imports a decoder.

    <cache>/decoded/<name>-<key>/images.npy     all images, memory-mapped when read
                                 rows.npy       label, split, sums and sums of squares per image
                                 about.json     classes, groups, notes, checksums of the other two

An entry is written elsewhere and then renamed, so a reader finds all of it or nothing. If its
checksums are wrong, it is rebuilt.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int64, UInt8

from blockout.data.config import CACHE_DIR_VARIABLE, DataError
from blockout.data.tables import Catalogue

VERSION = 2
"""Part of every key. Raise it when the files or the decoding change their meaning."""

KINDS = ("decoded", "features", "arrow", "results")
"""The folders inside the cache."""

Json = TypeVar("Json")


@dataclass(frozen=True)
class Decoded:
    """A data set decoded into memory."""

    catalogue: Catalogue
    images: UInt8[np.ndarray, "n size size 3"]
    moments: Int64[np.ndarray, "n 6"]
    """Per image: the sums of the three channels, then their sums of squares."""


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
        about = json.loads((place / "about.json").read_text())
        if about.pop("checksums") != _checksums(place):
            return None
        rows = np.load(place / "rows.npy")
        images = np.load(place / "images.npy", mmap_mode="c")
    except (OSError, ValueError, LookupError, AttributeError):
        return None
    about = {name: tuple(v) if isinstance(v, list) else v for name, v in about.items()}
    catalogue = Catalogue(labels=rows[:, 0].copy(), parts=rows[:, 1].copy(), **about)
    return Decoded(catalogue, np.asarray(images), rows[:, 2:])


def write(folder: Path, entry: str, decoded: Decoded) -> None:
    """Writes the entry and replaces an earlier one.

    Raises:
        DataError: `folder` cannot be written.
    """
    with writing(folder):
        place = folder / "decoded" / entry
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{entry}.", dir=place.parent))
        try:
            _save(unfinished, decoded)
            shutil.rmtree(place, ignore_errors=True)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _save(place: Path, decoded: Decoded) -> None:
    catalogue = decoded.catalogue
    np.save(place / "images.npy", decoded.images)
    np.save(
        place / "rows.npy",
        np.column_stack([catalogue.labels, catalogue.parts, decoded.moments]),
    )
    about = {
        "classes": catalogue.classes,
        "groups": catalogue.groups,
        "group_names": catalogue.group_names,
        "notes": catalogue.notes,
        "checksums": _checksums(place),
    }
    (place / "about.json").write_text(json.dumps(about))


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
        yield
    finally:
        lock.release()


def remembered(folder: Path, entry: str, compute: Callable[[], Json]) -> Json:
    """A small result as JSON: read from disk, or computed and stored there."""
    place = folder / "results" / f"{entry}.json"
    with contextlib.suppress(OSError, ValueError):
        return json.loads(place.read_text())
    result = compute()
    with writing(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(result))
        unfinished.replace(place)
    return result


class Entry(NamedTuple):
    """Something in the cache."""

    name: str
    """Its kind and what it is called there."""
    bytes: int
    used: float
    """When it was last written or read, in seconds since 1970."""


def entries(folder: Path) -> list[Entry]:
    """What the cache holds, the largest first."""
    places = [place for kind in KINDS for place in (folder / kind).glob("*")]
    found = [_entry(folder, place) for place in places if place.suffix != ".lock"]
    return sorted(found, key=lambda entry: (-entry.bytes, entry.name))


def _entry(folder: Path, place: Path) -> Entry:
    inside = [file.stat() for file in place.rglob("*") if file.is_file()] or [place.stat()]
    used = max(max(status.st_mtime, status.st_atime) for status in inside)
    name = place.relative_to(folder).as_posix()
    return Entry(name, sum(status.st_size for status in inside), used)


def remove(folder: Path, entry: Entry) -> None:
    """Deletes an entry, unless another process is working on it: waits for that one first."""
    kind, _, name = entry.name.partition("/")
    with locked(folder, name, kind), writing(folder):
        place = folder / entry.name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    (folder / kind / f"{name}.lock").unlink(missing_ok=True)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write to the cache folder {folder}: {error.strerror or error}; "
            f"choose another with --cache or {CACHE_DIR_VARIABLE}"
        ) from error


def _checksums(place: Path) -> dict[str, int]:
    return {name: _crc(place / name) for name in ("images.npy", "rows.npy")}


def _crc(file: Path) -> int:
    """CRC-32 of a file; a gigabyte takes about a second."""
    crc = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc
