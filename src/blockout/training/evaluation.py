"""Accuracy and predictions of a model in inference mode, in one process or several."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from blockout.data import Split
from blockout.runs import RunError
from blockout.training.processes import Processes

TOP = 5
LARGEST_BATCH = 500
RECALIBRATION_BATCHES = 20
NORMALISATIONS = nn.modules.batchnorm._BatchNorm
ALONE = Processes()


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on one split."""

    accuracy: float
    """Percentage of images whose most probable class is correct."""
    top5: float
    """Percentage of images whose class is among the five most probable."""
    loss: float
    classes: Int64[Tensor, "n top"]
    """The most probable classes of every image, best first."""
    probabilities: Float[Tensor, "n top"]

    def require_finite(self) -> Self:
        """Itself; a RunError where the network's outputs are no numbers to be right or wrong."""
        if not math.isfinite(self.loss):
            raise RunError(
                "the network's outputs are not finite (nan or infinite): its training diverged, or "
                "its files were changed; nothing was written"
            )
        return self

    def numbers(self) -> dict[str, float]:
        return {"accuracy": self.accuracy, "top5": self.top5, "loss": self.loss}


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Split,
    *,
    batch_size: int = LARGEST_BATCH,
    processes: Processes = ALONE,
) -> Evaluation:
    """Evaluates a model on a whole split in eval mode, then restores its mode.

    If there are several processes, each takes its part of every batch, and all get the result.
    """
    rows, dtype, device = [], _dtype(model), processes.device
    with eval_mode(model):
        for x, y in split.batches(
            batch_size, train=False, rank=processes.rank, world=processes.world
        ):
            logits = model(x.to(device, dtype)).float()
            y = y.to(device)
            loss = F.cross_entropy(logits, y, reduction="none")
            p, c = logits.softmax(1).topk(min(TOP, logits.shape[1]))
            rows.append(_gathered(torch.cat([y[:, None], loss[:, None], c, p], 1), processes).cpu())
    table = torch.cat(rows) if rows else torch.empty(0, 2 + 2 * TOP)
    y, loss, rest = table[:, 0].long(), table[:, 1], table[:, 2:]
    classes, probabilities = rest.chunk(2, 1)
    hits = classes.long() == y[:, None]
    return Evaluation(
        accuracy=100 * hits[:, :1].any(1).double().mean().item(),
        top5=100 * hits.any(1).double().mean().item(),
        loss=loss.double().mean().item(),
        classes=classes.long(),
        probabilities=probabilities,
    )


def _gathered(part: Tensor, processes: Processes) -> Tensor:
    """The rows of all processes. Short parts are padded with rows of class -1, dropped again."""
    if processes.world == 1:
        return part
    longest = int(_stacked(torch.tensor(len(part), device=part.device), processes).max())
    padded = part.new_full((longest, part.shape[1]), -1)
    padded[: len(part)] = part
    rows = _stacked(padded, processes).reshape(-1, part.shape[1])
    return rows[rows[:, 0] >= 0]


def _stacked(part: Tensor, processes: Processes) -> Tensor:
    """(world, n, ...): a sum to which each process contributes its own place."""
    places = part.new_zeros(processes.world, *part.shape)
    places[processes.rank] = part
    return processes.all_reduce(places, "sum")


def recalibrate(
    model: nn.Module,
    split: Split,
    *,
    batch_size: int,
    seed: int = 0,
    processes: Processes = ALONE,
) -> bool:
    """Measures the statistics of batch normalisation again on some batches of training images.

    If there are several processes, each measures on its own part of every batch; see
    ``average_statistics``. Returns whether there was anything to measure.
    """
    batches = split.batches(
        batch_size, train=True, seed=seed, rank=processes.rank, world=processes.world
    )
    some = zip(range(RECALIBRATION_BATCHES), batches, strict=False)
    return measure_statistics(model, (x.to(processes.device) for _, (x, _) in some))


@torch.no_grad()
def measure_statistics(model: nn.Module, inputs: Iterable[Tensor]) -> bool:
    """Sets the statistics of batch normalisation to those under the expected weights.

    During training they are averages over drawn weights, whose mean square is larger than that of
    the expected weights used for inference. Normalisations that do not learn, as in a frozen trunk,
    keep theirs. Returns whether there was anything to measure.
    """
    norms = [m for m in _tracking(model) if any(p.requires_grad for p in m.parameters())]
    if not norms:
        return False
    momenta, dtype = [m.momentum for m in norms], _dtype(model)
    with eval_mode(model):
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # a plain average over the batches
            m.train()
        for x in inputs:
            model(x.to(dtype))
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
    return True


@torch.no_grad()
def average_statistics(model: nn.Module, processes: Processes) -> None:
    """Gives all processes the same statistics: the average over the processes."""
    for m in _tracking(model) if processes.world > 1 else []:
        for statistic in (m.running_mean, m.running_var):
            if statistic is not None:
                statistic.copy_(processes.all_reduce(statistic.clone(), "mean"))


def _tracking(model: nn.Module) -> list[NORMALISATIONS]:
    return [m for m in model.modules() if isinstance(m, NORMALISATIONS) and m.track_running_stats]


def _dtype(model: nn.Module) -> torch.dtype:
    floating = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floating, torch.float32)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in the mode it was in before."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
