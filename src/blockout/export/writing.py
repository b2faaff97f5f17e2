"""Writes trained networks as ONNX, torch.export (.pt2), or safetensors with JSON."""

import contextlib
import copy
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from blockout.convert import to_dense
from blockout.dropconnect import DropConnectLinear
from blockout.export.about import CHECKSUM, KEY, About, ExportError, checksum
from blockout.export.archive import EXTRA_FILE
from blockout.export.reading import (
    ExportedModel,
    Format,
    first_line,
    import_onnx,
    quietly,
    raw_bytes,
    read,
)
from blockout.models import ImageClassifier
from blockout.models.folding import folded as fold_normalisation
from blockout.runs.folder import write_atomically
from blockout.training import RunError, TrainedModel

BATCHES = (1, 3, 8)
TOLERANCE = 1e-4
"""Largest allowed difference between a logit of the file and of the run, as a share of the largest
logit (at least 1). Summing float32 in another order changes 1e-6 to 1e-5 of it; a wrong weight,
padding or epsilon changes far more."""
MOST_WEIGHTS_IN_ONNX = 2**31 - 2**24
"""Bytes of weights; protobuf holds 2 GB, including the graph."""


@dataclass(frozen=True)
class Export:
    """A file that was written, loaded back and compared."""

    path: Path
    size: int
    """Bytes."""
    difference: float
    """The largest difference of a logit, as a share of the largest logit."""


def export(trained: TrainedModel, path: Path, form: Format) -> Export:
    """Folds the network, writes it, loads the file back and compares it with ``trained``.

    The file appears in one step, after the comparison. If anything fails, an earlier file stays.

    Raises:
        ExportError: the network cannot be exported, the file cannot be written, or its outputs
            differ by more than ``TOLERANCE`` in batches of 1, 3 and 8.
    """
    path = _destination(path)
    network = folded(trained.model)
    about = About(trained.classes, trained.image_size, trained.mean, trained.std, trained.crop)
    content = _content(network, about, form)
    differences: list[float] = []

    def write_and_compare(beside: Path) -> None:
        beside.write_bytes(content)
        differences.append(compare(trained, _read_back(beside, form)))

    try:
        write_atomically(path, write_and_compare)
    except RunError as error:
        raise ExportError(
            f"cannot write {path}: {error.__cause__}; free some space or name another file with "
            "--out. An earlier file is unchanged"
        ) from error
    return Export(path, len(content), differences[0])


def folded(model: nn.Module) -> nn.Module:
    """The inference network, made of plain layers; DropConnect stays as it is.

    ``to_dense`` would lose DropConnect's mean activation, which no plain layer computes.

    >>> from blockout import BlockoutLinear
    >>> folded(nn.Sequential(BlockoutLinear(8, 4, clusters=2)))
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
    )
    """
    keeps = any(isinstance(m, DropConnectLinear) and m.activation for m in model.modules())
    network = copy.deepcopy(model) if keeps else to_dense(model)
    return network.eval().requires_grad_(False)


@torch.no_grad()
def compare(trained: TrainedModel, exported: ExportedModel) -> float:
    """The largest difference of a logit on noise, as a share of the largest logit.

    Raises ExportError if it exceeds ``TOLERANCE``.
    """
    chance, size, worst = torch.Generator().manual_seed(0), trained.image_size, 0.0
    for batch in BATCHES:
        images = torch.randn(batch, 3, size, size, generator=chance)
        expected, got = trained.model(images), _run(exported, images)
        if got.shape != expected.shape:
            raise ExportError(f"outputs {tuple(got.shape)}, expected {tuple(expected.shape)}")
        if not expected.isfinite().all():
            raise ExportError(
                "the network of the run gives outputs that are not finite (nan or infinite); "
                "nothing was written"
            )
        share = float((got - expected).abs().max() / expected.abs().max().clamp_min(1))
        if not share <= TOLERANCE:
            raise ExportError(
                f"the exported network differs from the run: in a batch of {batch} by {share:.2g} "
                f"of the largest logit ({TOLERANCE:g} is allowed). Nothing was written; try "
                "another --format, and please report this"
            )
        worst = max(worst, share)
    return worst


def _read_back(path: Path, form: Format) -> ExportedModel:
    try:
        return read(path, form)
    except ExportError as error:
        raise ExportError(
            f"the file cannot be read back: it {error}. Nothing was written; try another --format"
        ) from error


def _run(exported: ExportedModel, images: Tensor) -> Tensor:
    try:
        return exported.model(images)
    except Exception as error:  # from any of three foreign runtimes
        batch = len(images)
        raise ExportError(
            f"the exported network fails on a batch of {batch}: {first_line(error)}"
        ) from error


def _destination(path: Path) -> Path:
    path = Path(os.path.realpath(path))  # follow a link instead of replacing it
    if path.exists() and not path.is_file():
        raise ExportError(f"--out {path} is not a regular file; name another")
    if not path.parent.is_dir():
        raise ExportError(f"there is no folder {path.parent} for {path.name}; create it first")
    return path


def _content(network: nn.Module, about: About, form: Format) -> bytes:
    if form == "safetensors":
        return _to_safetensors(network, about)
    if form == "onnx":
        return _to_onnx(network, about)
    return _to_pt2(network, about)


def _to_safetensors(network: nn.Module, about: About) -> bytes:
    assert isinstance(network, ImageClassifier)
    about = replace(about, architecture=network.describe())
    if network.describe()["trunk"]["kind"] == "own":
        raise ExportError(
            "safetensors needs an architecture that JSON can describe, and "
            f"{type(network.trunk).__name__} is your own trunk; use --format onnx or pt2"
        )
    weights = {k: v.cpu().contiguous().clone() for k, v in network.state_dict().items()}
    text = about.to_json()
    noted = {KEY: text, CHECKSUM: checksum(text, raw_bytes(weights))}
    return safetensors.torch.save(weights, noted)


def _to_pt2(network: nn.Module, about: About) -> bytes:
    """Batch normalisation becomes part of the convolutions, as the exporter to ONNX does it."""
    network = fold_normalisation(network, about.image_size) or network
    program, buffer = _traced(network, about.image_size), io.BytesIO()
    program.example_inputs = None  # would be pickled
    with _or_impossible("torch.export cannot save", "safetensors"):
        torch.export.save(program, buffer, extra_files={EXTRA_FILE: about.to_json()})
    return buffer.getvalue()


def _to_onnx(network: nn.Module, about: About) -> bytes:
    onnx, _ = import_onnx("onnx"), import_onnx("onnxscript")
    if sum(v.nbytes for v in network.state_dict().values()) > MOST_WEIGHTS_IN_ONNX:
        raise ExportError(
            "an ONNX file holds at most 2 GB and this network is larger; "
            "use --format pt2 or safetensors"
        )
    traced = _traced(network, about.image_size)
    with _or_impossible("ONNX cannot express", "pt2 or safetensors"):
        program = torch.onnx.export(
            traced,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=["images"],
            output_names=["logits"],
        )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # source locations
    graph, text = program.model_proto.SerializeToString(), about.to_json()
    noted = onnx.ModelProto()
    onnx.helper.set_model_props(
        noted, {KEY: text, CHECKSUM: f"{len(graph)}:{checksum(text, [graph])}"}
    )
    return graph + noted.SerializeToString()  # protobuf reads concatenated messages as one


def _traced(network: nn.Module, image_size: int) -> torch.export.ExportedProgram:
    """The computation as a graph for any batch size, without paths of this machine."""
    images = torch.zeros(2, 3, image_size, image_size)
    batch = torch.export.Dim("batch")
    with _or_impossible("torch.export cannot follow", "safetensors"), torch.no_grad():
        program = torch.export.export(network, (images,), dynamic_shapes=({0: batch},))
        if any(node.op == "get_attr" for node in program.graph.nodes):  # graphs within it
            program = program.run_decompositions({})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


@contextlib.contextmanager
def _or_impossible(what: str, instead: str) -> Iterator[None]:
    """Hides an exporter's output and turns what it raises into one line."""
    try:
        with quietly():
            yield
    except Exception as error:  # a trunk may do anything
        raise ExportError(
            f"{what} this network ({first_line(error)}); try --format {instead}"
        ) from error
