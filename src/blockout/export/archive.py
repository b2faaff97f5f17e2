"""Checks a .pt2 file before torch loads it: only what ``export`` writes passes.

``torch.export.load`` trusts its file. It unpickles sample inputs, custom objects and tensor
subclasses, loads shared libraries, evaluates sizes and guards as Python, calls anything it finds by
name under ``torch``, and pastes names into code that it runs. So we read the file with the standard
library, check every word of it, and give torch a new archive, in memory, of the pieces that passed.
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
"""Lists of tensors by record, and the names that such records have."""
RAW = r"data/weights/weight_\d+|data/constants/tensor_\d+"
MARKS = ("archive_format", "archive_version", "byteorder", ".data/version")
IGNORED = (".data/serialization_id", SAMPLE_INPUTS)

NAME, DOTTED = r"\w*", r"[\w.]*"
SIZE = (
    r"(?:Symbol\('[su]\d++'(?:, (?:positive|integer|nonnegative)=True)*+\)|Integer\(-?\d++\)"
    r"|-?\d++|(?:Add|Mul|Max|Min|FloorDiv|CleanDiv|Mod|PythonMod)\(|, |\))++"
)
"""A size that depends on the batch, as sympy writes it: arithmetic of whole numbers. Nothing that
has matched is tried again, so that any text is read once."""
LONGEST = 400
"""Letters of a name or size: ours have up to 100."""
DOTTED_KEYS = ("parameter_name", "buffer_name", "tensor_constant_name", "fqn", "path_name")
PATTERNS = {
    **dict.fromkeys(DOTTED_KEYS, DOTTED),
    "expr_str": SIZE,
    "torch_version": r"[\w.+]*",
    "as_float": r"-?Infinity|NaN",
}
"""The pattern of a text, by its key; any other text must be a name without dots."""
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
"""Operators outside torch's core that traced image networks use."""
ONE_IMAGE_TENSOR = (
    '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": '
    '"builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, '
    '"children_spec": []}]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}]'
)
ONE_LOGITS_TENSOR = '[1, {"type": null, "context": null, "children_spec": []}]'
REPLACED: dict[str, Any] = {
    "metadata": {},
    "guards_code": [],
    "treespec_namedtuple_fields": {},
    "custom_obj_values": {},
    "in_spec": ONE_IMAGE_TENSOR,
    "out_spec": ONE_LOGITS_TENSOR,
}
"""Values that are or may become code. Ours need none of them, or always the same."""


def checked_archive(path: Path) -> tuple[io.BytesIO, str]:
    """A new archive of the harmless parts of a file, and what the file says about itself.

    Raises:
        ExportError: the file is damaged, not an export of ours, or holds more than a network.
    """
    try:
        return _checked_records(_records(path))
    except RecursionError as error:
        raise ExportError("is damaged: it is nested too deeply") from error


def _checked_records(records: dict[str, bytes]) -> tuple[io.BytesIO, str]:
    if ABOUT not in records:
        raise ExportError(
            "is not an export of blockout: it does not name classes and preprocessing; "
            "`blockout export RUN` writes files that do"
        )
    if records.get(SAMPLE_INPUTS):
        raise ExportError(
            f"is refused: it holds pickled data ({SAMPLE_INPUTS}), which we never read"
        )
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
            if sum(entry.file_size for entry in entries) > path.stat().st_size:
                raise ExportError("is damaged: its records overlap")
            return {entry.filename.partition("/")[2]: file.read(entry) for entry in entries}
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, ExportError):
            raise
        raise ExportError(f"is damaged or not a .pt2 file ({error})") from error


def _is_known(name: str) -> bool:
    fixed = (ABOUT, GRAPH, *MARKS, *IGNORED, *CONFIGS)
    return name in fixed or re.fullmatch(RAW, name) is not None


def _loaded(records: dict[str, bytes], name: str) -> Any:
    try:
        return json.loads(records[name])
    except (KeyError, ValueError, RecursionError) as error:
        raise ExportError(f"is damaged: {name} is missing or not JSON") from error


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
    """Allows tensors as raw bytes only: nothing pickled, no objects."""
    try:
        for name, payload in config["config"].items():
            path = payload["path_name"]
            if payload["use_pickle"] is not False or not re.fullmatch(pattern, path):
                raise ExportError(f"is refused: {name} is pickled ({path}), which we never read")
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
    """The same JSON without anything that torch would run; raises if it cannot be made safe."""
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
    if len(text) > LONGEST or not re.fullmatch(pattern, text, re.ASCII):
        raise ExportError(f"is refused: it holds {text[:60]!r} in place of a name or size")


def _require_known_operator(target: Any) -> None:
    """Allows arithmetic of sizes, torch's core operators, and ``EVERYDAY`` ones.

    Others read and write files (``from_file``) or foreign memory.
    """
    if target in SIZE_ARITHMETIC:
        return
    named = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", str(target), re.ASCII)
    if named:
        operator = getattr(getattr(torch.ops.aten, named[1], None), named[2], None)
        if isinstance(operator, torch._ops.OpOverload) and (
            named[1] in EVERYDAY or torch.Tag.core in operator.tags
        ):
            return
    raise ExportError(f"is refused: it calls {str(target)[:60]!r}, which is not a known operator")
