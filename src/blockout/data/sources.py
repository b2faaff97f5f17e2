"""Turns a name, a path or a hub id into a table of undecoded images, with Hugging Face `datasets`.

`datasets` takes a second to import, so it is imported only to open a table. A second start needs
only the fingerprint and reads the cache of decoded images.
"""

import contextlib
import difflib
import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from blockout.data.columns import table_of
from blockout.data.config import DATA_DIR_VARIABLE, DataError
from blockout.data.folders import SPLIT_NAMES, list_folder
from blockout.data.tables import Table

if TYPE_CHECKING:
    from datasets import Dataset

GENERATED = "shapes"
HUB_IDS = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}


@dataclass(frozen=True)
class Source:
    """A data set that has been found."""

    name: str
    fingerprint: str
    """Changes when the files change."""
    open: Callable[[], Table]
    scratch: Path | None = None
    """A copy that `open` makes; not needed once the images are decoded."""


def find(data: str, cache: Path) -> Source:
    """What `--data` means: an existing path, a name in $BLOCKOUT_DATA_DIR, or a hub data set.

    Raises:
        DataError: nothing has that name; the message says where we looked and what to do.
    """
    try:
        for path in _candidates(data):
            if path.exists():
                return _local(path.absolute(), cache)
        if data not in HUB_IDS:
            _stop_at_typo(data)
    except OSError as error:
        raise DataError(f"cannot read {error.filename or data}: {error.strerror}") from error
    return _hub(data)


def _candidates(data: str) -> list[Path]:
    """Where the data may be on this machine. A known name never means a folder right here."""
    places = [] if data in HUB_IDS else [Path(data).expanduser()]
    if folder := os.environ.get(DATA_DIR_VARIABLE):
        places.append(Path(folder).expanduser() / data)
    return places


def _stop_at_typo(data: str) -> None:
    """Refuses paths that do not exist and misspelt names; anything that may be a hub id passes."""
    path = Path(data).expanduser()
    looks_like_path = path.is_absolute() or data.startswith((".", "~")) or data.endswith(".parquet")
    if (
        looks_like_path
        or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?", data)
        or (path.parent != Path() and path.parent.is_dir())
    ):
        siblings = [e.name for e in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file or folder {data!r}{_nearest(path.name, siblings)}")
    known = [GENERATED, *HUB_IDS, *(e.name for e in Path().iterdir() if e.is_dir())]
    if hint := "/" not in data and _nearest(data, known):
        raise DataError(f"there is no data set or folder {data!r}{hint}")


def _nearest(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _local(path: Path, cache: Path) -> Source:
    files = _parquet_files(path)
    if not files:
        if path.is_file():
            raise DataError(f"{path} is a file; expected a folder of images or a .parquet file")
        folder = list_folder(path)
        return Source(path.name, folder.fingerprint, folder.open)
    listed = [file for split in files.values() for file in split]
    fingerprint = _fingerprint(listed)
    copy = cache / "arrow" / fingerprint[:16]
    return Source(path.stem, fingerprint, lambda: _open_parquet(path, files, copy), copy)


def _parquet_files(path: Path) -> dict[str, list[Path]]:
    """Parquet files by split: the name of the file, or else of its folder, starts with it."""
    if path.is_file():
        return {"train": [path]} if path.suffix == ".parquet" else {}
    files: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*.parquet")):
        words = [
            re.split(r"[^a-z]", part.lower())[0] for part in file.relative_to(path).parts[::-1]
        ]
        split = next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), "")
        files.setdefault(split, []).append(file)
    if "" in files and len(files) > 1:
        raise DataError(
            f"{files[''][0]} belongs to no split; "
            "either all names of parquet files start with train, val or test, or none"
        )
    return {"train": files[""]} if "" in files else files


def _fingerprint(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.name}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _open_parquet(path: Path, files: dict[str, list[Path]], copy: Path) -> Table:
    """Copies the files to memory-mapped Arrow at `copy`: single rows of parquet cannot be read."""
    import datasets
    from datasets.exceptions import DatasetGenerationError
    from pyarrow import ArrowException

    _require_equal_names(files)
    names = {split: [str(file) for file in some] for split, some in files.items()}
    try:
        with _quiet_when_not_a_terminal():
            opened = datasets.load_dataset("parquet", data_files=names, cache_dir=str(copy))
    except (DatasetGenerationError, ArrowException, OSError) as error:
        raise DataError(
            f"cannot read the parquet files of {path}: {error.__cause__ or error}"
        ) from error
    return table_of(str(path), {str(split): part for split, part in opened.items()})


def _require_equal_names(files: dict[str, list[Path]]) -> None:
    """`datasets` would apply the class names of one file to the label numbers of all."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_schema

    first: tuple[Path, dict] | None = None
    for file in (file for some in files.values() for file in some):
        try:
            metadata = read_schema(file).metadata or {}
            features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        except (ArrowException, OSError, ValueError, KeyError, TypeError):
            continue  # no names; damage is reported when the rows are read
        names = {k: v["names"] for k, v in features.items() if "names" in v}
        first = first or (file, names)
        if names != first[1]:
            raise DataError(
                f"{file} and {first[0]} name their classes differently (columns "
                f"{', '.join(sorted(names.keys() | first[1].keys()))}); labels are numbers, so all "
                "files need the same names in the same order"
            )


def _hub(data: str) -> Source:
    """A hub data set, from the Hugging Face cache if it is there."""
    name, _, configuration = HUB_IDS.get(data, data).partition(":")
    opened = _load_from_hub(data, name, configuration or None)
    caches = [Path(f["filename"]) for split in opened.values() for f in split.cache_files]
    return Source(
        data.replace("/", "-").replace(":", "-"),
        _fingerprint(caches),
        lambda: table_of(data, opened),
    )


def _load_from_hub(data: str, name: str, configuration: str | None) -> "dict[str, Dataset]":
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with _offline_when_unreachable(), _quiet_when_not_a_terminal():
            opened = datasets.load_dataset(name, configuration)
    except (OSError, ValueError, RuntimeError, HfHubHTTPError) as error:
        folder = os.environ.get(DATA_DIR_VARIABLE)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"no data set {data!r}. Looked in ${DATA_DIR_VARIABLE} ({folder or 'not set'}), in the "
            f"Hugging Face cache and on the hub for {name!r} ({reason}). Set {DATA_DIR_VARIABLE} "
            f"to a folder with the parquet files in {data}/, or connect to the network"
        ) from error
    return {str(split): part for split, part in opened.items()}


@contextlib.contextmanager
def _offline_when_unreachable() -> Iterator[None]:
    """Without a network, uses the Hugging Face cache at once instead of after 20 s of retries."""
    import datasets.config as library
    import huggingface_hub.constants as hub

    host = urlparse(hub.ENDPOINT).hostname or ""
    proxied = any(
        os.environ.get(v) for v in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    )
    before = hub.HF_HUB_OFFLINE, library.HF_HUB_OFFLINE
    if not proxied and not _answers(host):
        hub.HF_HUB_OFFLINE = library.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE, library.HF_HUB_OFFLINE = before


def _answers(host: str) -> bool:
    try:
        socket.create_connection((host, 443), timeout=3).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _quiet_when_not_a_terminal() -> Iterator[None]:
    import datasets

    hide = not sys.stderr.isatty() and not datasets.are_progress_bars_disabled()
    if hide:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            datasets.enable_progress_bars()
