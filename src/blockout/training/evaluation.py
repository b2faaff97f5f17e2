"""Accuracy and predictions of a model in inference mode, alone or over several processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from blockout.data import Split

TOP = 5
LARGEST_BATCH = 500
RECALIBRATION_BATCHES = 20
NORMALISATIONS = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on one split."""

    accuracy: float
    """Share of images whose most probable class is right, in per cent."""
    top5: float
    loss: float
    classes: Int64[Tensor, "n top"]
    """The most probable classes of every image, best first."""
    probabilities: Float[Tensor, "n top"]

    def numbers(self) -> dict[str, float]:
        return {"accuracy": self.accuracy, "top5": self.top5, "loss": self.loss}


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Split,
    *,
    batch_size: int = LARGEST_BATCH,
    device: torch.device | str = "cpu",
    rank: int = 0,
    world: int = 1,
    gather: Callable[[Tensor], Tensor] | None = None,
) -> Evaluation:
    """The model in eval mode on a whole split; its mode is put back.

    With several processes each takes its part of every batch, and ``gather`` (n, ...) to
    (world, n, ...) brings the parts together, so that all know the result.
    """
    rows, dtype = [], _dtype(model)
    with eval_mode(model):
        for x, y in split.batches(batch_size, train=False, rank=rank, world=world):
            logits = model(x.to(device, dtype)).float()
            y = y.to(device)
            loss = F.cross_entropy(logits, y, reduction="none")
            p, c = logits.softmax(1).topk(min(TOP, logits.shape[1]))
            rows.append(_gathered(torch.cat([y[:, None], loss[:, None], c, p], 1), gather).cpu())
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


def _gathered(part: Tensor, gather: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Parts of unequal length are padded with rows of class -1, which are left out again."""
    if gather is None:
        return part
    longest = int(gather(torch.tensor(len(part), device=part.device)).max())
    padded = part.new_full((longest, part.shape[1]), -1)
    padded[: len(part)] = part
    rows = gather(padded).reshape(-1, part.shape[1])
    return rows[rows[:, 0] >= 0]


@torch.no_grad()
def recalibrate(
    model: nn.Module,
    split: Split,
    *,
    batch_size: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    rank: int = 0,
    world: int = 1,
) -> bool:
    """Measures batch normalisation's statistics anew on training images, with expected weights.

    In training they are averages over drawn weights, whose mean square is larger than that of the
    expected weights that inference uses. Normalisations that do not learn (a frozen trunk) keep
    theirs. With several processes each measures on its own part of every batch; see
    ``average_statistics``. Returns whether there was anything to measure.
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
        batches = split.batches(batch_size, train=True, seed=seed, rank=rank, world=world)
        for (x, _), _ in zip(batches, range(RECALIBRATION_BATCHES), strict=False):
            model(x.to(device, dtype))
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
    return True


@torch.no_grad()
def average_statistics(model: nn.Module, mean: Callable[[Tensor], Tensor]) -> None:
    """Gives all processes the same statistics; ``mean`` is a tensor's average over processes."""
    for m in _tracking(model):
        for statistic in (m.running_mean, m.running_var):
            if statistic is not None:
                statistic.copy_(mean(statistic.clone()))


def _tracking(model: nn.Module) -> list[NORMALISATIONS]:
    return [m for m in model.modules() if isinstance(m, NORMALISATIONS) and m.track_running_stats]


def _dtype(model: nn.Module) -> torch.dtype:
    floating = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floating, torch.float32)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; every module's own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
