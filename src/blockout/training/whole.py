"""Time and size of what ships: the whole network, from images to logits."""

import copy
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn

from blockout.compact import in_turns
from blockout.convert import to_dense
from blockout.models import Head, ImageClassifier
from blockout.models.folding import folded
from blockout.runs.documents import NetworkTimes, WholeNetwork

BATCHES = (1, 8)
"""Images at a time: as an app asks, and as a server does."""
ROUNDS, SECONDS = (3, 31), 0.25
"""Turns per batch size and kind of trunk: the least and the most, and no more after this time."""


def whole_network(model: ImageClassifier, small: ImageClassifier, image_size: int) -> WholeNetwork:
    """Measures the dense network, the compact one, and a linear classifier on the same trunk.

    All take turns in one process, so that all see the same load; each time is a median. They are
    measured with the trunk as it was trained and, if batch normalisation can be folded into its
    convolutions, once more with the trunk as exports have it.

    Args:
        model: as it was trained.
        small: the same network, compact.
        image_size: height and width of the images.
    """
    networks = networks_of(model, small)
    sizes = [_bytes(network) for network in networks]
    times = [_times(networks, image_size, batch) for batch in BATCHES]
    if (trunk := folded(model.trunk, image_size)) is not None:
        for network in networks:
            network.trunk = trunk
        times += [_times(networks, image_size, batch, folded=True) for batch in BATCHES]
    return WholeNetwork((sizes[0], sizes[1], sizes[2]), tuple(times))


def networks_of(model: ImageClassifier, small: ImageClassifier) -> list[ImageClassifier]:
    """Dense, compact and linear, on one trunk."""
    about = model.describe()["head"]
    linear = Head(about["features"], about["classes"], method="baseline")
    trunk = copy.deepcopy(model.trunk).eval()
    heads = (to_dense(model.head), small.head, linear)
    return [ImageClassifier(trunk, head.eval()).eval() for head in heads]


@torch.no_grad()
def _times(
    networks: list[ImageClassifier], image_size: int, batch: int, *, folded: bool = False
) -> NetworkTimes:
    images = torch.randn(batch, 3, image_size, image_size)
    images = images.contiguous(memory_format=torch.channels_last)
    features = networks[0].features(images)
    runs = [_call(network, images) for network in networks]
    runs += [_call(network.head, features) for network in networks[:2]]
    taken = in_turns(runs, rounds=ROUNDS, seconds=SECONDS)
    dense, compact, linear, *heads = (1e3 * statistics.median(times) for times in taken)
    return NetworkTimes(batch, dense, compact, linear, heads[0], heads[1], folded)


def _call(module: nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: module(x)


def _bytes(network: nn.Module) -> int:
    return sum(value.nbytes for value in network.state_dict().values())


NAMES = {"dense": "dense", "compact": "compact", "linear": "linear classifier"}
"""The networks in words, by their times."""


def table(found: WholeNetwork) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: a network, its size, its time for each batch size."""
    ways = [[row for row in found.times if row.folded is way] for way in (False, True)]
    heads = ["whole network", "size", *(_images(row.batch_size) for row in ways[0] or ways[1])]
    rows = []
    for times in filter(None, ways):
        note = ", folded" if times[0].folded else ""
        for (key, name), size in zip(NAMES.items(), found.bytes, strict=True):
            taken = [f"{getattr(row, key):.2f} ms" for row in times]
            rows.append([f"{name}{note}", f"{size / 1e6:.1f} MB", *taken])
    return heads, rows


def in_words(found: WholeNetwork) -> list[str]:
    """The table as lines, then what it means."""
    heads, rows = table(found)
    width = max(len(row[0]) for row in (heads, *rows))
    lines = [
        "".join([f"{name:<{width}}", *(f"{cell:>13}" for cell in cells)])
        for name, *cells in (heads, *rows)
    ]
    return [*lines, meaning(found)]


def meaning(found: WholeNetwork) -> str:
    """What compaction and folding do for the whole network, in two sentences."""
    plain = [row for row in found.times if not row.folded][-1]
    lean = [row for row in found.times if row.folded]
    if not lean:
        return gain(found)
    return (
        f"{gain(found)} Exports to ONNX and .pt2 have batch normalisation folded into the trunk's "
        f"convolutions: {plain.compact / lean[-1].compact:.2f} times as fast in torch."
    )


def gain(found: WholeNetwork) -> str:
    """What compaction does for the whole network.

    Only the head changes, so this is reckoned from the head's times: those of the whole network
    differ by more than that from one turn to the next.
    """
    if found.bytes[0] == found.bytes[1]:
        return "Nothing could be left out, so the compact network is the dense one."
    at = [row for row in found.times if not row.folded][-1]
    faster = at.dense / (at.dense - at.dense_head + at.compact_head)
    return (
        f"The head takes {_share(at.dense_head / at.dense)} of the whole network's time for "
        f"{_images(at.batch_size)}, so a compact head makes the whole {faster:.2f} times as fast, "
        f"at {found.bytes[1] / found.bytes[0]:.0%} of its size."
    )


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"


def _share(share: float) -> str:
    """
    >>> _share(0.0031), _share(0.42)
    ('0.3 %', '42 %')
    """
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
