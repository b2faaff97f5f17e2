"""What a frozen trunk says about images: computed once per view and kept on disk by content.

    <cache>/features/<key>/about.json              what computed them, for people
                           <digest>.safetensors    some features, and the images they belong to

The key names the trunk's weights and preprocessing. Every part is named after the digest of its
bytes, so a damaged one is noticed and computed again.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor
from torch.utils.data import Dataset

from blockout import files
from blockout.data import cache
from blockout.data.config import DataError
from blockout.data.images import numbered_view
from blockout.data.splits import CONTENT_BYTES, Batch, Pictures, Split, content_digest
from blockout.data.streams import in_workers

FOLDER, ABOUT = "features", "about.json"
VIEW_BYTES = 2
Key = bytes
"""Digest of an image's file and the number of the view."""


def digests(pictures: Pictures, count: int) -> list[bytes]:
    """The content of each picture in 16 bytes."""
    return [content_digest(pictures.stored(place)) for place in range(count)]


def key_of(content: bytes, view: int) -> Key:
    """The key of one view of an image."""
    return content + view.to_bytes(VIEW_BYTES, "big")


class FeatureStore:
    """The features that one trunk has computed so far.

    Args:
        folder: the cache.
        entry: names the trunk and its preprocessing.
        about: what to tell people about them; what is written there already stays.
    """

    def __init__(self, folder: Path, entry: str, about: dict[str, Any]) -> None:
        self.folder = folder / FOLDER / entry
        self._rows: dict[Key, Float32[np.ndarray, " features"]] = {}
        self.damaged = 0
        with cache.writing(folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            files.remove_litter(self.folder)
            if not (self.folder / ABOUT).exists():
                files.write_text(self.folder / ABOUT, json.dumps(about, indent=2) + "\n")
        for path in sorted(self.folder.glob("*.safetensors")):
            self._read(path)

    @property
    def about(self) -> dict[str, Any]:
        """What was written about the first features; empty if it cannot be read."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            known = json.loads(files.read_bytes(self.folder / ABOUT))
            if isinstance(known, dict) and json.dumps(known, indent=2):  # it is written again
                return known
        return {}

    @property
    def way(self) -> str | None:
        """How the first features were computed, where it is known; others follow."""
        found = self.about.get("way")
        return found if isinstance(found, str) else None

    @way.setter
    def way(self, name: str) -> None:
        if self.way != name:
            about = json.dumps(self.about | {"way": name}, indent=2) + "\n"
            with cache.writing(self.folder):
                files.write_text(self.folder / ABOUT, about)

    def serves(self, name: str) -> None:
        """Notes, for people, a data set that these are features of."""
        known = self.about.get("data", [])
        if name and isinstance(known, list) and name not in known:
            about = json.dumps(self.about | {"data": [*known, name]}, indent=2) + "\n"
            with cache.writing(self.folder):
                files.write_text(self.folder / ABOUT, about)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def __getitem__(self, key: Key) -> Float32[np.ndarray, " features"]:
        return self._rows[key]

    def add(self, keys: Sequence[Key], features: Float32[np.ndarray, "n features"]) -> None:
        """Writes some features in one step."""
        names = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
        written = save({"keys": names, "features": np.ascontiguousarray(features, np.float32)})
        name = hashlib.blake2b(written, digest_size=CONTENT_BYTES).hexdigest()
        with cache.writing(self.folder):
            files.write_atomically(
                self.folder / f"{name}.safetensors", lambda path: path.write_bytes(written)
            )
        self._rows.update(zip(keys, features, strict=True))

    def _read(self, path: Path) -> None:
        try:
            written = files.read_bytes(path)
            if hashlib.blake2b(written, digest_size=CONTENT_BYTES).hexdigest() != path.stem:
                raise ValueError("its bytes are not those of its name")
            part = load(written)
            keys, rows = part["keys"], part["features"]
            if keys.shape != (len(rows), CONTENT_BYTES + VIEW_BYTES) or rows.ndim != 2:
                raise ValueError("its shapes do not fit")
        except (OSError, ValueError, SafetensorError, KeyError, TypeError):
            self.damaged += 1
            path.unlink(missing_ok=True)
            return
        self._rows.update(zip(map(bytes, keys), rows, strict=True))


class Views(Dataset):
    """Indexed by a list of (picture, view): those views as pixels.

    Returns the error of a damaged image: if a worker raised it, its message would become the
    worker's traceback.
    """

    def __init__(
        self, pictures: Pictures, contents: Sequence[bytes], size: int, crop: float
    ) -> None:
        self.pictures, self.contents, self.size, self.crop = pictures, contents, size, crop

    def __getitem__(
        self, wanted: Sequence[tuple[int, int]]
    ) -> UInt8[np.ndarray, "n size size 3"] | DataError:
        pixels = np.empty((len(wanted), self.size, self.size, 3), np.uint8)
        try:
            last, image = -1, None
            for out, (place, view) in zip(pixels, wanted, strict=True):
                if image is None or place != last:
                    last, image = place, self.pictures.image(place, self.size)
                out[:] = numbered_view(image, self.size, self.crop, view, self.contents[place])
        except DataError as error:
            return error
        return pixels


def read_views(
    views: Views, wanted: Sequence[Sequence[tuple[int, int]]], workers: int
) -> Iterator[UInt8[Tensor, "n size size 3"]]:
    """The wanted views, batch by batch, decoded by worker processes."""
    for pixels in in_workers(views, list(wanted), workers):
        if isinstance(pixels, DataError):
            raise pixels
        yield torch.from_numpy(pixels)


@final
class FeatureSplit(Split):
    """The features of a split's images in place of the images.

    Training sees a random view of each image; evaluation sees view 0.

    Args:
        features: of every view of every image.
        images: the split they come from.
    """

    def __init__(self, features: Float32[Tensor, "n views features"], images: Split) -> None:
        self.features, self.images = features, images
        self.labels, self.pictures, self.crop = images.labels, images.pictures, images.crop
        self._mean, self._std, self.known = images._mean, images._std, images.known

    def images_at(self, indices: Sequence[int]) -> UInt8[Tensor, "n height width 3"]:
        return self.images.images_at(indices)

    def _read(
        self, order: np.ndarray, spans: list[slice], rng: np.random.Generator | None
    ) -> Iterator[Batch]:
        views = np.zeros(len(order), np.int64)
        if rng is not None:
            views = rng.integers(0, self.features.shape[1], len(order))
        chosen: Int64[Tensor, " n"] = torch.from_numpy(order)
        for span in spans:
            index = chosen[span]
            yield self.features[index, torch.from_numpy(views[span])], self.labels[index]
