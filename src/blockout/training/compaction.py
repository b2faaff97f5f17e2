"""The compact network of a finished run: choosing the threshold, fine-tuning, measuring, saving."""

import copy
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockout.compact import connected_weights, in_turns, multiply_adds, notes, to_branches
from blockout.convert import to_dense
from blockout.data import ImageData, Split
from blockout.layers import BlockoutLayer, memberships_of
from blockout.models import ImageClassifier
from blockout.training import files
from blockout.training.config import TrainConfig
from blockout.training.evaluation import evaluate
from blockout.training.files import RunError
from blockout.training.finish import TrainedModel, read_trained

WEIGHTS, ABOUT = "compact.safetensors", "compact.json"
THRESHOLDS = 16
"""Thresholds that ``--max-loss`` tries, evenly among the memberships there are."""
FINE_TUNING_RATE = 0.1
"""The first learning rate of fine-tuning, as a share of training's peak; it falls to zero."""


@dataclass(frozen=True)
class Compaction:
    """What a run's network was before and has become."""

    threshold: float
    multiply_adds: tuple[int, int]
    """Of the head for one image: dense, compact."""
    milliseconds: tuple[float, float]
    """Of the head for a batch, in turns on this machine: dense, compact."""
    batch_size: int
    holdout: tuple[float, float] | None
    """Accuracy in per cent: as trained, compact."""
    test: tuple[float, float]
    fine_tuned: int
    """Epochs."""
    notes: dict[str, str]


def compact_run(
    folder: Path,
    trained: TrainedModel,
    config: TrainConfig,
    data: ImageData,
    threshold: float,
    *,
    fine_tune: int = 0,
    batch_size: int = 256,
    say: Callable[[str], object] = print,
) -> Compaction:
    """Makes the network of a run compact, tests it and writes it beside the run."""
    model = trained.model
    small = compact_classifier(model, threshold, batch_size)
    if fine_tune:
        _fine_tune(small, data, config, fine_tune, say)
    features = torch.randn(batch_size, _features(model))
    dense = to_dense(model.head).eval()
    splits = {"holdout": data.holdout, "test": data.test}
    both = {
        name: (evaluate(model, split).accuracy, evaluate(small, split).accuracy)
        for name, split in splits.items()
        if len(split)
    }
    done = Compaction(
        threshold,
        (multiply_adds(dense, features[:1]), multiply_adds(small.head, features[:1])),
        milliseconds(dense, small.head, features),
        batch_size,
        both.get("holdout"),
        both["test"],
        fine_tune,
        notes(small.head),
    )
    files.write_tensors(folder / WEIGHTS, small.state_dict())
    about = files.read_json(folder / files.MODEL)
    about |= {"model": small.describe(), "compaction": asdict(done)}
    files.write_json(folder / ABOUT, about)
    return done


def compact_classifier(
    model: ImageClassifier, threshold: float, batch_size: int
) -> ImageClassifier:
    """The classifier with its head in branches; the trunk as it was."""
    if not any(isinstance(module, BlockoutLayer) for module in model.head.modules()):
        raise RunError(
            "this run has no memberships to compact: it was trained with another --method than "
            "blockout"
        )
    small = copy.deepcopy(model)
    small.head = to_branches(model.head, threshold, batch_size=batch_size).eval()
    return small.eval()


def load_compact(folder: Path, trunk: nn.Module | None = None) -> TrainedModel:
    """The compact network that ``blockout compact`` left in a run folder; nothing is unpickled."""
    folder = Path(folder)
    if not (folder / ABOUT).exists():
        raise RunError(f"there is no compact network in {folder}; `blockout compact` makes it")
    return read_trained(folder / ABOUT, folder / WEIGHTS, trunk)


def threshold_for_share(model: ImageClassifier, keep: float) -> float:
    """The lowest threshold at which the head needs at most this share of its multiply-adds.

    Needed are those of connected nodes; blocks may carry out a few more where that is faster.
    """
    candidates = _levels(model)
    if _needed_share(model, candidates[-1]) > keep:
        raise RunError(
            f"--keep {keep:g} cannot be reached: at the highest membership that occurs, "
            f"{candidates[-1]:.3g}, {_needed_share(model, candidates[-1]):.2f} of the head's "
            "multiply-adds are left; train with a smaller --budget"
        )
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        if _needed_share(model, candidates[middle]) <= keep:
            high = middle
        else:
            low = middle + 1
    return candidates[high]


@torch.no_grad()
def threshold_for_loss(model: ImageClassifier, holdout: Split, points: float) -> float:
    """The threshold with fewest multiply-adds that loses at most so many points on the hold-out."""
    if not len(holdout):
        raise RunError(
            "--max-loss needs a hold-out, and this run was trained without (--holdout 0)"
        )
    features, labels = _features_of(model, holdout)
    before = _accuracy(model.head, features, labels)
    levels = _levels(model)
    chosen = {levels[round(i * (len(levels) - 1) / (THRESHOLDS - 1))] for i in range(THRESHOLDS)}
    best, fewest = 0.0, 1.0
    for threshold in sorted(chosen):
        small = to_branches(model.head, threshold, measure=False).eval()
        if before - _accuracy(small, features, labels) <= points:
            share = _needed_share(model, threshold)
            best, fewest = (threshold, share) if share < fewest else (best, fewest)
    return best


def _levels(model: ImageClassifier) -> list[float]:
    """All memberships of the head, rounded, ascending: between two of them nothing changes."""
    p = torch.cat([m.probabilities.detach().flatten() for m in memberships_of(model.head).values()])
    return sorted({math.floor(v * 1000) / 1000 for v in p.tolist()})


def _needed_share(model: ImageClassifier, threshold: float) -> float:
    return connected_weights(model.head, threshold) / connected_weights(model.head, 0.0)


def _features(model: ImageClassifier) -> int:
    return model.describe()["head"]["features"]


def _features_of(model: ImageClassifier, split: Split) -> tuple[Tensor, Tensor]:
    """What the head sees of every image, so that many heads can be tried on it."""
    batches = [(model.features(x), y) for x, y in split.batches(500, train=False)]
    return torch.cat([f for f, _ in batches]), torch.cat([y for _, y in batches])


def _accuracy(head: nn.Module, features: Tensor, labels: Tensor) -> float:
    return 100 * (head(features).argmax(1) == labels).double().mean().item()


def _fine_tune(
    model: ImageClassifier,
    data: ImageData,
    config: TrainConfig,
    epochs: int,
    say: Callable[[str], object],
) -> None:
    """Some epochs of SGD along half a cosine; connections that are gone stay away."""
    o, batch_size = config.optimisation, config.batch_size
    rate = FINE_TUNING_RATE * config.peak_rate
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(
        learning, rate, momentum=o.momentum, weight_decay=o.weight_decay, nesterov=o.momentum > 0
    )
    steps = epochs * data.train.batch_count(batch_size, train=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(epochs):
        model.train()
        total, began = 0.0, time.perf_counter()
        for x, y in data.train.batches(batch_size, train=True, seed=o.seed, epoch=epoch):
            loss = F.cross_entropy(
                model(x), y, data.class_weights, label_smoothing=o.label_smoothing
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(y)
        seconds = time.perf_counter() - began
        say(
            f"fine-tuning {epoch + 1}/{epochs}: loss {total / len(data.train):.3f}, {seconds:.0f} s"
        )
    model.eval()


@torch.no_grad()
def milliseconds(dense: nn.Module, small: nn.Module, x: Tensor) -> tuple[float, float]:
    """Median time of both, in turns."""
    runs = (lambda: dense(x), lambda: small(x))
    taken = in_turns(runs, rounds=(21, 21), seconds=0.0)
    return 1e3 * statistics.median(taken[0]), 1e3 * statistics.median(taken[1])
