"""The engine: fits any module to batches by Algorithm 1 of the paper.

It needs no run folder, prints nothing and handles no signals. ``blockout train`` is this engine
with recording around it (``training.recording``).

Chance is a function of (seed, step, process): before each step, torch's generator and those of the
memberships are seeded from it. So an engine that continues from its ``state_dict`` does on a CPU,
bit for bit, what an engine that never stopped would do.

The risk of a step is the mean over the joined batch: the examples of all processes and all
accumulated parts, which all see the same drawn architecture. Only batch normalisation can tell how
a batch was divided, because it takes its statistics from one part in one process.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from blockout.dropconnect import DropConnectLinear
from blockout.guidance import Guidance, Guide, make_certain
from blockout.layers import memberships_of
from blockout.optimisation import MEMBERSHIP_SCALE, parameter_groups
from blockout.sampling import seed_draws
from blockout.training.processes import Processes

Batches = Iterable[tuple[Tensor, Tensor]]
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
Decay = Literal["cosine", "exponential"]
START, END = 1 / 25, 1e-3
"""Of the peak: the learning rate of the first step, and of the last one of an exponential decay."""


@dataclass(frozen=True)
class Recipe:
    """How to learn: SGD with Nesterov momentum, and a learning rate that rises and falls."""

    steps: int
    """Length of the training run."""
    lr: float = 0.1
    """Peak learning rate."""
    weight_decay: float = 0.0
    """Weight decay of the weights; biases, normalisations and memberships have none."""
    momentum: float = 0.9
    membership_scale: float = MEMBERSHIP_SCALE
    """How many times faster than the weights the membership logits learn."""
    warmup: float = 0.2
    """Share of the steps in which the rate rises to its peak; then it falls."""
    decay: Decay = "cosine"
    """Along a cosine to zero, or by the same factor in every step to a thousandth of the peak."""
    label_smoothing: float = 0.0
    accumulate: int = 1
    """Parts into which each batch is divided and computed one after another."""
    clip: float = 0.0
    """Largest norm of the gradient of a step, which is scaled down to it; 0 for any."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights; 0 for none."""
    seed: int = 0
    own_draws: bool = False
    """Each process draws its own assignments; by default all train the same architecture."""

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.clip >= 0:
            raise ValueError(f"clip must be at least 0, got {self.clip}")
        for name in ("momentum", "warmup", "label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 0 and below 1, got {getattr(self, name)}"
                )


class Step(NamedTuple):
    """What one step did, over all processes."""

    loss: float
    """Mean over the joined batch."""
    hits: int
    """Examples whose class was predicted correctly."""
    examples: int
    """In the joined batch."""
    rate: float
    """Learning rate of the weights."""
    settles: bool
    """Whether the guide fixed the memberships in this step."""
    told: tuple[float, ...]
    """What the processes told each other: see ``Engine.step``."""


class Diverged(RuntimeError):
    """Training stopped because its numbers are no longer finite."""

    def __init__(self, what: str, step: int, rate: float) -> None:
        self.fact = f"{what} at step {step} (learning rate {rate:.4g})"
        super().__init__(f"{self.fact}; try a lower lr or membership_scale, or a longer warmup")


class Engine:
    """Fits a module step by step.

    Args:
        module: any module from inputs to logits. It learns in place, on the processes' device. If
            a part of it leaves other logits in ``led``, as ``models.Head`` may, it learns from
            their loss too.
        recipe: how to learn.
        guide: makes the ``Guide`` of the module's memberships, once the module is on its device;
            without one they learn from the loss alone, as in the paper.
        class_weights: the weight of each class in the loss. Scale them to a mean of 1 over the
            training examples: the loss is divided by the number of examples.
        processes: where to compute; by default this process on the CPU.

    Attributes:
        module: the module itself.
        done: how many steps have been done.
        averaged: the moving average of the weights, if the recipe asks for one.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        *,
        guide: Callable[[nn.Module], Guide | None] | None = None,
        class_weights: Float[Tensor, " classes"] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.module, self.recipe, self.done = module, recipe, 0
        self.processes = processes or Processes()
        self._model = self.processes.wrap_module(module)
        self.averaged = None
        if recipe.ema:
            average = get_ema_multi_avg_fn(recipe.ema)
            self.averaged = AveragedModel(module, self.processes.device, multi_avg_fn=average)
        groups = parameter_groups(
            module, recipe.lr, recipe.weight_decay, membership_scale=recipe.membership_scale
        )
        self.optimizer = torch.optim.SGD(
            groups, momentum=recipe.momentum, nesterov=recipe.momentum > 0
        )
        self.optimizer.zero_grad()
        self.schedule = rate_schedule(self.optimizer, recipe.steps, recipe.warmup, recipe.decay)
        self._stepper = self.processes.wrap_optimizer(self.optimizer)
        self.guide = None if guide is None else guide(module)
        self._class_weights = (
            None if class_weights is None else class_weights.to(self.processes.device)
        )
        self._masks_weights = any(isinstance(m, DropConnectLinear) for m in module.modules())

    @property
    def result(self) -> nn.Module:
        """The module that training is for: the moving average if there is one."""
        return self.module if self.averaged is None else self.averaged.module

    @property
    def predictor(self) -> nn.Module:
        """What to call for predictions of ``result``, in the precision of the processes."""
        return self._model if self.averaged is None else self.averaged.module

    @property
    def rate(self) -> float:
        """The learning rate of the weights in the next step."""
        return self.optimizer.param_groups[0]["lr"]

    def train(self) -> None:
        """Puts the module in training mode."""
        self._model.train()

    def step(
        self,
        x: Tensor,
        y: Int64[Tensor, " n"],
        *,
        examples: int | None = None,
        tell: Callable[[], Sequence[float]] = tuple,
    ) -> Step:
        """One iteration of Algorithm 1, on this process's part of a batch.

        Args:
            x, y: inputs and their classes.
            examples: size of the joined batch; by default every process has as many as this one.
            tell: called after the backward pass for numbers to share with the other processes;
                their means come back in ``Step.told``. They travel with the loss, so each step
                exchanges and waits only once besides the gradients.
        """
        processes, rate = self.processes, self.rate
        examples = examples or len(y) * processes.world
        x = x.to(processes.device, non_blocking=True)
        y = y.to(processes.device, non_blocking=True)
        accumulate = self.recipe.accumulate
        parts = list(zip(x.chunk(accumulate), y.chunk(accumulate), strict=True))
        loss: Any = 0.0
        hits: Any = 0
        for part, (x_part, y_part) in enumerate(parts):
            with processes.no_backward_sync(self._model, enabled=part < len(parts) - 1):
                # Forward: C_j ~ B(1, P_j) and W_j = W~_j * C_j C_{j-1}^T / k happen inside the
                # layers; then predictions and empirical risk.
                self._seed(part)
                logits = self._logits(x_part)
                risk = self._risk(logits, y_part, examples)
                # Backward: gradients by Eqs. 8 and 9.
                processes.backward(risk + self._lead_risk(y_part, examples))
            loss = loss + risk.detach()
            hits = hits + (logits.detach().argmax(1) == y_part).sum()
        value, correct, *told = self._joined(loss, hits, tell())
        if not math.isfinite(value):  # stop before it spoils the weights
            raise Diverged(f"the loss is {value}", self.done, rate)
        # Update W~_j and P_j, each at its own rate; both rates follow the schedule.
        self._update(rate)
        self._stepper.zero_grad()
        self.schedule.step()
        # Beyond the paper: guide the memberships, average the weights.
        settles = self.guide is not None and self._guide_memberships(self.guide, y)
        if self.averaged is not None:
            self._average()
        self.done += 1
        return Step(value, round(correct * processes.world), examples, rate, settles, tuple(told))

    def weights(self) -> dict[str, Tensor]:
        """The whole state_dict of ``result`` on the CPU; empty on other processes if sharded."""
        state: Any = get_model_state_dict(self.result, options=WHOLE)
        return state

    def state_dict(self) -> dict[str, Any]:
        """Everything ``load_state_dict`` needs, gathered by all processes; whole on the first."""
        weights, moments = get_state_dict(self.module, self.optimizer, options=WHOLE)
        return {
            "done": self.done,
            "weights": weights,
            "optimizer": moments,
            "schedule": self.schedule.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state_dict(),
            "guide": None if self.guide is None else self.guide.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where another engine with the same module and recipe stood."""
        whole = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.module, state["weights"], options=whole)
        # Parameters that never had a gradient have no state in the optimiser.
        loose = StateDictOptions(full_state_dict=True, strict=False)
        set_optimizer_state_dict(self.module, self.optimizer, state["optimizer"], options=loose)
        self.schedule.load_state_dict(state["schedule"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])
        if self.guide is not None:
            self.guide.load_state_dict(state["guide"])
        self.done = state["done"]

    def close(self) -> None:
        """Removes what the guide attached to the module."""
        if self.guide is not None:
            self.guide.close()

    # --- parts of a step ------------------------------------------------------------------------

    def _seed(self, part: int) -> None:
        """Seeds all chance in one part of this step.

        Draws are the same for every part and process. Dropout differs for each. DropConnect's masks
        are draws but come from the same generator as Dropout, so both are the same everywhere.
        """
        seed, rank = self.recipe.seed, self.processes.rank
        own = rank if self.recipe.own_draws else 0
        place = (own, 0) if self._masks_weights else (rank, part)
        torch.manual_seed(mixed_seed(seed, self.done, *place))
        seed_draws(self.module, mixed_seed(seed, self.done, own, 1 << 32))

    def _logits(self, x: Tensor) -> Tensor:
        try:
            with self.processes.autocast():
                return self._model(x)
        except ValueError:  # Memberships refuse to draw from logits that are not finite
            for name, memberships in memberships_of(self.module).items():
                if not whole_tensor(memberships.logits).isfinite().all():
                    what = f"the logits of {name} are not finite"
                    raise Diverged(what, self.done, self.rate) from None
            raise

    def _risk(self, logits: Tensor, y: Tensor, examples: int) -> Tensor:
        """This part's share of the mean over the joined batch, times the number of processes,
        because gradients are averaged over the processes."""
        weights = self._class_weights
        total = F.cross_entropy(
            logits,
            y,
            None if weights is None else weights.to(logits.dtype),
            reduction="sum",
            label_smoothing=self.recipe.label_smoothing,
        )
        return total * (self.processes.world / examples)

    def _lead_risk(self, y: Tensor, examples: int) -> Tensor | float:
        """That of other logits that parts of the module have left, if any."""
        led = [part.__dict__.pop("led") for part in self.module.modules() if "led" in vars(part)]
        return sum((self._risk(logits, y, examples) for logits in led), 0.0)

    def _joined(self, loss: Tensor, hits: Tensor, told: Sequence[float]) -> list[float]:
        """Loss, hits and what was told: means over the processes, in one exchange."""
        seen = torch.stack([loss, hits.to(loss)])
        seen = torch.cat([seen, torch.tensor(told, dtype=loss.dtype).to(loss.device)])
        return self.processes.all_reduce(seen, "mean").tolist()

    def _update(self, rate: float) -> None:
        if self.recipe.clip:
            self.processes.clip_gradients(self._model, self._stepper, self.recipe.clip)
        try:
            self._stepper.step()
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            what = "a learning rate or weight decay is too large for the weights' precision"
            raise Diverged(what, self.done, rate) from error

    def _average(self) -> None:
        """Takes the weights into their average; where the guide has ended drawing, it ends in the
        average too, because weights before and after that have different scales."""
        assert self.averaged is not None
        if self.guide is not None and self.done + 1 == self.recipe.steps:
            make_certain(self.averaged.module)
        else:
            self.averaged.update_parameters(self.module)

    def _guide_memberships(self, guide: Guide, y: Tensor) -> bool:
        before = guide.settled
        guide.step(y)
        if guide.settled == before:
            return False
        if self.averaged is not None:  # averaging across the jump would give neither structure
            self.averaged.module.load_state_dict(self.module.state_dict())
        return True


def fit(
    module: nn.Module,
    batches: Batches | Callable[[int], Batches],
    *,
    steps: int,
    lr: float = 0.1,
    guide: Guidance | Callable[[nn.Module], Guide | None] | None = None,
    class_weights: Float[Tensor, " classes"] | None = None,
    processes: Processes | None = None,
    **recipe: Any,
) -> list[float]:
    """Fits a module to batches of inputs and classes; returns the loss of every step.

    Leaves the module in eval mode, and torch's random state as it was.

    >>> from blockout import BlockoutLinear
    >>> net = BlockoutLinear(8, 3, clusters=2)
    >>> batches = [(torch.randn(16, 8), torch.randint(3, (16,))) for _ in range(4)]
    >>> losses = fit(net, batches, steps=10, lr=0.1, guide=Guidance(affinity=False), seed=0)
    >>> len(losses)
    10

    Args:
        module: any module from inputs to logits; it learns in place.
        batches: pairs of inputs and classes that can be iterated again and again, such as a list or
            a ``DataLoader``; or a function from the epoch (0, 1, ...) to the batches of that epoch.
        steps: how many batches to learn from, over as many epochs as that takes.
        lr: peak learning rate.
        guide: what guided memberships aim at, or a function that makes their ``Guide``; without it
            they learn from the loss alone, as in the paper.
        class_weights, processes: as in ``Engine``.
        recipe: other fields of ``Recipe``: ``weight_decay``, ``seed``, ``ema``, ... With ``ema``,
            the module ends with the averaged weights.
    """
    plan = Recipe(steps, lr, **recipe)
    make = partial(Guide, steps=steps, guidance=guide) if isinstance(guide, Guidance) else guide
    with kept_random_state(processes or Processes()):
        torch.manual_seed(plan.seed)
        engine = Engine(module, plan, guide=make, class_weights=class_weights, processes=processes)
        engine.train()
        try:
            losses = [engine.step(x, y).loss for x, y in itertools.islice(_endless(batches), steps)]
        finally:
            engine.close()
    if engine.averaged is not None:
        module.load_state_dict(engine.result.state_dict())
    module.eval()
    return losses


def _endless(batches: Batches | Callable[[int], Batches]) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        nothing = True
        for batch in batches(epoch) if callable(batches) else batches:
            nothing = False
            yield batch
        if nothing:
            raise ValueError(
                f"there are no batches in epoch {epoch}; pass something that can be iterated more "
                "than once, such as a list or a DataLoader, or a function of the epoch"
            )


@contextmanager
def kept_random_state(processes: Processes) -> Iterator[None]:
    """torch's random state is afterwards what it was before."""
    devices = [processes.device] if processes.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def rate_schedule(
    optimizer: torch.optim.Optimizer, steps: int, warmup: float, decay: Decay = "cosine"
) -> LRScheduler:
    """Each group's rate rises along a cosine from 1/25 to what it is now, then falls.

    The rise takes at least one step, which also keeps ``OneCycleLR`` from dividing by zero. Along a
    cosine, zero comes one step after the last, so the last step still learns.
    """
    rise = max(warmup * steps, 1.0)
    if decay == "exponential":

        def share(step: int) -> float:
            if step < rise:
                return START + (1 - START) * (1 - math.cos(math.pi * step / rise)) / 2
            return END ** ((step - rise) / max(steps - rise, 1.0))

        return LambdaLR(optimizer, share)
    return OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        total_steps=steps + 1,
        pct_start=(rise + 1) / (steps + 1),  # the peak comes at step pct_start * total_steps - 1
        div_factor=1 / START,
        final_div_factor=math.inf,
        cycle_momentum=False,
    )


def mixed_seed(*numbers: int) -> int:
    """A seed made of several numbers; neighbouring numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def whole_tensor(tensor: Tensor) -> Tensor:
    """The tensor, gathered if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
