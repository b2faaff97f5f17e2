"""Parts of a training config: how it learns, where it computes, where results go.

Each field's docstring is its --help.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from blockout.optimisation import MEMBERSHIP_SCALE


@dataclass(frozen=True)
class OptimisationConfig:
    """How long and how fast it learns: SGD with Nesterov momentum, one cycle of the rate."""

    epochs: int | None = None
    """Passes over the training images. Default: by their number; 30 for a head on the features of
    2,500 photographs, 10 on CIFAR, 5 for shapes."""
    steps: int | None = None
    """Number of steps instead of epochs."""
    batch_size: int | None = None
    """Images of one step, over all processes together. Default: by the number of images, 32 to
    256."""
    lr: float | None = None
    """Peak learning rate. Default: for a head on features 0.1 with 64 images per step; for a new
    trunk 0.4 with 256, for a tuned one a twentieth of that. It is proportional to the batch."""
    weight_decay: float = 1e-4
    """Weight decay of weights; biases, normalisations and memberships have none."""
    momentum: float = 0.9
    """Nesterov momentum."""
    membership_scale: float = MEMBERSHIP_SCALE
    """How many times faster than the weights the membership logits learn."""
    warmup: float = 0.2
    """Share of the steps in which the rate rises to its peak; then it falls."""
    decay: Literal["cosine", "exponential"] = "cosine"
    """How the rate falls: along a cosine to zero, or by the same factor in every step to a
    thousandth of its peak."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights that is evaluated and saved in place of
    the weights themselves, for example 0.999; 0 for none."""
    accumulate: int = 1
    """Divide each batch into so many parts that are computed one after another."""
    recalibrate: bool = True
    """Before evaluation, measure the statistics of batch normalisation again under the expected
    weights that inference uses."""
    paper: bool | None = None
    """The paper's rule: memberships learn from the loss by Eq. 9 alone. Otherwise they are guided:
    towards few clusters per node, with similar classes together. Default:
    true on the paper's data sets (cifar10, cifar100, imagenet), false on others."""
    affinity_from: Literal["predictions", "groups"] = "predictions"
    """Which classes are similar: those that the network confuses, or those of the same group in the
    data (superclasses, nested folders)."""
    trunk_follows: Literal["auto", "linear", "head"] = "auto"
    """What a trunk that is not frozen learns from, if a linear classifier stands beside the head:
    from that alone, or from all of the head. auto: linear, so that the other layers cost the trunk
    nothing."""
    finetune: int = 0
    """After the head has been trained on a frozen trunk, train the last so many stages of the trunk
    with it; --finetune alone means 3. The result is a run of its own, RUN-finetuned, and is what it
    started from where the hold-out says that this was better. A head that is trained already is not
    trained again. 0: none."""
    finetune_epochs: int = 10
    """Passes over the training images in fine-tuning."""
    finetune_lr: float = 0.01
    """Peak learning rate in fine-tuning, which takes 32 images per step."""
    seed: int = 0
    """Decides initial weights, draws, order and augmentation."""

    def __post_init__(self) -> None:
        _require(
            self, "at least 1", lambda n: n >= 1, "epochs", "batch_size", "accumulate", "steps"
        )
        if self.steps is not None and self.epochs is not None:
            both = f"--steps {self.steps} and --epochs {self.epochs}"
            raise ValueError(f"--steps must be given without --epochs, got {both}")
        _require(self, "at least 1", lambda n: n >= 1, "finetune_epochs")
        _require(self, "positive", lambda x: x > 0, "lr", "membership_scale", "finetune_lr")
        _require(self, "at least 0", lambda x: x >= 0, "weight_decay", "finetune")
        _require(self, "at least 0 and below 2**63", lambda n: 0 <= n < 2**63, "seed")
        below_1 = "momentum", "label_smoothing", "ema"
        _require(self, "at least 0 and below 1", lambda x: 0 <= x < 1, *below_1)
        _require(self, "between 0 and 1", lambda x: 0 < x < 1, "warmup")
        _require(self, "positive (Nesterov)", lambda x: x > 0, "momentum")
        whole = f"a divisor of --batch-size {self.batch_size}"
        _require(self, whole, lambda n: (self.batch_size or 0) % n == 0, "accumulate")


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
        _require(self, "1 to 65536", lambda n: 1 <= n <= 2**16, "num_nodes")


@dataclass(frozen=True)
class RunConfig:
    """Where results go."""

    run: Path | None = None
    """Folder of the run. Default: runs/ and a name made of data, method and config."""
    restart: bool = False
    """Start over: what the folder holds of this run is deleted first."""
    init_from: Path | None = None
    """Start from the final weights of this earlier run; what does not fit starts fresh."""
    log_every: int | None = None
    """Steps between two entries of metrics and of the distribution of P. Default: 50, or a
    fortieth of the steps in short training runs."""
    checkpoint_minutes: float = 5.0
    """Minutes between two checkpoints within an epoch; each epoch ends with one as well."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    wandb: str | None = None
    """Log to this Weights & Biases project too (needs wandb)."""
    mlflow: str | None = None
    """Log to this MLflow experiment too (needs mlflow)."""

    def __post_init__(self) -> None:
        _require(self, "at least 1", lambda n: n >= 1, "log_every")
        _require(self, "positive", lambda x: x > 0, "checkpoint_minutes")


def _require(config: Any, expected: str, holds: Callable[[Any], bool], *names: str) -> None:
    """Raises ValueError for the first of these fields that does not hold; None is left open."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise ValueError(f"--{name.replace('_', '-')} must be {expected}, got {value}")
