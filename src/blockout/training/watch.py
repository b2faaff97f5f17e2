"""Notices when a run goes badly, and says what to try."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from blockout.data import DataConfig, ImageData
from blockout.runs.documents import BINS
from blockout.training.evaluation import Evaluation

NEAR = 0.05
"""P is near zero or one if it is no farther away than this."""
MOST = 0.98
"""Share of P that must be near zero or one to count as a collapse."""
DEAD = 0.25
"""Share of dead nodes that is worth a warning."""
STARVED = 0.1
"""A branch is starved if it has less than this share of what it would have of equal branches."""
CLASSES_EACH = 2
"""Only with so many classes for each branch, a branch without any is worth a warning."""
UNLEARNED = 75.0
"""Per cent of its own training images that a network should know in the end."""
WORSE, SURE_ERRORS = 0.5, 2.0
"""A head may miss a linear classifier by so many points, and by so many standard errors, before it
is said."""
FEW_HELD_OUT = 200
"""A hold-out of fewer images chooses by chance: one image more is half a point."""
FEW_TESTED = 50
"""Of fewer test images, one more that is right is worth more than two points."""
FEW_IMAGES = 5
"""Training images of a class, below which little can be learned about it."""


def distribution(p: Tensor) -> dict[str, Any]:
    """A histogram of P over [0, 1] with its quartiles: what Fig. 9 shows at one step."""
    flat = p.detach().float().flatten().cpu()
    quartiles = flat.quantile(torch.tensor([0.25, 0.5, 0.75]))
    return {
        "histogram": torch.histc(flat, BINS, 0, 1).int().tolist(),
        "quartiles": [round(q, 4) for q in quartiles.tolist()],
    }


def collapses(memberships: Mapping[str, Tensor], classes: tuple[str, ...]) -> dict[str, str]:
    """What has gone wrong with the P_j: for each problem a short key and a text with what to try.

    >>> list(collapses({"P_0": torch.full((8, 2), .99)}, ("cat", "dog")))
    ['P_0 near one']
    """
    said = {}
    last = list(memberships)[-1] if memberships else None
    if last is not None and len(memberships[last]) != len(classes):
        last = None  # the last Blockout layer does not give the classes
    for name, p in memberships.items():
        if (p > 1 - NEAR).float().mean() > MOST:
            said[f"{name} near one"] = (
                f"nearly all of {name} is near one: these layers are dense and have no structure. "
                "Try a lower --weight-decay or --membership-scale"
            )
        if (p < NEAR).float().mean() > MOST:
            said[f"{name} near zero"] = (
                f"nearly all of {name} is near zero: hardly any connection is left. "
                "Try a lower --membership-scale or --lr"
            )
        homeless = (p < NEAR).all(1)
        if name == last and homeless.any():
            names = [c for c, lost in zip(classes, homeless.tolist(), strict=False) if lost]
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            said["classes without a cluster"] = (
                f"{len(names)} of {len(classes)} classes belong to no cluster ({shown}): they are "
                "predicted by their bias alone. Try a lower --membership-scale"
            )
        elif name != last and homeless.float().mean() > DEAD:
            said[f"{name} dead nodes"] = (
                f"{homeless.float().mean():.0%} of the nodes of {name} belong to no cluster and "
                "are dead. Try fewer --nodes or a lower --membership-scale"
            )
    return said


def starved(memberships: Mapping[str, Tensor], classes: tuple[str, ...]) -> dict[str, str]:
    """Branches (clusters) that came to nothing in the end: without a class, or with hardly a node.

    Where there are few classes, some branches have none, because similar classes share one.

    >>> list(starved({"P_0": torch.eye(2)[[0] * 40], "P_1": torch.ones(4, 2)}, ("a",) * 4))
    ['starved branches']
    """
    found: dict[int, str] = {}
    last = list(memberships)[-1] if memberships else None
    spare: set[int] = set()
    for name, p in list(memberships.items())[::-1]:
        counts, (nodes, clusters) = (p >= NEAR).sum(0).tolist(), p.shape
        is_last = name == last and nodes == len(classes)
        unserved = {cluster for cluster, count in enumerate(counts) if is_last and not count}
        if nodes < CLASSES_EACH * clusters:
            spare |= unserved
        found |= {cluster: f"{cluster + 1} serves no class" for cluster in unserved}
        for cluster, count in enumerate(() if is_last else counts):
            if count < STARVED * nodes / clusters:
                found.setdefault(cluster, f"{cluster + 1} has {count} of {nodes} nodes in {name}")
    found = {cluster: text for cluster, text in sorted(found.items()) if cluster not in spare}
    total = max((p.shape[1] for p in memberships.values()), default=0)
    if not found or total < 2:
        return {}
    shown = "; ".join(list(found.values())[:3]) + ("; ..." if len(found) > 3 else "")
    text = f"{len(found)} of {total} branches are starved ({shown}): try --clusters "
    return {"starved branches": f"{text}{max(total - len(found), 1)}"}


def doubts(data: ImageData, holdout: float = DataConfig.holdout) -> list[str]:
    """What is doubtful about the data before training starts.

    Args:
        data: as it was divided.
        holdout: the share that was to be held out; who asks for none does not miss it.
    """
    counts = torch.bincount(data.train.labels, minlength=len(data.classes))
    few = [c for c, n in zip(data.classes, counts.tolist(), strict=True) if n < FEW_IMAGES]
    spare = bool((counts > 1).any())  # every class keeps one image for training
    found = (_of_holdout(data, holdout, spare), _of_classes(data, few), _of_test(data, spare))
    return [text for text in found if text]


def _of_holdout(data: ImageData, share: float, spare: bool) -> str:
    count = len(data.holdout)
    if count >= FEW_HELD_OUT or (share == 0 and not count):
        return ""
    if not count:
        flag = ", or hold out a larger share with --holdout" if spare else ""
        return (
            "no image is held out, because small classes keep theirs for training, so "
            f"best.safetensors is only the last network; add photographs{flag}"
        )
    more = "add images to val/" if data.own_holdout else "--holdout 0.2 holds out more"
    return (
        f"only {_images_are(count)} held out, so the choice of best.safetensors is partly chance; "
        f"{more}"
    )


def _of_classes(data: ImageData, few: list[str]) -> str:
    if not few:
        return ""
    shown = ", ".join(few[:3]) + (", ..." if len(few) > 3 else "")
    flags = ["--holdout 0"] if len(data.holdout) and not data.own_holdout else []
    if not data.own_test and len(data.test) > len(data.classes):  # one each is the least
        flags.append("a lower --test-share")
    keep = f", or keep more of them for training with {' and '.join(flags)}" if flags else ""
    return (
        f"{len(few)} of {len(data.classes)} classes have fewer than {FEW_IMAGES} training "
        f"images ({shown}); add photographs{keep}"
    )


def _of_test(data: ImageData, spare: bool) -> str:
    count = len(data.test)
    if count >= FEW_TESTED:
        return ""
    more = " to test/" if data.own_test else ", or test a larger share with --test-share"
    return (
        f"only {_images_are(count)} in the test, so one image more or less is "
        f"{100 / max(count, 1):.0f} points of accuracy; add photographs"
        f"{more if spare or data.own_test else ''}"
    )


def _images_are(count: int) -> str:
    return "1 image is" if count == 1 else f"{count} images are"


def verdict(
    final: Mapping[str, Evaluation], train_accuracy: float, *, pretrained: bool = False
) -> dict[str, str]:
    """What is wrong with a result: for each problem a short key and a text with what to try.

    Args:
        final: what was evaluated in the end, by split, and the linear classifier on the test.
        train_accuracy: in per cent, as counted in training: with nodes left out at random.
        pretrained: whether the trunk is.
    """
    said, test = {}, final["test"].accuracy
    known = max(train_accuracy, final.get("holdout", final["test"]).accuracy)
    if "linear" in final and _is_worse(final["test"], final["linear"]):
        said["worse than linear"] = (
            f"a linear classifier on the same features does better ({final['linear'].accuracy:.1f} "
            f"% against {test:.1f} %): use --method baseline, or try more --epochs"
        )
    if known < UNLEARNED:
        trunk = "" if pretrained else ", or use a pretrained trunk with --trunk efficientnet-lite0"
        said["not learned"] = (
            f"it has not learned its own training images ({train_accuracy:.0f} % right): train "
            f"longer with --epochs{trunk}"
        )
    return said


def _is_worse(found: Evaluation, other: Evaluation) -> bool:
    """Whether another network is right more often on the same images, by more than chance.

    The two can differ only where they name different classes, which bounds the standard error.
    """
    count = len(found.classes)
    differ = (found.classes[:, 0] != other.classes[:, 0]).double().mean().item() if count else 0.0
    error = 100 * math.sqrt(differ / max(count, 1))
    return other.accuracy - found.accuracy > max(WORSE, SURE_ERRORS * error)
