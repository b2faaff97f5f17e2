"""What a model is made of, as one frozen dataclass, and the paper's values as data."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

Method = Literal["baseline", "fc", "dropout", "dropconnect", "blockout"]
METHODS: tuple[Method, ...] = get_args(Method)
OWN_TRUNKS = ("compact", "inception-bn")
LARGEST_COMPACT_IMAGE = 64


class PaperDefaults(NamedTuple):
    """The head's values for one data set."""

    nodes: int
    clusters: int
    dropout: float


PAPER: dict[str, PaperDefaults] = {
    "cifar100": PaperDefaults(nodes=512, clusters=6, dropout=0.3),
    # Print leaves CIFAR-10's number of nodes open; it is taken to be CIFAR-100's.
    "cifar10": PaperDefaults(nodes=512, clusters=2, dropout=0.5),
    "imagenet": PaperDefaults(nodes=4096, clusters=6, dropout=0.5),
}
ELSEWHERE = PaperDefaults(nodes=512, clusters=6, dropout=0.5)
"""For data sets that are not in the paper: our choice, whatever their number of classes."""


@dataclass(frozen=True)
class ModelConfig:
    """Which trunk, which head.

    >>> resolved(ModelConfig(), "cifar100", image_size=32)
    ModelConfig(method='blockout', trunk='compact', width=0.5, early_downsampling=True, \
nodes=512, clusters=6, hard=True, learned=True, dropout=0.3, freeze_trunk=False)
    """

    method: Method = "blockout"
    """What stands above the trunk: baseline (the classifier only), fc (two fully-connected layers
    before it), dropout, dropconnect or blockout (the same layers, regularised)."""
    trunk: str = "auto"
    """compact (for images of 28-64 px), inception-bn (224 px), auto (one of these by image size),
    or a pretrained model: a Hugging Face model id (organisation/name) or its saved folder."""
    width: float = 0.5
    """Multiplier of the compact trunk's channels; 1 is the full model, 0.5 trains on a CPU."""
    early_downsampling: bool = True
    """Halve the grid after the compact trunk's first block: less than a third of the work."""
    nodes: int | None = None
    """Nodes of each fully-connected layer; by default the paper's for the data set, else 512."""
    clusters: int | None = None
    """Number of clusters k for blockout; by default the paper's for the data set, else 6."""
    hard: bool = True
    """Draw the assignments in training; false: soft, the probabilities themselves are used."""
    learned: bool = True
    """Learn the membership probabilities; false: they stay at 0.5."""
    dropout: float | None = None
    """Share of the nodes (dropout) or weights (dropconnect) that a training step drops; by default
    the paper's for the data set, else 0.5."""
    freeze_trunk: bool = False
    """Train the head only; the trunk stays as it is, batch normalisation included. For trunks that
    are trained already."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"--method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if not self.trunk:
            raise ValueError(
                "--trunk must be auto, compact, inception-bn, a Hugging Face model id or a folder, "
                "got an empty name"
            )
        if not 0 < self.width < float("inf"):
            raise ValueError(f"--width must be a positive number, got {self.width:g}")
        for name, value in (("nodes", self.nodes), ("clusters", self.clusters)):
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout must lie in [0, 1), got {self.dropout:g}")


def in_paper(data_name: str) -> bool:
    """Whether a data set is one of the paper's, recognised as ``paper_defaults`` does.

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


def resolved(config: ModelConfig, data_name: str, image_size: int) -> ModelConfig:
    """The same choices with nothing left open: ``auto`` and every None are filled in."""
    trunk = config.trunk
    if trunk == "auto":
        trunk = "compact" if image_size <= LARGEST_COMPACT_IMAGE else "inception-bn"
    defaults = paper_defaults(data_name)
    return replace(
        config,
        trunk=trunk,
        nodes=defaults.nodes if config.nodes is None else config.nodes,
        clusters=defaults.clusters if config.clusters is None else config.clusters,
        dropout=defaults.dropout if config.dropout is None else config.dropout,
    )
