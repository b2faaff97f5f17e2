"""Turns a name, a path or a hub id into a table of undecoded images, with Hugging Face `datasets`.

`datasets` takes a second to import, so it is imported only to open a table. A second start needs
only the fingerprint and reads the cache of decoded images.
"""

import contextlib
import difflib
import hashlib
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
from blockout.files import parsed_json, write_atomically, write_text
from blockout.limits import HUB

if TYPE_CHECKING:
    from datasets import Dataset
    from pyarrow.parquet import FileMetaData

GENERATED = "shapes"
ROWS_AT_A_TIME = 64
LARGEST_ROW_GROUP = 1 << 29
"""Bytes of a parquet file's rows that are decompressed together (0.5 GiB)."""
HUB_IDS = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}


@dataclass(frozen=True)
class Source:
    """A data set that has been found."""

    name: str
    fingerprint: str
    """Changes when the files change."""
    open: Callable[[], Table]
    place: str = ""
    """Where it was found."""
    scratch: Path | None = None
    """A copy that `open` makes; not needed once the images are decoded."""


def find(data: str, cache: Path, *, fetch: bool = True) -> Source:
    """What `--data` means: an existing path, a name in $BLOCKOUT_DATA_DIR, or a hub data set.

    Args:
        data: the name or path, or `hf://` and a hub id. A hub id alone, as older runs have it,
            means what the Hugging Face cache holds: it may be the name of a private folder.
        cache: folder for copies.
        fetch: may ask the hub for what is named as its own. Otherwise nothing leaves this machine:
            only what the Hugging Face cache holds already is found.

    Raises:
        DataError: nothing has that name; the message says where we looked and what to do.
    """
    try:
        for path in _candidates(data):
            if path.exists():
                return _local(path.absolute(), cache)
        if data.startswith(HUB):
            _require_id(data)
        elif data not in HUB_IDS:
            _stop_at_typo(data)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot read {getattr(error, 'filename', None) or data}: {reason}"
        ) from error
    return _hub(data, fetch)


def is_gone(place: str, data: str) -> bool:
    """Whether what `data` meant was a path on this machine, and nothing is there or bears its name
    now."""
    local = os.path.isabs(place) and data not in HUB_IDS
    return local and not any(path.exists() for path in (Path(place), *_candidates(data)))


def _candidates(data: str) -> list[Path]:
    """Where the data may be on this machine. A known name never means a folder right here."""
    if data.startswith(HUB):
        return []
    places = [] if data in HUB_IDS else [Path(data).expanduser()]
    if folder := os.environ.get(DATA_DIR_VARIABLE):
        places.append(Path(folder).expanduser() / data)
    return places


def _require_id(data: str) -> None:
    if not re.fullmatch(rf"{HUB}[\w.-]+(/[\w.-]+)?(:[\w.-]+)?", data):
        raise DataError(
            f"a data set of the hub is {HUB}owner/name or {HUB}owner/name:configuration, "
            f"got {data!r}"
        )


def _stop_at_typo(data: str) -> None:
    """Refuses paths that do not exist and misspelt names, but not what may be in the Hugging Face
    cache."""
    path = Path(data).expanduser()
    looks_like_path = path.is_absolute() or data.startswith((".", "~")) or data.endswith(".parquet")
    if (
        looks_like_path
        or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?", data)
        or (path.parent != Path() and path.parent.is_dir())
    ):
        siblings = [e.name for e in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file or folder {data!r}{_nearest(path.name, siblings)}")
    if "/" not in data:
        known = [GENERATED, *HUB_IDS, *(e.name for e in Path().iterdir() if e.is_dir())]
        owner = f"; a data set of the Hugging Face hub is {HUB}owner/name"
        raise DataError(f"there is no data set or folder {data!r}{_nearest(data, known) or owner}")


def _nearest(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _local(path: Path, cache: Path) -> Source:
    files = _parquet_files(path)
    if not files:
        if path.is_file():
            raise DataError(f"{path} is a file; expected a folder of images or a .parquet file")
        folder = list_folder(path)
        return Source(path.name, folder.fingerprint, folder.open, str(path))
    listed = [file for split in files.values() for file in split]
    fingerprint = _fingerprint(listed)
    copy = cache / "arrow" / f"{path.stem}-{fingerprint[:16]}"
    opened = lambda: _open_parquet(path, files, copy)  # noqa: E731
    return Source(path.stem, fingerprint, opened, str(path), copy)


def _parquet_files(path: Path) -> dict[str, list[Path]]:
    """Parquet files by split: the name of the file, or else of its folder, starts with it."""
    if path.is_file():
        return {"train": [path]} if path.suffix == ".parquet" else {}
    files: dict[str, list[Path]] = {}
    for file in sorted(file for file in path.rglob("*.parquet") if file.is_file()):
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
    from datasets import Dataset
    from pyarrow import ArrowException

    _require_equal_names(files)
    try:
        copy.mkdir(parents=True, exist_ok=True)
        copies = {split: _copied(some, copy / f"{split}.arrow") for split, some in files.items()}
        parts = {split: Dataset.from_file(str(file)) for split, file in copies.items()}
    except (ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot read the parquet files of {path}: {error}") from error
    return table_of(str(path), parts)


def _copied(files: list[Path], copy: Path) -> Path:
    """The rows of all files as one Arrow file. Reads some rows at a time, never a whole file.

    A copy that was touched since it was written is made again.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    def write(beside: Path) -> None:
        with contextlib.ExitStack() as opened:
            schema = ParquetFile(files[0]).schema_arrow
            sink = opened.enter_context(pyarrow.OSFile(str(beside), "wb"))
            writer = opened.enter_context(pyarrow.ipc.new_stream(sink, schema))
            for file in files:
                source = opened.enter_context(
                    ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
                )
                _require_small_groups(file, source.metadata)
                for batch in source.iter_batches(ROWS_AT_A_TIME, use_threads=False):
                    writer.write_table(pyarrow.Table.from_batches([batch]).cast(schema))

    stamp = copy.with_suffix(".stamp")
    if not (copy.is_file() and stamp.is_file() and stamp.read_text() == _fingerprint([copy])):
        write_atomically(copy, write)
        write_text(stamp, _fingerprint([copy]))
    return copy


def _require_small_groups(file: Path, metadata: "FileMetaData") -> None:
    """A group of rows is decompressed as a whole."""
    largest = max(
        (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), default=0
    )
    if largest > LARGEST_ROW_GROUP:
        raise DataError(
            f"{file} holds {largest:,} bytes in one row group; at most {LARGEST_ROW_GROUP:,} are "
            "read: write it with fewer rows per group (row_group_size=100)"
        )


def _require_equal_names(files: dict[str, list[Path]]) -> None:
    """`datasets` would apply the class names of one file to the label numbers of all."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_schema

    first: tuple[Path, dict] | None = None
    for file in (file for some in files.values() for file in some):
        try:
            metadata = read_schema(file).metadata or {}
            features = parsed_json(metadata.get(b"huggingface", b"{}"))["info"]["features"]
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


def _hub(data: str, fetch: bool) -> Source:
    """A hub data set, from the Hugging Face cache if it is there."""
    bare = data.removeprefix(HUB)
    name, _, configuration = HUB_IDS.get(data, bare).partition(":")
    opened = _load_from_hub(data, name, configuration or None, fetch)
    caches = [Path(f["filename"]) for split in opened.values() for f in split.cache_files]
    return Source(
        bare.replace("/", "-").replace(":", "-"),
        _fingerprint(caches),
        lambda: table_of(data, opened),
        data,
    )


def _load_from_hub(
    data: str, name: str, configuration: str | None, fetch: bool
) -> "dict[str, Dataset]":
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    fetch = fetch and (data in HUB_IDS or data.startswith(HUB))
    try:
        with _offline(when=not (fetch and _reachable())), _quiet_when_not_a_terminal():
            opened = datasets.load_dataset(name, configuration)
    except (OSError, ValueError, RuntimeError, HfHubHTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(_not_found(data, name, reason if fetch else "")) from error
    return {str(split): part for split, part in opened.items()}


def _not_found(data: str, name: str, reason: str) -> str:
    """Where was looked, what the hub said (nothing if it was not asked), and what to do."""
    if not (data in HUB_IDS or data.startswith(HUB)):
        return (
            f"there is no file or folder {data!r}, and the Hugging Face cache has no data set of "
            f"this name; to ask the hub for it, write --data {HUB}{data}"
        )
    folder, places = os.environ.get(DATA_DIR_VARIABLE), ["in the Hugging Face cache"]
    either = "connect to the network" if reason else f"say --data {data} to fetch it"
    if data in HUB_IDS:
        places.insert(0, f"in ${DATA_DIR_VARIABLE} ({folder or 'not set'})")
        either = (
            f"set {DATA_DIR_VARIABLE} to a folder with its parquet files in {data}/, or {either}"
        )
    hub = f" and on the hub for {name!r} ({reason})" if reason else ", and asked nobody else"
    return f"no data set {data!r}. Looked {', '.join(places)}{hub}; {either}"


def _reachable() -> bool:
    import huggingface_hub.constants as hub

    variables = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    proxied = any(os.environ.get(variable) for variable in variables)
    return proxied or _answers(urlparse(hub.ENDPOINT).hostname or "")


@contextlib.contextmanager
def _offline(*, when: bool) -> Iterator[None]:
    """Uses the Hugging Face cache only: without a network at once, not after 20 s of retries."""
    import datasets.config as library
    import huggingface_hub.constants as hub

    before = hub.HF_HUB_OFFLINE, library.HF_HUB_OFFLINE
    if when:
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
