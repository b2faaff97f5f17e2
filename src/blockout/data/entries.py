"""What the cache holds, told in words, and how to delete it."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from blockout import files
from blockout.data.cache import locked, writing
from blockout.data.features import ABOUT
from blockout.data.splits import CONTENT_BYTES

KINDS = ("decoded", "features", "arrow", "results")
"""The folders inside the cache."""
RESULTS = {
    "side": "sizes of images",
    "contents": "digests of files",
    "alike": "which images are alike",
    "moments": "mean and spread of pixels",
    "damaged": "which images cannot be read",
}
SETS = 3
"""So many data sets are named that features are of."""
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    SafetensorError,
)


class Entry(NamedTuple):
    """Something in the cache."""

    name: str
    """Its kind and what it is called there."""
    bytes: int
    used: float
    """When it was last written or read, in seconds since 1970."""
    about: str
    """What it is, in words."""


def entries(folder: Path) -> list[Entry]:
    """What the cache holds, the largest first."""
    places = [place for kind in KINDS for place in (folder / kind).glob("*")]
    found = [_entry(folder, place) for place in places if place.suffix != ".lock"]
    return sorted(found, key=lambda entry: (-entry.bytes, entry.name))


def _entry(folder: Path, place: Path) -> Entry:
    inside = {file: file.stat() for file in place.rglob("*") if file.is_file()}
    inside = inside or {place: place.stat()}
    used = max(max(status.st_mtime, status.st_atime) for status in inside.values())
    about = _about(place)
    for file, status in inside.items():  # to be listed is not to be used
        with contextlib.suppress(OSError):
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    name = place.relative_to(folder).as_posix()
    return Entry(name, sum(status.st_size for status in inside.values()), used, about)


def _about(place: Path) -> str:
    tell = {"decoded": _decoded, "features": _features, "arrow": _copied, "results": _result}
    with contextlib.suppress(*UNREADABLE):
        return tell[place.parent.name](place)
    return "not readable"


def _decoded(place: Path) -> str:
    files.require_regular(place / "images.npy")
    images = np.load(place / "images.npy", mmap_mode="r")
    return f"{len(images):,} images of {_name(place)}, decoded to {images.shape[1]} px"


def _copied(place: Path) -> str:
    return f"the rows of the parquet files of {_name(place)}, to be read one by one"


def _result(place: Path) -> str:
    return RESULTS[place.name.partition("-")[0]]


def _name(place: Path) -> str:
    """Of the data set: what stands before the key."""
    return place.name.rpartition("-")[0] or "a data set"


def _features(place: Path) -> str:
    about = files.parsed_json(files.read_bytes(place / ABOUT))
    contents, views = set(), 0
    for path in place.glob("*.safetensors"):
        files.require_regular(path)
        with safe_open(path, "numpy") as part:
            keys = part.get_tensor("keys")
        views += len(keys)
        contents.update(map(bytes, keys[:, :CONTENT_BYTES]))
    names = [str(name) for name in about.get("data", [])]
    more = f" and {len(names) - SETS} more" if len(names) > SETS else ""
    of = f" of {', '.join(names[:SETS])}{more}" if names else ""
    seen = f"{views:,} views of {about['image_size']} px"
    return f"features of {len(contents):,} images{of} ({seen}) by {_trunk(about['trunk'])}"


def _trunk(described: dict[str, Any]) -> str:
    kind = described["kind"]
    if kind == "pretrained":
        kind = described["configuration"]["model_type"]
    return f"{kind} up to {described['up_to']}" if "up_to" in described else str(kind)


def remove(folder: Path, entry: Entry) -> None:
    """Deletes an entry, unless another process is working on it: waits for that one first."""
    kind, _, name = entry.name.partition("/")
    with locked(folder, name, kind), writing(folder):
        place = folder / entry.name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    (folder / kind / f"{name}.lock").unlink(missing_ok=True)
