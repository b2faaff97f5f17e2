"""Builds models from a config or from a saved description."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from blockout.models.classifier import ImageClassifier, count_features
from blockout.models.config import (
    EFFICIENTNETS,
    FORMER_NAMES,
    LARGE_TRUNK,
    SMALL_TRUNK,
    ModelConfig,
    resolved,
)
from blockout.models.efficientnet import EfficientNetLite
from blockout.models.heads import Head
from blockout.models.inception import InceptionBN, SmallInception
from blockout.models.pretrained import PretrainedTrunk
from blockout.models.trunks import Trunk

PARTS = ("trunk", "head", "freeze_trunk")
MOST = 1e15
"""Larger numbers do not fit into the sizes of a tensor, and torch's errors then vary."""
UNKNOWN = "the model description is incomplete or unknown"


def build_model(
    config: ModelConfig,
    *,
    classes: int,
    data_name: str,
    image_size: int,
    trunk: nn.Module | None = None,
) -> ImageClassifier:
    """The model of a config for one data set; ``trunk`` replaces ``config.trunk``.

    >>> model = build_model(ModelConfig(), classes=100, data_name="cifar100", image_size=32)
    >>> model.head.fc2
    BlockoutLinear(
      in_features=512, out_features=512, clusters=6, bias=False
      (inputs): Memberships(nodes=512, clusters=6, hard=True, learned=True)
      (outputs): Memberships(nodes=512, clusters=6, hard=True, learned=True)
    )
    """
    if classes < 2:
        raise ValueError(f"a classifier needs at least 2 classes, got {classes}")
    config = resolved(config, data_name, image_size, classes)
    assert config.nodes and config.clusters and config.dropout is not None
    trunk = build_trunk(config, image_size) if trunk is None else trunk
    head = Head(
        count_features(trunk, image_size),
        classes,
        method=config.method,
        nodes=config.nodes,
        clusters=config.clusters,
        hard=config.hard,
        learned=config.learned,
        dropout=config.dropout,
        with_linear=bool(config.with_linear),
    )
    return ImageClassifier(trunk, head, freeze_trunk=bool(config.freeze_trunk))


def build_trunk(config: ModelConfig, image_size: int) -> nn.Module:
    """The trunk alone. A pretrained one has its weights and can read images of this size."""
    trunk = resolved(config, "", image_size).trunk
    if trunk == LARGE_TRUNK:
        return InceptionBN()
    if trunk == SMALL_TRUNK:
        return SmallInception(config.width, config.early_downsampling)
    if trunk in EFFICIENTNETS:
        return EfficientNetLite.load(trunk)
    return PretrainedTrunk.load(trunk, image_size)


def from_description(
    description: Mapping[str, Any], trunk: nn.Module | None = None
) -> ImageClassifier:
    """The architecture that ``ImageClassifier.describe`` describes, with untrained weights.

    Needs no pickle, no network, and neither folder nor package of a pretrained trunk.

    Args:
        description: the result of ``describe``, possibly saved as JSON in between.
        trunk: your own trunk, if the described model had one.

    >>> model = build_model(ModelConfig(), classes=10, data_name="shapes", image_size=32)
    >>> twin = from_description(model.describe())
    >>> twin.load_state_dict(model.state_dict())
    <All keys matched successfully>
    """
    if description.get("format") != 1:
        raise ValueError(
            f"expected a model description of format 1, got {description.get('format')!r}; "
            "another version of blockout wrote it"
        )
    parts = _checked(_parts, {k: description[k] for k in PARTS if k in description})
    try:
        trunk = _described_trunk(parts["trunk"], trunk)
        head = Head(**_checked(Head, parts["head"]))
        return ImageClassifier(trunk, head, freeze_trunk=parts["freeze_trunk"])
    except (RuntimeError, OverflowError) as error:  # torch: sizes that no layer can have
        raise ValueError(f"{UNKNOWN}: {error}") from error


def _parts(trunk: dict[str, Any], head: dict[str, Any], freeze_trunk: bool) -> None:
    """The signature of a description."""


def _checked(build: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a description gives, if names and types are those of the signature.

    What goes wrong behind it is a mistake of ours, and not of the description.
    """
    import msgspec  # only who reads a description needs it

    signature = inspect.signature(build)
    try:
        signature.bind(**given)
        hints = {name: signature.parameters[name].annotation for name in given}
        found = {name: msgspec.convert(value, hints[name]) for name, value in given.items()}
    except (TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"{UNKNOWN}: {error}") from error
    for name, value in found.items():
        if isinstance(value, int | float) and not abs(value) <= MOST:
            raise ValueError(f"{UNKNOWN}: {name} is {value:g}")
    return found


def restored(
    description: Mapping[str, Any], weights: Mapping[str, Tensor], trunk: nn.Module | None = None
) -> ImageClassifier:
    """The described model with its weights.

    Takes no more memory than the weights themselves, whatever the description says: the model is
    built without memory first, and only if all names and shapes fit with it.

    Raises:
        ValueError: the description cannot be built, or is not that of the weights, or a weight is
            not finite.
    """
    with torch.device("meta"):
        outline = from_description(description, trunk)
    _require_fit(outline, weights)
    if isinstance(outline.trunk, PretrainedTrunk):  # some of its values are not among the weights
        outline.trunk = _described_trunk(description["trunk"], None)
    elif trunk is None:
        outline.trunk.to_empty(device="cpu")
    outline.head.to_empty(device="cpu")
    model = ImageClassifier(outline.trunk, outline.head, freeze_trunk=outline.freeze_trunk)
    model.load_state_dict(weights)
    return model


def _require_fit(outline: ImageClassifier, weights: Mapping[str, Tensor]) -> None:
    expected = {name: _form(value) for name, value in outline.state_dict().items()}
    found = {name: _form(value) for name, value in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            described, there = expected.get(name, "nothing"), found.get(name, "nothing")
            raise ValueError(f"{name} should be {described}, and the weights hold {there}")
    trunk, head = outline.trunk, outline.head
    read = head.specification["features"] if isinstance(head, Head) else None
    if isinstance(trunk, Trunk) and trunk.features != read:
        raise ValueError(f"the trunk gives {trunk.features} features and the head reads {read}")
    for name, value in weights.items():
        if not value.isfinite().all():
            raise ValueError(
                f"{name} has values that are not finite (nan or infinite): the training diverged, "
                "or the file was changed"
            )


def _form(value: Tensor) -> str:
    """Shape and kind of numbers; any precision of at least 16 bits is as good."""
    kind = "numbers" if value.is_floating_point() and value.itemsize > 1 else str(value.dtype)
    return f"{kind} of shape {tuple(value.shape)}"


def _described_trunk(description: dict[str, Any], own: nn.Module | None) -> nn.Module:
    description = dict(description)
    kind = str(description.pop("kind", None))
    kind = FORMER_NAMES.get(kind, kind)
    if kind == "own":
        if own is None:
            raise ValueError(
                f"the model has a custom trunk, {description.get('class')}; build it and pass it: "
                "from_description(description, trunk=...)"
            )
        return own
    if own is not None:
        raise ValueError(f"the model's trunk is {kind}, which needs no trunk=...")
    kinds: dict[str, Callable[..., Trunk]] = {
        SMALL_TRUNK: SmallInception,
        LARGE_TRUNK: InceptionBN,
        **{name: partial(EfficientNetLite, name) for name in EFFICIENTNETS},
        "pretrained": PretrainedTrunk.from_configuration,
    }
    if kind not in kinds:
        raise ValueError(f"the trunk must be one of {', '.join(kinds)}, got {kind!r}")
    return kinds[kind](**_checked(kinds[kind], description))
