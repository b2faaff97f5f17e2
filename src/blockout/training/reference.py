"""What a result stands beside: a linear classifier on the same features, and chance."""

from dataclasses import replace

import torch
from torch import nn

from blockout.data import ImageData
from blockout.data.features import FeatureSplit
from blockout.models import EfficientNetLite, InceptionBN, SmallInception, build_model
from blockout.runs.config import TrainConfig
from blockout.training.engine import fit
from blockout.training.evaluation import Evaluation, evaluate

OWN = EfficientNetLite, InceptionBN, SmallInception


def linear_reference(
    config: TrainConfig, data: ImageData, steps: int, trunk: nn.Module | None = None
) -> Evaluation | None:
    """What --method baseline gets on the same features with the same recipe.

    None where the head did not train on features, or is that classifier itself.

    Args:
        config: of the run that it stands beside.
        data: with the features of its trunk.
        steps: how many that run took.
        trunk: its trunk. One of ours is built once more, because the head of a baseline draws its
            first weights after it; the user's own and those of Hugging Face are used as they are.
    """
    train = data.train
    if not isinstance(train, FeatureSplit) or config.model.method == "baseline":
        return None
    o, is_ours = config.optimisation, isinstance(trunk, OWN)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(o.seed)
        baseline = build_model(
            replace(config.model, method="baseline", with_linear=False),
            classes=len(data.classes),
            data_name=data.name,
            image_size=data.image_size,
            trunk=None if is_ours else trunk,
        )
    head = baseline.head
    fit(
        head,
        lambda epoch: train.batches(config.batch_size, train=True, seed=o.seed, epoch=epoch),
        steps=steps,
        lr=config.peak_rate,
        weight_decay=o.weight_decay,
        momentum=o.momentum,
        warmup=o.warmup,
        decay=o.decay,
        label_smoothing=o.label_smoothing,
        class_weights=data.class_weights,
        seed=o.seed,
    )
    return evaluate(head, data.test)


def chance_accuracy(data: ImageData) -> float:
    """Per cent of the test images that are right if every answer is the most frequent class."""
    most = int(torch.bincount(data.train.labels).argmax())
    return 100 * float((data.test.labels == most).double().mean())
