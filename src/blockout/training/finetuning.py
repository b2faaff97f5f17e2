"""Fine-tuning: the last stages of a frozen trunk learn on, together with the head above them.

It is a run of its own that starts from a finished one. Batch normalisation of the trunk stays as it
is: the statistics of ImageNet say more than a batch of a few photographs. So do the memberships,
because the structure was learned already. What comes before these stages never changes, so it is
computed once, as the features of a frozen trunk are.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockout.data import DataConfig, ImageData, Split
from blockout.data.features import FeatureSplit
from blockout.layers import memberships_of
from blockout.models import (
    FirstStages,
    ImageClassifier,
    Trunk,
    build_trunk,
    last_stages,
    restored,
    stages,
)
from blockout.optimisation import NORMALISATIONS
from blockout.runs import Run
from blockout.runs import folder as files
from blockout.runs.config import TrainConfig
from blockout.runs.documents import Result, Scores, Tuning
from blockout.training.evaluation import Evaluation, evaluate
from blockout.training.features import Say, feature_splits, with_features

LARGEST = 2 << 30
"""Bytes of what comes before the stages that learn, of all views; more is not kept."""
TRYING = 0.1
"""Seconds for timing steps before the first: cheap ones more often."""


def phases(config: TrainConfig, images: ImageData) -> tuple[TrainConfig, ...]:
    """The runs that a config asks for, resolved: with ``finetune`` the one that it starts from too.

    ``restart`` starts fine-tuning over, and the run it starts from only if that is not finished.

    Raises:
        ValueError: the trunk is not frozen, or has not so many stages.
    """
    if not config.finetunes:
        return (config.for_images(images),)
    config = config.as_begun()
    last = config.for_images(images)
    _require_tunable(last, images)
    first = config.before.for_images(images)
    finished = (first.folder_for(images) / files.RESULT).exists()
    restart = config.run.restart and not finished
    return replace(first, run=replace(first.run, restart=restart)), last


def _require_tunable(config: TrainConfig, images: ImageData) -> None:
    model, count = config.model, config.optimisation.finetune
    if not model.freeze_trunk:
        raise ValueError(
            "--finetune goes on from a head on a frozen pretrained trunk, and this trunk "
            f"({model.trunk}) learns from the start; leave --finetune out"
        )
    found = len(stages(build_trunk(model, images.image_size)))
    if found < 2:
        raise ValueError(
            f"--finetune: the trunk {model.trunk} has no stages to choose from; --freeze-trunk "
            "false trains all of it"
        )
    if count >= found:
        raise ValueError(
            f"--finetune must be at most {found - 1}, got {count}: the trunk {model.trunk} has "
            f"{found} stages; --freeze-trunk false trains all of it"
        )


@dataclass(frozen=True)
class Start:
    """The finished run that fine-tuning starts from."""

    name: str
    result: Result
    weights: dict[str, Tensor]
    stages: tuple[str, ...]
    """Those of the trunk that learn."""


def begin(model: ImageClassifier, folder: Path, count: int) -> Start:
    """Gives a model the weights of a finished run, and says where it starts."""
    result = Run.open(folder).result
    assert result is not None, "`train` finishes it first"
    weights = files.read_tensors(folder / files.FINAL)
    model.load_state_dict(weights)
    return Start(folder.name, result, weights, tuple(stages(model.trunk))[-count:])


def unfreeze(model: ImageClassifier, count: int) -> None:
    """Lets the last stages of the trunk learn, but neither its normalisations nor memberships.

    >>> from blockout.models import EfficientNetLite, Head
    >>> trunk = EfficientNetLite("efficientnet-lite0")
    >>> model = ImageClassifier(trunk, Head(1280, 10, method="baseline"), freeze_trunk=True)
    >>> unfreeze(model, 1)
    >>> [name for name, weight in model.named_parameters() if weight.requires_grad]
    ['trunk.head.conv.weight', 'head.classifier.weight', 'head.classifier.bias']
    """
    for part in list(stages(model.trunk).values())[-count:]:
        part.requires_grad_(True)
        for module in part.modules():
            if isinstance(module, NORMALISATIONS):
                module.requires_grad_(False)
    for memberships in memberships_of(model).values():
        memberships.requires_grad_(False)


def first_stages(model: ImageClassifier, config: TrainConfig, images: ImageData) -> Trunk | None:
    """What comes before the stages that learn; None where its output cannot be kept: the trunk is
    no chain, or there are too many images."""
    trunk, views = model.trunk, config.data.views
    if not isinstance(trunk, Trunk) or not trunk.is_chain or not views:
        return None
    first = FirstStages(trunk, config.optimisation.finetune, images.image_size)
    count = views * len(images.train) + len(images.holdout)
    return first if 4 * count * first.features <= LARGEST else None


def without_first(model: ImageClassifier, first: Trunk, count: int) -> ImageClassifier:
    """The model from what ``first`` says to classes."""
    assert isinstance(first, FirstStages) and isinstance(model.trunk, Trunk)
    end = last_stages(model.trunk, count, first.shape)
    return ImageClassifier(end, model.head, freeze_trunk=True)


def seconds_per_image(model: nn.Module, split: Split, images: int) -> float:
    """Of a training step, tried on so many images; neither the model nor chance is changed."""
    x, y = next(iter(split.batches(min(images, len(split)), train=False)))
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    x, y = x.to(learning[0]), y.to(learning[0].device)
    twins = [nn.Parameter(weight.detach().clone()) for weight in learning]
    optimizer = torch.optim.SGD(twins, lr=0.0, momentum=0.9, nesterov=True)
    model.eval()
    taken: list[float] = []
    while len(taken) < 2 or sum(taken) < TRYING:
        began = time.perf_counter()
        F.cross_entropy(model(x), y).backward()
        for twin, weight in zip(twins, learning, strict=True):
            twin.grad, weight.grad = weight.grad, None
        optimizer.step()
        taken.append(time.perf_counter() - began)
    return statistics.median_low(taken) / len(y)


@dataclass(frozen=True)
class Judgement:
    """The better network on the hold-out, and how both do."""

    weights: Mapping[str, Tensor]
    scores: dict[str, Evaluation]
    """Of the better one on each split."""
    tuning: Tuning

    def __str__(self) -> str:
        t = self.tuning
        said = [f"test {t.test[0].accuracy:.2f} % before, {t.test[1].accuracy:.2f} % after"]
        if t.holdout is None:
            return f"fine-tuning: {said[0]}; there is no hold-out to choose by, so it is kept"
        was, now = t.holdout
        said.insert(
            0,
            f"hold-out {was.accuracy:.2f} % (loss {was.loss:.4f}) before, {now.accuracy:.2f} % "
            f"({now.loss:.4f}) after",
        )
        kept = "fine-tuned network" if t.kept == "tuned" else f"network of {t.start}"
        by = "By the hold-out,"
        if t.tied:
            equal = was.accuracy == now.accuracy
            both = "get equally many of" if equal else "differ no more than by chance on"
            by = f"Both {both} the hold-out{' right' if equal else ''}, so the loss decides:"
        return f"fine-tuning: {'; '.join(said)}. {by} the {kept} is kept"


def judge(
    start: Start,
    weights: dict[str, Tensor],
    model: ImageClassifier,
    images: ImageData,
    config: DataConfig,
    say: Say,
) -> Judgement:
    """Scores the network before and after alike, through features that later commands find.

    Args:
        start: before.
        weights: of the whole network, after.
        model: one like both.
        images: of the run.
        config: where features are kept.
        say: tells the user how far it has come.
    """

    def scores(weights: dict[str, Tensor]) -> dict[str, Evaluation]:
        network = restored(model.describe(), weights).eval()
        splits = {n: s for n in ("holdout", "test") if len(s := getattr(images, n))}
        places = {"cache": config.cache_folder, "workers": config.decoders}
        found = feature_splits(splits, network, images, say=say, name=images.name, **places)
        return {name: evaluate(network.head, split) for name, split in found.items()}

    both = scores(start.weights), scores(weights)
    worse, chance = False, 0.0
    if "holdout" in both[0]:
        was, now = (one["holdout"] for one in both)
        chance = _chance(was, now, images.holdout.labels)
        worse = _is_worse(now, was, chance)
    said = {name: (_scores(both[0][name]), _scores(both[1][name])) for name in both[0]}
    kept = "start" if worse else "tuned"
    tuning = Tuning(start.name, start.stages, said["test"], said.get("holdout"), kept, chance)
    return Judgement(start.weights if worse else weights, both[0 if worse else 1], tuning)


def as_before(
    start: Start, model: ImageClassifier, images: ImageData, config: DataConfig, say: Say
) -> ImageData:
    """The images with what the frozen trunk said of them, which is kept: for looking at the data.

    Args:
        start, model, images, config, say: as in ``judge``.
    """
    parts = {name: getattr(images, name) for name in ("train", "holdout", "test")}
    seen = {n: s.images if isinstance(s, FeatureSplit) else s for n, s in parts.items()}
    images = replace(images, **seen)
    if not config.views:
        return images
    network = restored(model.describe(), start.weights).eval()
    places = {"cache": config.cache_folder, "workers": config.decoders}
    return with_features(images, network, views=config.views, say=say, **places)


def _scores(found: Evaluation) -> Scores:
    return Scores(**found.numbers())


def _chance(before: Evaluation, after: Evaluation, labels: Tensor) -> float:
    """Points of accuracy by which two networks may differ without one being better.

    Only images that one of both gets right tell them apart. Were each of these a coin that falls on
    either side, this would be the standard deviation.
    """
    right = [one.classes[:, 0].cpu() == labels for one in (before, after)]
    return 100 * float((right[0] != right[1]).sum()) ** 0.5 / len(labels)


def _is_worse(after: Evaluation, before: Evaluation, chance: float) -> bool:
    """Fewer are right or, if that may be chance, its loss is higher; also if it is no number."""
    if abs(after.accuracy - before.accuracy) > chance:
        return after.accuracy < before.accuracy
    return not after.loss <= before.loss
