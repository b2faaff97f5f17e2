"""Everything that decides a run, as frozen dataclasses; each field's docstring is its --help."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from blockout.data import DataConfig
from blockout.guidance import Guidance
from blockout.models import ModelConfig
from blockout.models.config import OWN_TRUNKS, in_paper
from blockout.optimisation import MEMBERSHIP_SCALE

EPOCHS, EPOCHS_SHAPES = 10, 5
BATCH_SIZE, BATCH_SIZE_SHAPES = 256, 128
PEAK_RATE = 0.4
PEAK_RATE_PRETRAINED = 0.02


@dataclass(frozen=True)
class OptimisationConfig:
    """How long and how fast it learns: SGD with Nesterov momentum, one cycle of the rate."""

    epochs: int | None = None
    """Passes over the training images. Default: 10, for shapes 5."""
    steps: int | None = None
    """Number of steps instead of epochs."""
    batch_size: int | None = None
    """Images of one step, over all processes together. Default: 256, for shapes 128."""
    lr: float | None = None
    """Peak learning rate. Default: 0.4, or 0.02 where a pretrained trunk is tuned."""
    weight_decay: float = 1e-4
    """Weight decay of weights; biases, normalisations and memberships have none."""
    momentum: float = 0.9
    """Nesterov momentum."""
    membership_scale: float = MEMBERSHIP_SCALE
    """How many times faster than the weights the membership logits learn."""
    warmup: float = 0.2
    """Share of the steps in which the rate rises to its peak; then it falls along a cosine."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights that is evaluated and saved in place of
    the weights themselves, for example 0.999; 0 for none."""
    accumulate: int = 1
    """Divide each batch into so many parts that are computed one after another."""
    recalibrate: bool = True
    """Before evaluation, measure the statistics of batch normalisation anew under the expected
    weights that inference uses."""
    paper: bool | None = None
    """The paper's rule: memberships learn from the loss by Eq. 9 alone. Otherwise they are guided:
    towards few clusters, alike classes together, and a structure that is fixed early. Default:
    true on the paper's data sets (cifar10, cifar100, imagenet), false on others."""
    affinity_from: Literal["predictions", "groups"] = "predictions"
    """Which classes are alike: those that this training takes for each other, or of the same group
    in the data (superclasses, nested folders)."""
    seed: int = 0
    """Decides initial weights, draws, order and augmentation."""

    def __post_init__(self) -> None:
        for flag, value in (("epochs", self.epochs), ("batch-size", self.batch_size),
                            ("accumulate", self.accumulate), ("steps", self.steps)):  # fmt: skip
            _require(value is None or value >= 1, flag, "at least 1", value)
        _require(
            self.steps is None or self.epochs is None, "steps", "given without --epochs",
            f"--steps {self.steps} and --epochs {self.epochs}",
        )  # fmt: skip
        _require(self.lr is None or self.lr > 0, "lr", "positive", self.lr)
        _require(self.membership_scale > 0, "membership-scale", "positive", self.membership_scale)
        _require(self.weight_decay >= 0, "weight-decay", "at least 0", self.weight_decay)
        _require(0 <= self.seed < 2**63, "seed", "at least 0 and below 2**63", self.seed)
        for flag, value in (("momentum", self.momentum), ("label-smoothing", self.label_smoothing),
                            ("ema", self.ema)):  # fmt: skip
            _require(0 <= value < 1, flag, "at least 0 and below 1", value)
        _require(0 < self.warmup < 1, "warmup", "between 0 and 1", self.warmup)
        _require(self.momentum > 0, "momentum", "positive (Nesterov)", self.momentum)
        _require(
            self.batch_size is None or self.batch_size % self.accumulate == 0, "accumulate",
            f"a divisor of --batch-size {self.batch_size}", self.accumulate,
        )  # fmt: skip


@dataclass(frozen=True)
class ComputeConfig:
    """Where it runs; the words of Lightning Fabric."""

    accelerator: str = "auto"
    """cpu, gpu, mps, ... or auto."""
    devices: str = "auto"
    """Number of devices (processes) on each machine, or a list as 0,1; auto: all, on a CPU one."""
    num_nodes: int = 1
    """Number of machines."""
    strategy: str = "auto"
    """How processes work together: auto, ddp, ... or fsdp2 (weights sharded over processes)."""
    precision: str = "32-true"
    """32-true, bf16-mixed, 16-mixed, 64-true, ..."""
    own_draws: bool = False
    """Each process draws assignments of its own; by default all train the same architecture."""

    def __post_init__(self) -> None:
        _require(self.num_nodes >= 1, "num-nodes", "at least 1", self.num_nodes)


@dataclass(frozen=True)
class RunConfig:
    """Where results go."""

    run: Path | None = None
    """Folder of the run. Default: runs/ and a name made of data, method and config."""
    restart: bool = False
    """Begin anew: what the folder holds of this run is deleted first."""
    init_from: Path | None = None
    """Start from the final weights of this earlier run; what does not fit starts fresh."""
    log_every: int | None = None
    """Steps between two entries of metrics and of the distribution of P. Default: 50, in short
    trainings a fortieth of it."""
    checkpoint_minutes: float = 5.0
    """Minutes between two checkpoints within an epoch; each epoch ends with one as well."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    wandb: str | None = None
    """Log to this Weights & Biases project too (needs wandb)."""
    mlflow: str | None = None
    """Log to this MLflow experiment too (needs mlflow)."""

    def __post_init__(self) -> None:
        _require(
            self.log_every is None or self.log_every >= 1, "log-every", "at least 1", self.log_every
        )
        _require(
            self.checkpoint_minutes > 0, "checkpoint-minutes", "positive", self.checkpoint_minutes
        )


PARTS = (DataConfig, ModelConfig, OptimisationConfig, Guidance, ComputeConfig, RunConfig)
"""The dataclasses of a `TrainConfig`, in the order of its fields."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run.

    >>> TrainConfig(data=DataConfig("cifar100")).folder.name.rpartition("-")[0]
    'cifar100-blockout'
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    guidance: Guidance = field(default_factory=Guidance)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """The config whose ``flat`` these values are; what is missing has its default."""
        parts = {}
        for part, kind in zip(dataclasses.fields(cls), PARTS, strict=True):
            names = {f.name for f in dataclasses.fields(kind)}
            chosen = {k: v for k, v in values.items() if k in names}
            for name in ("cache", "run", "init_from"):
                if isinstance(chosen.get(name), str):
                    chosen[name] = Path(chosen[name])
            parts[part.name] = kind(**chosen)
        return cls(**parts)

    def flat(self) -> dict[str, Any]:
        """All values by flag, JSON-able: what ``--config`` reads."""
        values: dict[str, Any] = {}
        for part in dataclasses.fields(self):
            values |= dataclasses.asdict(getattr(self, part.name))
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}

    def identity(self) -> dict[str, Any]:
        """The values that decide the result, without where it is written and on how much."""
        values = self.flat()
        free = {f.name for f in dataclasses.fields(RunConfig)} - {"init_from"}
        return {k: v for k, v in values.items() if k not in free | {"cache", "workers"}}

    def default_folder(self) -> Path:
        text = json.dumps(self.identity(), sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:8]
        data = Path(self.data.data.rstrip("/")).name or "data"
        return Path("runs") / f"{data}-{self.model.method}-{short}"

    @property
    def folder(self) -> Path:
        return Path(self.run.run) if self.run.run else self.default_folder()

    @property
    def paper(self) -> bool:
        """Whether memberships learn by the paper's rule alone."""
        if self.optimisation.paper is not None:
            return self.optimisation.paper
        return in_paper(self.data.data)

    @property
    def epochs(self) -> int:
        return self.optimisation.epochs or (EPOCHS_SHAPES if self._on_shapes else EPOCHS)

    @property
    def batch_size(self) -> int:
        default = BATCH_SIZE_SHAPES if self._on_shapes else BATCH_SIZE
        return self.optimisation.batch_size or default

    @property
    def _on_shapes(self) -> bool:
        """A small set that a couple of minutes should suffice for."""
        return self.data.data == "shapes"

    @property
    def peak_rate(self) -> float:
        if self.optimisation.lr is not None:
            return self.optimisation.lr
        own = self.model.trunk in (*OWN_TRUNKS, "auto") or self.model.freeze_trunk
        return PEAK_RATE if own else PEAK_RATE_PRETRAINED


def _require(holds: bool, flag: str, expected: str, got: object) -> None:
    if not holds:
        raise ValueError(f"--{flag} must be {expected}, got {got}")
