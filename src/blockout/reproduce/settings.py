"""From a row to what is trained: the cell it belongs to, and the config of one run."""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from blockout.guidance import Guidance
from blockout.models.config import PaperDefaults, in_paper, paper_defaults
from blockout.optimisation import MEMBERSHIP_SCALE
from blockout.reproduce.rows import Settings
from blockout.runs.config import TrainConfig, name_of

Scale = Literal["transfer", "cpu", "paper"]
SCALES: dict[Scale, str] = {
    "transfer": "heads on frozen features of an ImageNet trunk: seconds to minutes per run",
    "cpu": "the compact Inception, half as wide, end to end: hours per run",
    "paper": "the full models and long schedules, for a GPU; not run by us",
}
RECIPES: dict[Scale, Settings] = {
    "transfer": {"trunk": "efficientnet-lite0"},
    "cpu": {"trunk": "inception-small", "epochs": 30, "weight_decay": 1e-5},
    "paper": {
        "trunk": "inception-small",
        "width": 1.0,
        "early_downsampling": False,
        "epochs": 100,
        "weight_decay": 1e-5,
    },
}
"""What the scales change in the defaults of `blockout train`; the same for every row."""
IMAGENET: Settings = {"trunk": "inception-bn", "epochs": 60}
"""What scale paper changes further for ImageNet; the paper does not print its schedules."""
VIEWS_OF_SMALL_IMAGES = 1
"""CIFAR's 32 px show nothing more in another crop."""
BESIDE = ("probability", "given")
"""Settings that are no flags."""

OF_ROWS = frozenset({
    *PaperDefaults._fields, "method", "hard", "learned", "paper", "membership_scale", "budget",
    "draw_on", "steady", "with_linear", "data", "per_class", "data_seed", "seed", "run", "restart",
})  # fmt: skip
"""Flags that rows, seeds and conditions decide; nothing else may change them."""


class Condition(NamedTuple):
    """What all rows of a table share: their runs can be compared, and lie in one folder."""

    data: str
    scale: Scale = "transfer"
    per_class: int | None = None
    """Training images per class, another choice with every seed; None: all."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Flags of `blockout train` that differ from the scale's, for every row."""

    @property
    def name(self) -> str:
        """
        >>> Condition("uoft-cs/cifar100", per_class=50, changes=(("epochs", 3),)).name
        'cifar100-transfer-50-epochs=3'
        """
        some = () if self.per_class is None else (str(self.per_class),)
        changed = (f"{k}={v}" for k, v in sorted(self.changes))
        text = "-".join((name_of(self.data), self.scale, *some, *changed))
        return re.sub(r"[^\w.=-]", "_", text)

    def described(self) -> str:
        """In words, for the head of a table."""
        images = "all images" if self.per_class is None else f"{self.per_class} images per class"
        changed = "".join(f", {k} {v}" for k, v in sorted(self.changes))
        return f"{name_of(self.data)}, {images}, scale {self.scale}{changed}"


class Cell(NamedTuple):
    """Runs that are the same but for their seed."""

    name: str
    settings: Settings


def cell_of(settings: Settings, scale: Scale) -> Cell:
    """The cell of a row's settings at a scale, with what guidance decides by the scale."""
    whole = {"learned": True, "hard": True, "probability": 0.5, "given": None} | dict(settings)
    whole = {"membership_scale": MEMBERSHIP_SCALE, "budget": Guidance().budget} | whole
    if not whole["paper"]:
        if "draw_on" in whole:
            whole["steady"] = whole["draw_on"] == 1
        if scale != "transfer":  # there the trunk learns from the linear classifier
            whole.pop("with_linear", None)
    beside = not whole["paper"] if whole["method"] == "blockout" else False
    whole["with_linear"] = whole.get("with_linear", beside)
    return Cell(_named(whole), whole)


def _named(s: Mapping[str, Any]) -> str:
    if s["method"] == "baseline":
        return "baseline"
    beside = "-linear" if s["with_linear"] else ""
    if s["method"] != "blockout":
        rate = "" if s["method"] == "fc" else f"{s['dropout']:g}"
        return f"{s['method']}{rate}{beside}-n{s['nodes']}"
    if s["given"]:
        kind = s["given"]
    elif not s["learned"]:
        kind = f"fixed{s['probability']:g}"
    elif not s["hard"]:
        kind = "soft"
    elif s["paper"]:
        kind = f"learned{s['membership_scale']:g}"
    else:
        drawn = f"-drawn{s['draw_on']:g}" if "draw_on" in s else ""
        kind = f"guided{s['budget']:g}{drawn}"
    return f"{kind}{beside}-k{s['clusters']}-n{s['nodes']}"


def config_of(condition: Condition, cell: Cell, seed: int) -> TrainConfig:
    """The config of one run; what it leaves open, the images decide.

    At the scales that read images, another seed also draws another hold-out and choice of images.
    """
    flags = {k: v for k, v in cell.settings.items() if k not in BESIDE}
    data: dict[str, Any] = {"data": condition.data}
    if condition.scale == "transfer":
        if in_paper(condition.data) and paper_defaults(condition.data).nodes == 512:
            data["views"] = VIEWS_OF_SMALL_IMAGES
    elif condition.per_class is not None:
        data |= {"per_class": condition.per_class, "data_seed": seed}
    recipe = dict(RECIPES[condition.scale])
    if condition.scale == "paper" and name_of(condition.data).startswith("imagenet"):
        recipe |= IMAGENET
    recipe |= dict(condition.changes)
    return TrainConfig.from_flat({**flags, **data, **recipe, "seed": seed, "tensorboard": False})
