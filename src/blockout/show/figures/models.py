"""Fig. 7: the models that are compared, from real modules."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import nn

from blockout.layers import BlockoutLinear
from blockout.models import ImageClassifier, ModelConfig, build_model, from_description
from blockout.models.heads import LINEAR
from blockout.show.colours import PALETTE
from blockout.show.figures import style
from blockout.show.figures.selection import CannotDraw
from blockout.show.figures.sheet import Sheet
from blockout.show.methods import METHOD_NAMES

SHOWN = "baseline", "dropout", "blockout"
COLOURS = {
    "trunk": PALETTE[5],
    "pool": style.FAINT,
    "fc": PALETTE[1],
    "dropout": "#ffffff",
    "blockout": PALETTE[0],
    "mean": style.FAINT,
    "softmax": style.FAINT,
}
WIDE, HIGH, GAP, BAR, SIDE_GAP = 1.62, 0.2, 0.085, 0.125, 0.1


class Part(NamedTuple):
    """A box of the diagram."""

    kind: str
    text: str
    share: float = 1.0
    """Of the full width: the channels of a block of the trunk."""
    beside: str = ""
    """What stands beside all parts since the pooling, and is averaged with them here."""


@style.styled
def models(description: Mapping[str, Any] | None = None, image_size: int = 32) -> Figure:
    """Baseline, Dropout and Blockout with the trunk and the sizes of a described model.

    By default, the paper's for CIFAR-100 with the small trunk.
    """
    built = [_model(method, description) for method in SHOWN]
    stacks = [outline(model, image_size) for model in built]
    sheet = Sheet(max(map(_height, stacks)) + 0.3)
    for number, (method, model, parts) in enumerate(zip(SHOWN, built, stacks, strict=True)):
        x = 0.3 + 2.14 * number
        _stack(sheet, x, 0.2, parts)
        weights = sum(p.numel() for p in model.parameters())
        title = f"{style.letter(number)} {METHOD_NAMES[method].name}, {weights / 1e6:.2f} M weights"
        sheet.words(x + WIDE / 2, 0.1, title)
    return sheet.figure


def outline(model: ImageClassifier, image_size: int) -> list[Part]:
    """From the image to the classes, read from the modules."""
    parts = [Part("image", f"image, {image_size}×{image_size}"), *_trunk(model, image_size)]
    parts.append(Part("pool", "average pooling"))
    for name, module in model.head.named_children():
        title = "classifier" if name == "classifier" else name.upper()
        if name == LINEAR:
            size = f"{module.in_features} → {module.out_features}"
            parts.append(Part("mean", "mean of both", beside=f"linear, {size}"))
        elif isinstance(module, BlockoutLinear):
            size = f"{module.in_features} → {module.out_features}"
            parts.append(Part("blockout", f"{title}, Blockout, {size}"))
        elif isinstance(module, nn.Linear):
            parts.append(Part("fc", f"{title}, {module.in_features} → {module.out_features}"))
        elif isinstance(module, nn.Dropout):
            parts.append(Part("dropout", f"Dropout, {100 * module.p:g} %"))
    return [*parts, Part("softmax", "softmax")]


def _trunk(model: ImageClassifier, image_size: int) -> list[Part]:
    """Its blocks with channels and grid; one box if it has no such blocks."""
    blocks = getattr(model.trunk, "blocks", None)
    if not isinstance(blocks, nn.Sequential):
        return [Part("trunk", type(model.trunk).__name__)]
    shapes: dict[str, torch.Size] = {}
    x = torch.empty(1, 3, image_size, image_size, device="meta")
    x = model.trunk.get_submodule("stem").eval()(x)
    for name, block in blocks.eval().named_children():
        x = block(x)
        shapes[name] = x.shape
    most = max(shape[1] for shape in shapes.values())
    return [
        Part("trunk", f"{shape[1]} channels, {shape[2]}×{shape[3]}", shape[1] / most)
        for name, shape in shapes.items()
        if "pool" not in name
    ]


def _model(method: str, description: Mapping[str, Any] | None) -> ImageClassifier:
    """On the meta device: sizes without numbers."""
    with torch.device("meta"):
        if description is None:
            config = ModelConfig(method=method)  # pyright: ignore
            return build_model(config, classes=100, data_name="cifar100", image_size=32)
        described = description["head"]
        drawn = {"layers", "form"} | ({"with_linear"} if method != described["method"] else set())
        head = {k: v for k, v in described.items() if k not in drawn}
        try:
            return from_description({**description, "head": head | {"method": method}})
        except ValueError as error:
            raise CannotDraw(f"the model cannot be built from its description: {error}") from error


def _height(parts: list[Part]) -> float:
    trunk = sum(part.kind == "trunk" for part in parts)
    return trunk * BAR + (len(parts) - trunk) * (HIGH + GAP) + GAP


def _stack(sheet: Sheet, x: float, y: float, parts: list[Part]) -> None:
    """From the bottom up; the trunk is a pile of thin bars, as wide as their channels."""
    middle, before, pooled = x + WIDE / 2, "", y
    for part in parts:
        thin = part.kind == "trunk"
        if before and not (thin and before == "trunk"):
            head = "-|>,head_width=1.2,head_length=2"
            sheet.arrow((middle, y), (middle, y + GAP), arrowstyle=head)
            y += GAP
        if thin:
            wide = WIDE * (0.35 + 0.65 * part.share)
            look = {"facecolor": COLOURS["trunk"], "linewidth": 0.4}
            sheet.box(middle - wide / 2, y, wide, BAR - 0.015, **look)
            sheet.words(middle, y + BAR / 2 - 0.01, part.text, fontsize=5.2)
        else:
            _labelled(sheet, x, y, part)
        if part.kind == "pool":
            pooled = y
        if part.beside:
            _side(sheet, x + WIDE, pooled, y, part.beside)
        y += BAR if thin else HIGH
        before = part.kind


def _side(sheet: Sheet, x: float, pooled: float, mean: float, text: str) -> None:
    """A layer right of the others, from the pooling to the mean."""
    low, high, middle = pooled + HIGH + GAP, mean - GAP, x + SIDE_GAP + HIGH / 2
    sheet.box(middle - HIGH / 2, low, HIGH, high - low, facecolor=COLOURS["fc"], linewidth=0.6)
    sheet.words(middle, (low + high) / 2, text, fontsize=style.SMALL, color=style.INK, rotation=90)
    look = {"arrowstyle": "-|>,head_width=1.2,head_length=2"}
    up, left = "angle,angleA=0,angleB=90", "angle,angleA=90,angleB=0"
    sheet.arrow((x, pooled + HIGH / 2), (middle, low), connectionstyle=up, **look)
    sheet.arrow((middle, high), (x, mean + HIGH / 2), connectionstyle=left, **look)


def _labelled(sheet: Sheet, x: float, y: float, part: Part) -> None:
    if part.kind != "image":
        dashes = {"linestyle": (0, (3, 2))} if part.kind == "dropout" else {}
        sheet.box(x, y, WIDE, HIGH, facecolor=COLOURS[part.kind], linewidth=0.6, **dashes)
    colour = "white" if part.kind == "blockout" else style.INK
    look = {"color": colour, "fontsize": style.SMALL}
    sheet.words(x + WIDE / 2, y + HIGH / 2 - 0.005, part.text, **look)
