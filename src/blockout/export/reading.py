"""Reads exported files to classify with. Nothing in them is unpickled or run as Python."""

import contextlib
import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from blockout import files
from blockout.export.about import (
    CHECKSUM,
    KEY,
    About,
    Channels,
    ExportError,
    checksum,
    require_checksum,
)
from blockout.export.archive import checked_archive
from blockout.models import restored

Format = Literal["onnx", "pt2", "safetensors"]
FORMATS: tuple[Format, ...] = get_args(Format)
ENDINGS = ", ".join(f".{name}" for name in FORMATS[:-1]) + f" or .{FORMATS[-1]}"
LARGEST_ONNX_FILE = (1 << 31) - 1
"""Bytes; more than a protocol buffer may have."""
EXTERNAL_FILES = "session.model_external_initializers_file_folder_path"
NOWHERE = os.path.join(os.devnull, "nowhere")
"""A folder that cannot exist, for the files that an ONNX graph may name beside itself."""

Network = Callable[[Float[Tensor, "batch 3 h w"]], Float[Tensor, "batch classes"]]


@dataclass(frozen=True)
class ExportedModel:
    """A network from images to logits, and what belongs to it, as in ``TrainedModel``."""

    model: Network
    classes: tuple[str, ...]
    image_size: int
    mean: Channels
    std: Channels
    crop: float = 1.0


def load_exported(path: Path) -> ExportedModel:
    """Loads an exported file; the suffix of its name tells the format.

    Raises:
        ExportError: the file is missing, damaged, not an export, or from a newer version.
    """
    path = Path(path)
    ending = path.suffix.removeprefix(".").lower()
    if not path.is_file():
        raise ExportError(f"there is no file {path}; `blockout export` writes one")
    if ending not in FORMATS:
        raise ExportError(f"{path} is not an exported file: those end in {ENDINGS}")
    try:
        return read(path, ending)
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror or error}") from error
    except ExportError as error:
        raise ExportError(f"{path} {error}") from error


def read(path: Path, form: Format) -> ExportedModel:
    """Like ``load_exported``, for any file name. Errors start with a verb: "is damaged"."""
    readers = {"onnx": _read_onnx, "pt2": _read_pt2, "safetensors": _read_safetensors}
    about, network = readers[form](path)
    _try_out(network, about)
    return ExportedModel(
        network, about.classes, about.image_size, about.mean, about.std, about.crop
    )


def _read_onnx(path: Path) -> tuple[About, Network]:
    runtime = import_onnx("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry(EXTERNAL_FILES, NOWHERE)
    content = files.read_bytes(path, LARGEST_ONNX_FILE)
    with _or_damaged("or needs a newer onnxruntime"):
        session = runtime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        (name,) = [value.name for value in session.get_inputs()]
        noted = session.get_modelmeta().custom_metadata_map
    about = About.from_json(_ours(noted.get(KEY)))
    size, _, expected = noted.get(CHECKSUM, "").partition(":")
    if expected:
        graph = memoryview(content)[: int(size) if re.fullmatch(r"\d{1,18}", size) else 0]
        require_checksum(checksum(noted[KEY], [graph]), expected)

    def network(images: Tensor) -> Tensor:
        (logits,) = session.run(None, {name: images.contiguous().numpy()})
        return torch.from_numpy(logits)

    return about, network


def _read_pt2(path: Path) -> tuple[About, Network]:
    archive, written = checked_archive(path)
    about = About.from_json(_ours(written))
    with _or_damaged("or from another version of torch"), quietly():
        program = torch.export.load(archive)
        return about, program.module()


def _read_safetensors(path: Path) -> tuple[About, Network]:
    with _or_damaged("or not in safetensors format"), safe_open(path, "pt") as file:
        noted = file.metadata() or {}
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about = About.from_json(_ours(noted.get(KEY)))
    require_checksum(checksum(noted[KEY], raw_bytes(weights)), noted.get(CHECKSUM))
    try:
        model = restored(about.architecture or {}, weights)
    except ValueError as error:
        raise ExportError(f"is refused: {first_line(error)}") from error
    return about, model.eval().to(memory_format=torch.channels_last)  # pyright: ignore


def raw_bytes(weights: dict[str, Tensor]) -> Iterator[memoryview]:
    """The values of contiguous tensors, sorted by name."""
    for _, tensor in sorted(weights.items()):
        yield tensor.reshape(-1).view(torch.uint8).numpy().data


def import_onnx(package: str) -> Any:
    try:
        with quietly():
            return __import__(package)
    except ImportError as error:
        raise ImportError(
            f"ONNX needs the package {package}: pip install 'blockout[export]'"
        ) from error


def _ours(written: str | None) -> str:
    if written is None:
        raise ExportError(
            "is not an export of blockout: it does not name classes and preprocessing; "
            "`blockout export RUN` writes files that do"
        )
    return written


def _try_out(network: Network, about: About) -> None:
    """Runs two black images, so that a broken network fails before the first real one."""
    size, classes = about.image_size, len(about.classes)
    with _or_damaged("and cannot be run"), torch.no_grad():
        logits = network(torch.zeros(2, 3, size, size))
    if tuple(logits.shape) != (2, classes):
        raise ExportError(
            f"is damaged: it names {classes} classes but its outputs are {tuple(logits.shape)}"
        )
    if not logits.isfinite().all():
        raise ExportError("is damaged: its outputs are not finite (nan or infinite)")


@contextlib.contextmanager
def _or_damaged(what: str) -> Iterator[None]:
    """Turns whatever a foreign reader raises into one line."""
    try:
        yield
    except (ExportError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ExportError(f"is damaged {what}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hides warnings, log lines and what exporters and loaders print; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
