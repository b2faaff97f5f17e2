"""Pretrained trunks: Hugging Face image models, by id or from a saved folder."""

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from blockout.limits import HUB, LARGEST_SIZE
from blockout.models.config import (
    EFFICIENTNETS,
    NAMED_TRUNKS,
    OWN_TRUNKS,
    ModelConfig,
    is_hub_id,
)
from blockout.models.configurations import image_config, own_values, read_json
from blockout.models.efficientnet import CROPPED, MEAN, STD, VARIANTS
from blockout.models.trunks import Trunk

Readout = Literal["pooler", "map", "first token", "mean of tokens"]
HUB_FILES = (
    "config.json",
    "preprocessor_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
)
HUB_TIMEOUT = 10.0
"""Seconds to wait for the hub if a model is not in the cache."""


class Preprocessing(NamedTuple):
    """The input of a pretrained trunk: square RGB images in [0, 1], minus mean, divided by std."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop: float = 1.0
    """The centred square that it was trained to see, as a share of the shorter side."""


IMAGENET = Preprocessing(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class PretrainedTrunk(Trunk):
    """A Hugging Face image model as a trunk; create it with ``load``.

    Features are the model's pooled output. If it has none, or the checkpoint has no weights for it
    (as with ViT classifiers from the hub), they are the first of these that exists: the feature
    map, the class token, the mean of the tokens.

    Shape: (N, 3, H, W) to (N, features), or a map (N, features, H', W').
    """

    def __init__(self, model: nn.Module, readout: Readout, features: int) -> None:
        super().__init__()
        if readout not in ("pooler", "map"):
            _drop_pooler(model)
        _mend_pooler(model, features)
        _mend_momentum(model)
        self.model, self.features = model, features
        self.readout: Readout = readout

    @classmethod
    def load(cls, trunk: str, image_size: int) -> "PretrainedTrunk":
        """The model with its weights (float32, from safetensors), tried at this image size."""
        transformers = _transformers(trunk)
        folder = locate(trunk)
        with _quietly(transformers), _clearly(trunk, "cannot be loaded"):
            model, found = transformers.AutoModel.from_pretrained(
                str(folder),
                config=image_config(transformers, read_json(folder / "config.json")),
                trust_remote_code=False,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        _require_complete(trunk, model, found["missing_keys"])
        with torch.no_grad(), _clearly(trunk, f"cannot read images of {image_size} px"):
            output = model.eval()(pixel_values=torch.zeros(1, 3, image_size, image_size))
        readout = _choose_readout(model, output, pooler_trained=not found["missing_keys"])
        return cls(model.train(), readout, _read(output, readout).shape[1])

    @classmethod
    def from_configuration(
        cls, configuration: dict[str, Any], readout: Readout, features: int
    ) -> "PretrainedTrunk":
        """The architecture alone, from what ``describe`` recorded; reads nothing else.

        Raises:
            ValueError: the configuration is no plain image model's; see ``image_config``.
        """
        transformers = _transformers(str(configuration.get("model_type")))
        config = image_config(transformers, configuration)
        if readout not in get_args(Readout):
            raise ValueError(f"the readout must be one of {get_args(Readout)}, got {readout!r}")
        with _clearly(str(configuration.get("model_type")), "cannot be built"):
            model = transformers.AutoModel.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
        return cls(model, readout, features)

    def forward(self, x: Float[Tensor, "n 3 h w"]) -> Tensor:
        return _read(self.model(pixel_values=x), self.readout)

    def map_and_features(self, x: Float[Tensor, "n 3 h w"]) -> tuple[Tensor | None, Tensor]:
        """The last map (N, channels, H', W'), None for tokens, and the features made from it."""
        output = self.model(pixel_values=x)
        hidden = output.last_hidden_state
        return (hidden if hidden.dim() == 4 else None), _read(output, self.readout)

    def describe(self) -> dict[str, Any]:
        config: Any = self.model.config
        transformers = _transformers(config.model_type)
        kept = own_values(transformers, config.model_type, config.to_diff_dict())
        return {
            "kind": "pretrained",
            "configuration": json.loads(json.dumps({**kept, "model_type": config.model_type})),
            "readout": self.readout,
            "features": self.features,
        }


def trunk_preprocessing(config: ModelConfig) -> Preprocessing | None:
    """The image size, mean and std that a pretrained trunk expects; None for our own trunks.

    For Hugging Face models, read from ``preprocessor_config.json``. Missing values default to the
    model's own image size (else 224 px) and to ImageNet's mean and std, which nearly all such
    models use.
    """
    if config.trunk in ("auto", *OWN_TRUNKS):
        return None
    if config.trunk in EFFICIENTNETS:
        size = VARIANTS[config.trunk].image_size
        return Preprocessing(size, MEAN, STD, size / (size + CROPPED))
    folder = locate(config.trunk)
    path = folder / "preprocessor_config.json"
    with _clearly(config.trunk, "cannot be read"):
        model_config = read_json(folder / "config.json")
        given = read_json(path) if path.is_file() else {}
        return _preprocessing(given, _edge(model_config.get("image_size")))


def _preprocessing(given: dict[str, Any], own_size: int | None) -> Preprocessing:
    """From what a preprocessor is configured to do; a ValueError says what cannot be right."""
    size = _image_size(given) or own_size or IMAGENET.image_size
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if given.get("do_normalize", True):
        mean = _three(given.get("image_mean") or IMAGENET.mean)
        std = _three(given.get("image_std") or IMAGENET.std)
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"images must have 1 to {LARGEST_SIZE} px, got {size}")
    if not (min(std) > 0 and all(map(math.isfinite, (*mean, *std)))):
        raise ValueError(f"mean and std must be finite and std positive, got {mean} and {std}")
    return Preprocessing(size, mean, std, _crop(given))


def locate(trunk: str) -> Path:
    """The folder of a saved model: the one named, or the local copy of a hub model.

    Looks in the cache first, then asks the hub once, so that there is no long wait offline. Asks
    for nothing that is not named ``hf://...``: it may be the name of a private folder.
    """
    if trunk.startswith(HUB):
        return _from_hub(trunk)
    folder = Path(trunk).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"--trunk {trunk} is a folder without config.json; "
                "it should hold what a Hugging Face model's save_pretrained writes"
            )
        return folder
    if not is_hub_id(trunk):
        raise ValueError(
            f"--trunk {trunk} is neither a folder nor auto, {', '.join(NAMED_TRUNKS)}, nor a "
            f"model of the Hugging Face hub ({HUB}organisation/name)"
        )
    return _from_hub(trunk)


def folder_digest(trunk: str) -> str | None:
    """SHA-256 of what a trunk's folder holds, wherever it lies; None for a trunk with a name."""
    folder = Path(trunk).expanduser()
    if trunk in ("auto", "own", *NAMED_TRUNKS) or not folder.is_dir():
        return None
    found = hashlib.sha256()
    for path in sorted({path for pattern in HUB_FILES for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        found.update(f"{path.name} {content}\n".encode())
    return found.hexdigest()


def _from_hub(trunk: str) -> Path:
    _transformers(trunk)
    from huggingface_hub import snapshot_download

    name = trunk.removeprefix(HUB)
    with contextlib.suppress(OSError, ValueError):
        cached = Path(snapshot_download(name, local_files_only=True))
        if (cached / "config.json").is_file() and any(cached.glob("model*.safetensors")):
            return cached
    if name == trunk:
        raise ValueError(
            f"--trunk {trunk} is neither a folder nor in the Hugging Face cache; to ask the hub "
            f"for it, write --trunk {HUB}{trunk}"
        )
    try:
        fetched = snapshot_download(name, allow_patterns=list(HUB_FILES), etag_timeout=HUB_TIMEOUT)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--trunk {trunk} is not in the Hugging Face cache, and could not be downloaded "
            f"({_first_line(error)}); check the name and the connection"
        ) from error
    return Path(fetched)


def _transformers(trunk: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            f"--trunk {trunk} needs the package transformers: pip install 'blockout[pretrained]'"
        ) from error
    return transformers


def _require_complete(trunk: str, model: nn.Module, missing_keys: set[str]) -> None:
    missing = {key for key in missing_keys if not key.startswith("pooler.")}
    if missing:
        raise ValueError(
            f"--trunk {trunk} lacks {len(missing)} of the weights of {type(model).__name__}, "
            f"among them {min(missing)}; is it a complete checkpoint?"
        )


def _choose_readout(model: nn.Module, output: Any, pooler_trained: bool) -> Readout:
    if output.get("pooler_output") is not None and pooler_trained:
        return "pooler"
    if output.last_hidden_state.dim() == 4:
        return "map"
    has_class_token = any(name.endswith("cls_token") for name, _ in model.named_parameters())
    return "first token" if has_class_token else "mean of tokens"


def _read(output: Any, readout: Readout) -> Tensor:
    if readout == "pooler":
        return output.pooler_output.flatten(1)
    hidden = output.last_hidden_state
    if readout == "map":
        return hidden
    return hidden[:, 0] if readout == "first token" else hidden.mean(1)


def _drop_pooler(model: nn.Module) -> None:
    """Distributed training refuses unused weights, because they get no gradients."""
    if "pooler" in model._modules:
        model._modules["pooler"] = None


def _mend_pooler(model: nn.Module, features: int) -> None:
    """Average pooling with a window as large as the number of channels becomes global pooling.

    Some models (EfficientNet) pool the whole grid this way. torch cuts the window to the grid;
    other runtimes refuse it, or divide by the size of the window.
    """
    pooler = model._modules.get("pooler")
    if isinstance(pooler, nn.AvgPool2d) and (_edge(pooler.kernel_size) or 0) >= features:
        model._modules["pooler"] = nn.AdaptiveAvgPool2d(1)


def _mend_momentum(model: nn.Module) -> None:
    """TensorFlow's momentum is the share of the old statistics, torch's that of the new ones.

    Some models (EfficientNet, MobileNet) hand TensorFlow's to torch: 0.99 would forget everything
    but the last batch.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.momentum or 0) > 0.5:
            module.momentum = 1 - module.momentum  # pyright: ignore[reportOperatorIssue]


def _image_size(preprocessor: dict[str, Any]) -> int | None:
    cropped = preprocessor.get("do_center_crop", True)
    crop_size = _edge(preprocessor.get("crop_size")) if cropped else None
    return crop_size or _edge(preprocessor.get("size"))


def _crop(preprocessor: dict[str, Any]) -> float:
    """The share of the shorter side that is left after resizing and cropping."""
    if not preprocessor.get("do_center_crop", True):
        return 1.0
    resized, cropped = _edge(preprocessor.get("size")), _edge(preprocessor.get("crop_size"))
    return min(cropped / resized, 1.0) if resized and cropped else 1.0


def _edge(size: Any) -> int | None:
    """One edge of a size in Hugging Face's forms: a number, a pair, or named edges."""
    if isinstance(size, dict):
        size = size.get("shortest_edge") or size.get("height") or size.get("longest_edge")
    if isinstance(size, list | tuple):
        size = size[0]
    return None if size is None else int(size)


def _three(values: Any) -> tuple[float, float, float]:
    first, second, third = (float(value) for value in values)
    return first, second, third


@contextlib.contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Hides progress bars and the report on weights, which we check ourselves."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _clearly(trunk: str, what: str) -> Iterator[None]:
    """Turns whatever a foreign model raises into one line that names the flag."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"--trunk {trunk} {what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
