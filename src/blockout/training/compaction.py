"""Compacts the network of a finished run: choose a threshold, fine-tune, measure, save."""

import contextlib
import copy
import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from blockout.compact import connected_weights, in_turns, multiply_adds, notes, to_branches
from blockout.convert import to_dense
from blockout.data import DataConfig, ImageData, Split
from blockout.data.features import FeatureSplit
from blockout.layers import BlockoutLayer, memberships_of
from blockout.models import ImageClassifier
from blockout.runs import Run, RunError, TrainConfig
from blockout.runs import folder as files
from blockout.runs.documents import Compaction, CompactionCurve, CompactionPoint, as_json
from blockout.runs.environment import environment
from blockout.terminal import printable
from blockout.training.assembly import recipe_of
from blockout.training.engine import Engine, kept_random_state
from blockout.training.evaluation import evaluate
from blockout.training.features import with_features, worth_features
from blockout.training.whole import whole_network

BATCH_SIZE = 256
"""Images at a time for which a network is made fast unless told otherwise."""
THRESHOLDS = 16
"""How many thresholds ``--max-loss`` tries, spread over the memberships that occur."""
CURVE_THRESHOLDS = 8
"""How many thresholds a ``curve`` has; each is timed."""
USUAL = 0.5
"""The default threshold; every ``curve`` includes it."""
FINE_TUNING_RATE = 0.1
"""Peak learning rate of fine-tuning, as a share of the run's own; it falls to zero."""


def compact_run(
    run: Run,
    model: ImageClassifier,
    data: ImageData,
    threshold: float,
    *,
    fine_tune: int = 0,
    batch_size: int = BATCH_SIZE,
    say: Callable[[str], object] = print,
) -> Compaction:
    """Compacts a network of a run, tests it and writes it into the run folder.

    ``data`` may be images, or what ``seen_by`` makes of them.
    """
    assert run.description is not None
    small = compact_classifier(model, threshold, batch_size)
    if fine_tune:
        _fine_tune(small, data, run.config, fine_tune, say)
    features = torch.randn(batch_size, model.describe()["head"]["features"])
    dense = to_dense(model.head).eval()
    splits = {"holdout": data.holdout, "test": data.test}
    both = {
        name: (_accuracy_of(model, split), _accuracy_of(small, split))
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
        whole_network(model, small, data.image_size),
    )
    about = msgspec.structs.replace(run.description, model=small.describe(), compaction=done)
    with run.held("writing its compact network"):
        (run.folder / files.COMPACT_MODEL).unlink(missing_ok=True)  # it describes other weights
        files.write_tensors(run.folder / files.COMPACT_WEIGHTS, small.state_dict())
        files.write_json(run.folder / files.COMPACT_MODEL, as_json(about))
    return done


def seen_by(
    model: ImageClassifier,
    images: ImageData,
    config: DataConfig,
    say: Callable[[str], object],
    parts: Sequence[str] = ("holdout", "test"),
) -> ImageData:
    """The data with features in place of images, where that gives the same results sooner.

    Args:
        model, images: of a run.
        config: where features are kept, and how many views of a training image there are.
        say: tells the user how far it has come.
        parts: the splits that are needed; "train" for fine-tuning, which changes the features of a
            trunk that is not frozen, so that one sees the images.
    """
    tunes = "train" in parts
    if not worth_features(model, images.test) or (tunes and not model.freeze_trunk):
        return images
    if not config.views:
        parts = [name for name in parts if name != "train"]
    return with_features(
        images,
        model,
        views=config.views,
        cache=config.cache_folder,
        workers=config.decoders,
        say=say,
        parts=parts,
    )


def compact_classifier(
    model: ImageClassifier, threshold: float, batch_size: int
) -> ImageClassifier:
    """A copy of the classifier with its head in branches; the trunk is unchanged."""
    if not any(isinstance(module, BlockoutLayer) for module in model.head.modules()):
        raise RunError("this run has no memberships to compact: only --method blockout has them")
    small = copy.deepcopy(model)
    small.head = to_branches(model.head, threshold, batch_size=batch_size).eval()
    return small.eval()


def threshold_for_share(model: ImageClassifier, keep: float) -> float:
    """The lowest threshold at which the head needs at most this share of its multiply-adds.

    Only multiply-adds between connected nodes are needed. The compact head may carry out a few more
    if larger blocks are faster.
    """
    levels = _levels(model)
    first = bisect_left(levels, True, key=lambda level: _needed_share(model, level) <= keep)
    if first == len(levels):
        raise RunError(
            f"--keep {keep:g} cannot be reached: even at the highest membership that occurs, "
            f"{levels[-1]:.3g}, {_needed_share(model, levels[-1]):.2f} of the head's "
            "multiply-adds are left; train with a smaller --budget"
        )
    return levels[first]


@torch.no_grad()
def threshold_for_loss(model: ImageClassifier, holdout: Split, points: float) -> float:
    """The threshold with the fewest multiply-adds that loses at most ``points`` on the hold-out."""
    if not len(holdout):
        raise RunError(
            "--max-loss needs a hold-out, and this run was trained without one (--holdout 0)"
        )
    features, labels = _features_of(model, holdout)
    before = _accuracy(model.head, features, labels)
    best, fewest = 0.0, 1.0
    for tried in _tries(model, features, labels, THRESHOLDS, measure=False):
        if before - tried.accuracy <= points and tried.needed < fewest:
            best, fewest = tried.threshold, tried.needed
    return best


@torch.no_grad()
def curve(model: ImageClassifier, split: Split, batch_size: int = 256) -> list[CompactionPoint]:
    """Accuracy and time as fewer connections are kept; the first point keeps all of them.

    The thresholds are spread over the memberships that occur: two if every P is zero or one.
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


def measure_once(run: Run, say: Callable[[str], object] = print) -> None:
    """Measures what compaction gives a finished Blockout run and keeps it in the run folder.

    Does nothing where that is there already. What stands in the way (the images are gone, say) is
    kept in its place, and tried again the next time.
    """
    if not is_to_be_measured(run):
        return
    say(f"measuring once how small and how fast {printable(run.name)} becomes ...")
    try:
        found = _measured(run)
    except Exception as error:  # data, hubs and the user's own trunks fail in many ways
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        found = CompactionCurve(reason=lines[0] if lines else type(error).__name__)
    with contextlib.suppress(RunError), run.held("measuring"):  # some cannot be written to
        files.write_json(run.folder / files.COMPACTION, as_json(found))


def is_to_be_measured(run: Run) -> bool:
    """Whether it could become smaller and nobody has measured yet what that gives."""
    if not run.finished or not run.memberships or run.whole:
        return False
    try:
        return run.compaction is None or not run.compaction.points
    except RunError:
        return True


def _measured(run: Run) -> CompactionCurve:
    """On the hold-out, which nothing was learned from; on test images where there is none."""
    images = run.images()
    if run.has_changed(images):
        raise RunError("the images of the run have changed since it was trained")
    part, name = ("holdout", "hold-out") if len(images.holdout) else ("test", "test")
    model = run.network().model
    split = getattr(seen_by(model, images, run.data_config, lambda _: None, [part]), part)
    small = compact_classifier(model, USUAL, BATCH_SIZE)
    return CompactionCurve(
        points=tuple(curve(model, split, BATCH_SIZE)),
        images=name,
        count=len(split),
        batch_size=BATCH_SIZE,
        machine=environment().machine,
        network=whole_network(model, small, images.image_size),
    )


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
    """Compact heads at up to ``most`` thresholds, from the lowest up."""
    for threshold in _spread(_levels(model), most):
        head = to_branches(model.head, threshold, measure=measure, batch_size=batch_size).eval()
        needed = _needed_share(model, threshold)
        yield _Try(threshold, head, needed, _accuracy(head, features, labels))


def _spread(levels: list[float], most: int) -> list[float]:
    """Chooses up to ``most`` levels: half of them below the usual threshold, half from there up.

    The usual threshold replaces the lowest level above it, which cuts at the same place.

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
    """The memberships of the head, rounded and sorted; only at these does a threshold matter."""
    p = torch.cat([m.probabilities.detach().flatten() for m in memberships_of(model.head).values()])
    return sorted({math.floor(v * 1000) / 1000 for v in p.tolist()})


def _needed_share(model: ImageClassifier, threshold: float) -> float:
    return connected_weights(model.head, threshold) / connected_weights(model.head, 0.0)


def _features_of(model: ImageClassifier, split: Split) -> tuple[Tensor, Tensor]:
    """The head's input and the label of every image, to try many heads on."""
    read = nn.Identity() if isinstance(split, FeatureSplit) else model.features
    batches = [(read(x), y) for x, y in split.batches(500, train=False)]
    features = torch.cat([f for f, _ in batches])
    if not features.isfinite().all():
        raise RunError("the trunk gives features that are not finite (nan or infinite)")
    return features, torch.cat([y for _, y in batches])


def _accuracy_of(model: ImageClassifier, split: Split) -> float:
    judged = model.head if isinstance(split, FeatureSplit) else model
    return evaluate(judged, split).require_finite().accuracy


def _accuracy(head: nn.Module, features: Tensor, labels: Tensor) -> float:
    return 100 * (head(features).argmax(1) == labels).double().mean().item()


def _fine_tune(
    model: ImageClassifier,
    data: ImageData,
    config: TrainConfig,
    epochs: int,
    say: Callable[[str], object],
) -> None:
    """Trains for some epochs at a rate that falls to zero; connections that are gone stay gone.

    The head alone where the data are features.
    """
    size, seed = config.batch_size, config.optimisation.seed
    recipe = replace(
        recipe_of(config, epochs * data.train.batch_count(size, train=True)),
        lr=FINE_TUNING_RATE * config.peak_rate,
        warmup=0.0,
        accumulate=1,
        ema=0.0,
    )
    learner = model.head if isinstance(data.train, FeatureSplit) else model
    engine = Engine(learner, recipe, class_weights=data.class_weights)
    engine.train()
    with kept_random_state(engine.processes):
        for epoch in range(epochs):
            began = time.perf_counter()
            batches = data.train.batches(size, train=True, seed=seed, epoch=epoch)
            loss = statistics.fmean(engine.step(x, y).loss for x, y in batches)
            seconds = time.perf_counter() - began
            say(f"fine-tuning {epoch + 1}/{epochs}: loss {loss:.3f}, {seconds:.0f} s")
    model.eval()


@torch.no_grad()
def milliseconds(dense: nn.Module, small: nn.Module, x: Tensor) -> tuple[float, float]:
    """Median times of both, measured in turns; slow networks get fewer turns."""
    runs = (lambda: dense(x), lambda: small(x))
    taken = in_turns(runs, rounds=(7, 101), seconds=2.0)
    return 1e3 * statistics.median(taken[0]), 1e3 * statistics.median(taken[1])
