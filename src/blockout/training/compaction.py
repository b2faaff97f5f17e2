"""The compact network of a finished run: choosing the threshold, fine-tuning, measuring, saving."""

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
CURVE = "compaction.json"
THRESHOLDS = 16
"""Thresholds that ``--max-loss`` tries, evenly among the memberships there are."""
CURVE_THRESHOLDS = 8
"""Thresholds of a ``curve``: each is timed."""
USUAL = 0.5
"""The threshold where none is given; ``curve`` tries it among the others."""
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
    best, fewest = 0.0, 1.0
    for tried in _tries(model, features, labels, THRESHOLDS, measure=False):
        if before - tried.accuracy <= points and tried.needed < fewest:
            best, fewest = tried.threshold, tried.needed
    return best


@dataclass(frozen=True)
class CompactionPoint:
    """A compact head at one threshold beside the dense head, which computes everything."""

    threshold: float
    needed: float
    """Share of the multiply-adds that lie between connected nodes."""
    carried_out: float
    """Share that the compact head carries out: more where larger blocks are faster."""
    dense_milliseconds: float
    """Of the dense head for a batch, in turns with the compact one."""
    compact_milliseconds: float
    accuracy: float
    """In per cent."""


@torch.no_grad()
def curve(model: ImageClassifier, split: Split, batch_size: int = 256) -> list[CompactionPoint]:
    """What accuracy and time become as fewer connections stay; the first point keeps all.

    Thresholds lie evenly among the memberships there are: two where all P are zero or one.
    """
    features, labels = _features_of(model, split)
    dense = to_dense(model.head).eval()
    batch = torch.randn(batch_size, features.shape[1])
    whole = multiply_adds(dense, batch[:1])
    points = []
    for tried in _tries(model, features, labels, CURVE_THRESHOLDS, batch_size=batch_size):
        carried_out = multiply_adds(tried.head, batch[:1]) / whole
        times = milliseconds(dense, tried.head, batch)
        points.append(
            CompactionPoint(tried.threshold, tried.needed, carried_out, *times, tried.accuracy)
        )
    return points


def write_curve(folder: Path, points: list[CompactionPoint], **about: Any) -> None:
    """Into the folder of a run, with what else is to be known ``about`` it."""
    files.write_json(folder / CURVE, about | {"points": [asdict(point) for point in points]})


def read_curve(folder: Path) -> tuple[list[CompactionPoint], dict[str, Any]] | None:
    """What ``write_curve`` has written there, or None; without points where there are none."""
    path = folder / CURVE
    if not path.exists():
        return None
    about = files.read_json(path)
    try:
        return [CompactionPoint(**point) for point in about.pop("points")], about
    except (AttributeError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({type(error).__name__}: {error})") from error


class _Try(NamedTuple):
    threshold: float
    head: nn.Module
    needed: float
    accuracy: float


def _tries(
    model: ImageClassifier,
    features: Tensor,
    labels: Tensor,
    most: int,
    *,
    measure: bool = True,
    batch_size: int = 256,
) -> Iterator[_Try]:
    """Compact heads at ``most`` thresholds or fewer, from the lowest up."""
    for threshold in _spread(_levels(model), most):
        head = to_branches(model.head, threshold, measure=measure, batch_size=batch_size).eval()
        needed = _needed_share(model, threshold)
        yield _Try(threshold, head, needed, _accuracy(head, features, labels))


def _spread(levels: list[float], most: int) -> list[float]:
    """Half of them evenly among the levels below the usual threshold, half from there up.

    The usual threshold stands for the level that cuts where it does.

    >>> _spread([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8], 4)
    [0.1, 0.3, 0.5, 0.8]
    >>> _spread([0.0, 1.0], 8)
    [0.0, 0.5]
    """
    half = most // 2
    below = [level for level in levels if level < USUAL]
    above = [USUAL, *levels[len(below) + 1 :]] if len(below) < len(levels) else []
    lower = {i * len(below) // half for i in range(half)} if below else set()
    upper = {round(i * (len(above) - 1) / (half - 1)) for i in range(half)} if above else set()
    return [below[i] for i in sorted(lower)] + [above[i] for i in sorted(upper)]


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
    """Median time of both, in turns; of fewer turns where each takes long."""
    runs = (lambda: dense(x), lambda: small(x))
    taken = in_turns(runs, rounds=(7, 101), seconds=2.0)
    return 1e3 * statistics.median(taken[0]), 1e3 * statistics.median(taken[1])
