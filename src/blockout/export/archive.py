"""A .pt2 that torch may load: what ``export`` writes and nothing else.

``torch.export.load`` trusts its file. It unpickles sample inputs, custom objects and subclasses of
tensors, loads shared libraries, evaluates sizes and guards as Python, calls whatever is found by
name below ``torch``, and pastes names into code that it runs. So a file is read here with the
standard library, every word of it is held against what a network needs, and torch is given a new
archive, in memory, of the pieces that passed.
"""

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from blockout.export.about import ExportError

EXTRA_FILE = "blockout.json"
ABOUT, GRAPH = f"extra/{EXTRA_FILE}", "models/model.json"
SAMPLE_INPUTS = "data/sample_inputs/model.pt"
CONFIGS = {
    "data/weights/model_weights_config.json": r"weight_\d+",
    "data/constants/model_constants_config.json": r"tensor_\d+",
}
"""Which tensor is in which record, and how such records are called."""
RAW = r"data/weights/weight_\d+|data/constants/tensor_\d+"
MARKS = ("archive_format", "archive_version", "byteorder", ".data/version")
IGNORED = (".data/serialization_id", SAMPLE_INPUTS)

NAME, DOTTED = r"\w*", r"[\w.]*"
SIZE = (
    r"(Symbol\('[su]\d+'(, (positive|integer|nonnegative)=True)*\)|Integer\(-?\d+\)|-?\d+"
    r"|(Add|Mul|Max|Min|FloorDiv|CleanDiv|Mod|PythonMod)\(|, |\))+"
)
"""A size that depends on the batch, as sympy writes it: sums and products of whole numbers."""
PATTERNS = {
    "parameter_name": DOTTED, "buffer_name": DOTTED, "tensor_constant_name": DOTTED, "fqn": DOTTED,
    "path_name": DOTTED, "expr_str": SIZE, "torch_version": r"[\w.+]*",
    "as_float": r"-?Infinity|NaN",
}  # fmt: skip
"""What a text may be made of, by its key; a name without dots everywhere else."""
NEVER = ("as_graph", "as_operator", "as_custom_obj", "custom_obj", "as_string_to_argument", "token")
SIZE_ARITHMETIC = [f"_operator.{name}" for name in ("add", "sub", "mul", "floordiv", "getitem")]
EVERYDAY = frozenset({
    "adaptive_avg_pool2d", "add_", "arange", "batch_norm", "chunk", "clamp_", "clamp_min",
    "contiguous", "conv2d", "dropout", "dropout_", "flatten", "gelu_", "group_norm",
    "hardsigmoid", "hardswish", "hardswish_", "hardtanh_", "layer_norm", "leaky_relu_",
    "linalg_vector_norm", "linear", "log_softmax", "matmul", "max_pool2d", "meshgrid", "mish",
    "mul_", "pad", "relu6", "relu6_", "relu_", "reshape", "roll", "rsub",
    "scaled_dot_product_attention", "sigmoid_", "silu", "silu_", "softmax", "softplus",
    "special_ndtr", "split", "square", "stack", "tanh_", "tile", "to", "transpose", "unflatten",
    "upsample_bicubic2d", "view_as", "_assert_tensor_metadata",
})  # fmt: skip
"""Operators beyond torch's core that image networks are traced to."""
ONE_IMAGE_TENSOR = (
    '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": '
    '"builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, '
    '"children_spec": []}]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}]'
)
ONE_LOGITS_TENSOR = '[1, {"type": null, "context": null, "children_spec": []}]'
REPLACED: dict[str, Any] = {
    "metadata": {}, "guards_code": [], "treespec_namedtuple_fields": {}, "custom_obj_values": {},
    "in_spec": ONE_IMAGE_TENSOR, "out_spec": ONE_LOGITS_TENSOR,
}  # fmt: skip
"""What is code, or may become code, and is the same or not needed for any network of ours."""


def checked_archive(path: Path) -> tuple[io.BytesIO, str]:
    """A new archive of what is harmless in the file, and what the file says about itself.

    Raises:
        ExportError: the file is damaged, of somebody else, or holds more than a network.
    """
    records = _records(path)
    if ABOUT not in records:
        raise ExportError(
            "is not an export of blockout: it does not name classes and preprocessing; "
            "`blockout export RUN` writes files that do"
        )
    if records.get(SAMPLE_INPUTS):
        raise ExportError(f"is refused: it holds pickled data ({SAMPLE_INPUTS}), never read here")
    unknown = [name for name in records if not _is_known(name)]
    if unknown:
        raise ExportError(f"is refused: it holds {unknown[0]!r}, which no export of blockout has")
    kept = {name: records[name] for name in records if name in MARKS or re.fullmatch(RAW, name)}
    for name, pattern in CONFIGS.items():
        kept[name] = _dumped(_checked_config(_loaded(records, name), pattern))
    kept[GRAPH] = _dumped(_checked_graph(_loaded(records, GRAPH)))
    kept[SAMPLE_INPUTS] = b""
    return _archive(kept), records[ABOUT].decode(errors="replace")


def _records(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ExportError("is not an export of blockout: it is compressed")
            return {entry.filename.partition("/")[2]: file.read(entry) for entry in entries}
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as error:
        if isinstance(error, ExportError):
            raise
        raise ExportError(f"is damaged or no .pt2 at all ({error})") from error


def _is_known(name: str) -> bool:
    fixed = (ABOUT, GRAPH, *MARKS, *IGNORED, *CONFIGS)
    return name in fixed or re.fullmatch(RAW, name) is not None


def _loaded(records: dict[str, bytes], name: str) -> Any:
    try:
        return json.loads(records[name])
    except (KeyError, ValueError, RecursionError) as error:
        raise ExportError(f"is damaged: {name} is missing or no JSON") from error


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _archive(records: dict[str, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, content in records.items():
            file.writestr(f"archive/{name}", content)
    buffer.seek(0)
    return buffer


def _checked_config(config: Any, pattern: str) -> Any:
    """Tensors as raw bytes only: nothing pickled, no objects."""
    try:
        for name, payload in config["config"].items():
            path = payload["path_name"]
            if payload["use_pickle"] is not False or not re.fullmatch(pattern, path):
                raise ExportError(f"is refused: {name} is pickled ({path}), and never read here")
    except (KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"is damaged: its list of tensors is wrong ({error})") from error
    return _checked(config)


def _checked_graph(graph: Any) -> Any:
    graph = _checked(graph)
    try:
        module = graph["graph_module"]
        calls = [entry for entry in module["module_call_graph"] if entry["fqn"] == ""]
        module["module_call_graph"] = calls
    except (KeyError, TypeError) as error:
        raise ExportError(f"is damaged: its graph is wrong ({error})") from error
    return graph


def _checked(value: Any, key: str = "") -> Any:
    """The same JSON without anything that torch would run, or an error."""
    if key in REPLACED:
        return REPLACED[key]
    if key == "target":
        _require_known_operator(value)
        return value
    if key in NEVER:
        raise ExportError(f"is refused: it holds {key}, which no export of blockout has")
    if isinstance(value, dict):
        for name in value:
            _require_pattern(name, DOTTED)
        return {name: _checked(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_checked(inner, key) for inner in value]
    if isinstance(value, str):
        _require_pattern(value, PATTERNS.get(key, NAME))
    return value


def _require_pattern(text: str, pattern: str) -> None:
    if not re.fullmatch(pattern, text, re.ASCII):
        raise ExportError(f"is refused: {text[:60]!r} stands where a name or a size should")


def _require_known_operator(target: Any) -> None:
    """Arithmetic of sizes, and operators of networks: torch's core, and those that come down to it.

    Others read and write files (``from_file``) or memory that is not theirs."""
    if target in SIZE_ARITHMETIC:
        return
    named = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", str(target), re.ASCII)
    if named:
        operator = getattr(getattr(torch.ops.aten, named[1], None), named[2], None)
        if isinstance(operator, torch._ops.OpOverload) and (
            named[1] in EVERYDAY or torch.Tag.core in operator.tags
        ):
            return
    raise ExportError(f"is refused: it calls {str(target)[:60]!r}, which is no known operator")
