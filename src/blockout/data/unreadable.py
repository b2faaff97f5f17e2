"""Images that cannot be read: which they are, and going on without them."""

from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from blockout.data import cache
from blockout.data.config import DataConfig, DataError, UnreadableImage
from blockout.data.division import check
from blockout.data.sources import Source, find
from blockout.data.streams import in_workers
from blockout.data.tables import Rows, Table

FEW = 0.05
"""Up to this share of the images, and always one, may be unreadable and left out unasked."""


def require_few_unreadable(config: DataConfig) -> None:
    """Reads every image once, which is remembered.

    Raises:
        UnreadableImage: more of them are unreadable than may be left out unasked.
    """
    source = find(config.data, config.cache_folder)
    rows = source.open().rows
    errors = errors_of(source, rows, config.cache_folder, config.decoders)
    if len(errors) > max(1, FEW * len(rows)):
        raise UnreadableImage(
            f"{len(errors)} of {len(rows)} images are unreadable: {_shown(errors)}"
        )


def without_unreadable(source: Source, table: Table, folder: Path, workers: int) -> Table:
    errors = errors_of(source, table.rows, folder, workers)
    table = without(table, errors) if errors else table
    check(table.catalogue, source.name)
    return table


def errors_of(source: Source, rows: Rows, folder: Path, workers: int) -> dict[int, str]:
    """What is wrong with which images, by their places; remembered in the cache folder."""
    entry = f"damaged-{cache.key_of(source.fingerprint)}"
    errors = cache.remembered(folder, entry, lambda: unreadable(rows, workers))
    return {int(place): error for place, error in errors}


def without(table: Table, errors: dict[int, str]) -> Table:
    """The table without its unreadable images (place: what is wrong), and a note about them."""
    kept = np.setdiff1d(np.arange(len(table.rows)), list(errors))
    images = "1 unreadable image" if len(errors) == 1 else f"{len(errors)} unreadable images"
    note = f"skipped {images}: {_shown(errors)}"
    return Table(table.catalogue.at(kept, note), table.rows.take(kept))


def _shown(errors: dict[int, str], most: int = 5) -> str:
    more = f"; and {len(errors) - most} more" if len(errors) > most else ""
    return "; ".join(list(errors.values())[:most]) + more


def unreadable(rows: Rows, workers: int, chunk: int = 256) -> list[tuple[int, str]]:
    """The places of damaged images and what is wrong with them; decodes every image once."""
    chunks = [range(first, min(first + chunk, len(rows))) for first in range(0, len(rows), chunk)]
    return [found for errors in in_workers(_Errors(rows), chunks, workers) for found in errors]


class _Errors(Dataset):
    """Indexed by a range of places."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __getitem__(self, places: range) -> list[tuple[int, str]]:
        images = self.rows.take(np.array(places)).images(1)  # all of the file, few of its pixels
        return [
            (p, str(i)) for p, i in zip(places, images, strict=True) if isinstance(i, DataError)
        ]
