"""Which Hugging Face configurations we build models from: image models, described by plain values.

A configuration can make transformers fetch code, kernels or weights, or quantise. Those of a run,
an export or a saved model may come from anybody, so only what is listed here reaches transformers.
"""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockout import files

IMAGE_MODELS = frozenset({
    "aimv2_vision_model", "beit", "bit", "chinese_clip_vision_model", "clip_vision_model",
    "convnext", "convnextv2", "cvt", "data2vec-vision", "deit", "dinov2", "dinov2_with_registers",
    "dinov3_convnext", "dinov3_vit", "donut-swin", "efficientnet", "focalnet", "hgnet_v2", "hiera",
    "ijepa", "levit", "mlcd", "mlcd_vision_model", "mobilenet_v1", "mobilenet_v2", "mobilevit",
    "mobilevitv2", "pixio", "poolformer", "pvt", "pvt_v2", "regnet", "resnet", "segformer",
    "siglip2_vision_model", "siglip_vision_model", "swiftformer", "swin", "swinv2", "textnet",
    "tipsv2_vision_model", "vit", "vit_mae", "vit_msn", "vitdet", "yolos",
})  # fmt: skip
"""Model types that need images only, and no other model: many detectors fetch a backbone."""
FROM_ELSEWHERE = ("auto_map", "attn_implementation", "quantization_config", "backbone", "adapter")
"""How keys begin that ask for code or weights from elsewhere; we say so instead of ignoring it."""
BUILT_IN = ("eager", "sdpa")
ALSO_OURS = ("out_features", "out_indices")
"""Keys that a configuration takes without naming them in its signature."""
LARGEST_FILE = 1 << 20
"""Bytes of a configuration."""
LARGEST_NUMBER, MOST_LAYERS, MOST_ENTRIES = 1 << 20, 1000, 1000


def image_config(transformers: Any, given: Mapping[str, Any]) -> Any:
    """The configuration object for what was saved, with keys that the model itself names.

    Other keys are ignored: they say where a model came from or how it was trained.

    Raises:
        ValueError: it is no image model that we know, asks for something from elsewhere, or has
            values that are not plain.
    """
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in IMAGE_MODELS:
        raise ValueError(
            f"its type is {str(kind)[:60]!r}, which is no image model that we know; of a model of "
            "text and images, save the image part to a folder and name that folder"
        )
    if kind not in transformers.CONFIG_MAPPING:
        raise ValueError(f"this version of transformers does not know the model type {kind!r}")
    _require_self_contained(given)
    values = own_values(transformers, kind, given)
    named = transformers.CONFIG_MAPPING[kind]
    return named(**{key: _plain(key, value) for key, value in values.items()})


def own_values(transformers: Any, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What describes the architecture: the keys that this kind of configuration names itself."""
    every, own = (
        inspect.signature(config.__init__).parameters.keys()
        for config in (transformers.PretrainedConfig, transformers.CONFIG_MAPPING[kind])
    )
    return {k: v for k, v in given.items() if k in ALSO_OURS or (k in own and k not in every)}


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON file that holds an object; a ValueError says what is wrong."""
    if not path.is_file() or path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path.name} is not a file of at most {LARGEST_FILE:,} bytes")
    try:
        found = files.parsed_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path.name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no object")
    return found


def _require_self_contained(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        asks = any(key.strip("_").startswith(name) for name in FROM_ELSEWHERE)
        if asks and value and value not in BUILT_IN:
            raise ValueError(f"its configuration asks for {key}, which comes from elsewhere")


def _plain(key: str, value: Any, depth: int = 0) -> Any:
    """The value, if it is a word, a moderate number, or some of them."""
    if isinstance(value, list | tuple) and len(value) <= MOST_ENTRIES and depth < 3:
        return [_plain(key, entry, depth + 1) for entry in value]
    if isinstance(value, dict) and len(value) <= MOST_ENTRIES and depth < 3:
        return {name: _plain(name, entry, depth + 1) for name, entry in value.items()}
    most = MOST_LAYERS if re.search("layers|depth|blocks|repeats", key) else LARGEST_NUMBER
    word = isinstance(value, str) and re.fullmatch(r"[\w.-]{0,60}", value, re.ASCII)
    number = isinstance(value, int | float) and abs(value) <= most
    if not (value is None or word or number):
        raise ValueError(f"its configuration has {key}={str(value)[:60]!r}, which cannot be right")
    return value
