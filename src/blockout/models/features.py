"""The fastest way from images to the features of a frozen trunk, measured on the spot."""

import copy
import hashlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor, nn

from blockout.models.classifier import pool_features
from blockout.models.folding import folded

Way = Literal["onednn bfloat16", "onednn", "folded", "plain"]
Channels = tuple[float, float, float]

CHUNK = 4
"""Images that pass at once, on one thread: enough to fill it, few enough to stay in its cache."""
TOLERANCE = 1e-3
"""Largest difference of a feature from the plain trunk's, as a share of the largest feature. Sums
in another order change 1e-6 of it; a wrong padding or normalisation changes far more."""
COSINE, GAIN = 0.9995, 1.3
"""How alike bfloat16 features must be to those of float32, and how many times faster."""
CLOSE = 1.5
"""A way is taken unless a later one is so many times faster, so that noise does not decide."""
WORTH_COMPARING = 5.0
"""Seconds: what takes less is not made faster by comparing."""
REPEATS, AT_LEAST, SECONDS = 5, 0.2, 1.0
"""Each way is measured so often, more often within a time, and after a longer one no more."""


@dataclass(frozen=True)
class FeatureExtractor:
    """Images to features; ``fast_features`` makes it.

    The features of an image depend neither on the other images of a batch nor on the threads.
    """

    name: Way
    """onednn: each convolution with its normalisation and activation in one call; folded: without
    normalisations, in torch's own calls; plain: the trunk as it is."""
    network: nn.Module
    scale: Float32[Tensor, "3 1 1"]
    shift: Float32[Tensor, "3 1 1"]
    threads: int
    """Each takes a chunk of images at a time."""
    pool: ThreadPoolExecutor
    dtype: torch.dtype = torch.float32
    images_per_second: float = 0.0
    """As measured, of all threads together."""

    def __call__(self, images: UInt8[Tensor, "n 3 h w"]) -> Float32[Tensor, "n features"]:
        """The features of 8-bit RGB images in any memory format; on the CPU."""
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
            got = f"{tuple(images.shape)} of {images.dtype}"
            raise ValueError(f"expected images (N, 3, H, W) of torch.uint8, got {got}")
        return torch.cat(list(self.pool.map(self._chunk, images.split(CHUNK))))

    @torch.no_grad()
    def _chunk(self, images: UInt8[Tensor, "n 3 h w"]) -> Float32[Tensor, "n features"]:
        """Fills up to a whole chunk: another batch size might sum in another order."""
        missing = images.new_zeros(CHUNK - len(images), *images.shape[1:])
        pixels = torch.cat([images, missing]).to(self.scale.device, torch.float32)
        x = pixels.mul_(self.scale).add_(self.shift).to(self.dtype)
        output = self.network(x.contiguous(memory_format=torch.channels_last))
        return pool_features(output.float())[: len(images)].cpu()


def fast_features(
    trunk: nn.Module,
    image_size: int,
    mean: Channels,
    std: Channels,
    *,
    threads: int | None = None,
    bfloat16: bool = False,
    way: str | None = None,
    images: int | None = None,
) -> FeatureExtractor:
    """The fastest way through a trunk in eval mode, of those that give the trunk's own features.

    Tries every way on a few images, which takes a second or two. Later changes of the trunk do not
    change what comes out.

    Args:
        trunk: any module that an ``ImageClassifier`` takes, on any device.
        image_size: height and width of the images.
        mean, std: of pixels in [0, 1], as the trunk expects them.
        threads: that work side by side on a CPU. Default: as many as torch uses.
        bfloat16: also try bfloat16, whose features differ by about 1 %.
        way: take this one if it works here: features that belong together are then the same to
            the last bit, however fast the machine was when they were computed.
        images: how many will pass. If they take a few seconds at most, the way that should be
            fastest is taken, and how busy the machine is decides nothing.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    plain = _plain(trunk, mean, std, threads)
    shape = (CHUNK * plain.threads, 3, image_size, image_size)
    sample = torch.randint(256, shape, generator=torch.Generator().manual_seed(0)).byte()
    expected = plain(sample[:CHUNK])
    tried = (one for one in _ways(plain, image_size, bfloat16) if _works(one, sample, expected))
    found = [*tried, plain]
    exact = [one for one in found if one.dtype == torch.float32]
    first = _measured([one for one in found if one.name == way] or exact[:1], sample)[0]
    if first.name == way or (images or math.inf) < WORTH_COMPARING * first.images_per_second:
        return first
    return _fastest(_measured(found, sample))


def weights_digest(trunk: nn.Module) -> str:
    """Changes when a weight, a statistic or the name of one changes; the same on every machine."""
    digest = hashlib.sha256()
    for name, value in sorted(trunk.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _plain(
    trunk: nn.Module, mean: Channels, std: Channels, threads: int | None
) -> FeatureExtractor:
    """A copy of the trunk; its input is rounded as ``blockout.data.images.normalise`` rounds it."""
    device = next(trunk.parameters(), torch.empty(0)).device
    workers = (threads or torch.get_num_threads()) if device.type == "cpu" else 1
    means, deviations = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
    return FeatureExtractor(
        "plain",
        copy.deepcopy(trunk).eval().requires_grad_(False),
        scale=(1 / (255 * deviations)).float().to(device),
        shift=(-means / deviations).float().to(device),
        threads=workers,
        pool=ThreadPoolExecutor(workers, "features", torch.set_num_threads, (1,)),
    )


def _ways(plain: FeatureExtractor, image_size: int, bfloat16: bool) -> Iterator[FeatureExtractor]:
    """Other ways than the plain one, the one that should be fastest first."""
    on_cpu = plain.scale.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if on_cpu and (network := folded(plain.network, image_size, onednn=True)) is not None:
        if bfloat16:
            half = copy.deepcopy(network).to(torch.bfloat16)
            yield replace(plain, name="onednn bfloat16", network=half, dtype=torch.bfloat16)
        yield replace(plain, name="onednn", network=network)
    if (network := folded(plain.network, image_size)) is not None:
        yield replace(plain, name="folded", network=network)


def _works(way: FeatureExtractor, images: Tensor, expected: Tensor) -> bool:
    """Whether it runs here and gives the expected features of the first images."""
    try:
        found = way(images[: len(expected)])
    except Exception:  # this CPU, this torch or a foreign forward does without it
        return False
    if way.dtype == torch.bfloat16:
        return bool((torch.cosine_similarity(found, expected) > COSINE).all())
    return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())


def _measured(
    ways: Sequence[FeatureExtractor], images: UInt8[Tensor, "n 3 h w"]
) -> list[FeatureExtractor]:
    """With their speed, measured in turns; the best of several times."""
    best = [float("inf")] * len(ways)
    began = time.perf_counter()
    for repeat in itertools.count(1):
        for place, way in enumerate(ways):
            start = time.perf_counter()
            way(images)
            best[place] = min(best[place], time.perf_counter() - start)
        seconds = (time.perf_counter() - began) / len(ways)
        if seconds > SECONDS or (repeat >= REPEATS and seconds > AT_LEAST):
            break
    return [
        replace(way, images_per_second=len(images) / seconds)
        for way, seconds in zip(ways, best, strict=True)
    ]


def _fastest(ways: Sequence[FeatureExtractor]) -> FeatureExtractor:
    """The first, unless a later one is clearly faster; bfloat16 only if it is clearly faster."""
    exact = [way for way in ways if way.dtype == torch.float32] or ways
    most = max(way.images_per_second for way in exact)
    chosen = next(way for way in exact if CLOSE * way.images_per_second >= most)
    half = [way for way in ways if way.dtype != torch.float32]
    return next((w for w in half if w.images_per_second >= GAIN * most), chosen)
