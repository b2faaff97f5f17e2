"""What a result stands beside: a linear classifier on the same features, and chance."""

import torch

from blockout.data import ImageData
from blockout.data.features import FeatureSplit
from blockout.models import Head
from blockout.runs.config import TrainConfig
from blockout.training.engine import fit
from blockout.training.evaluation import Evaluation, evaluate


def linear_reference(config: TrainConfig, data: ImageData, steps: int) -> Evaluation | None:
    """A linear classifier on the same features with the same recipe.

    None where the head did not train on features, or is that classifier itself.
    """
    train = data.train
    if not isinstance(train, FeatureSplit) or config.model.method == "baseline":
        return None
    o = config.optimisation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(o.seed)
        head = Head(train.features.shape[2], len(data.classes), method="baseline")
    fit(
        head,
        lambda epoch: train.batches(config.batch_size, train=True, seed=o.seed, epoch=epoch),
        steps=steps,
        lr=config.peak_rate,
        weight_decay=o.weight_decay,
        momentum=o.momentum,
        warmup=o.warmup,
        label_smoothing=o.label_smoothing,
        class_weights=data.class_weights,
        seed=o.seed,
    )
    return evaluate(head, data.test)


def chance_accuracy(data: ImageData) -> float:
    """Per cent of the test images that are right if every answer is the most frequent class."""
    most = int(torch.bincount(data.train.labels).argmax())
    return 100 * float((data.test.labels == most).double().mean())
