"""A frozen trunk sees every image once; the head then trains on what it said."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from jaxtyping import Float32
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from blockout.data import DataConfig, ImageData, Split, StreamSplit
from blockout.data.cache import key_of as cache_key
from blockout.data.cache import locked
from blockout.data.features import (
    FOLDER,
    FeatureSplit,
    FeatureStore,
    Key,
    Views,
    digests,
    key_of,
    read_views,
)
from blockout.models import ImageClassifier, ModelConfig
from blockout.models.config import origin_of
from blockout.models.features import Channels, FeatureExtractor, fast_features, weights_digest
from blockout.terminal import raw_output
from blockout.training.progress import TOLD_EVERY, duration

BATCH = 32
KEPT_VIEWS = 1024
"""So many views are computed before they are written: what a sudden end can lose."""

Say = Callable[[str], object]


class Plan(NamedTuple):
    """What to say before anything passes through the trunk."""

    introduction: str = ""
    """Which trunk sees what."""
    views: int = 0
    """In all passes, if this one is not the only one."""


NOTHING_PLANNED = Plan()


def introduction(
    model: ModelConfig, data: DataConfig, classes: int, images: int, why: str = ""
) -> str:
    """Which frozen trunk sees which images, in one line; ``why`` it was chosen, if it was."""
    origin = why + ", ".join(text for text in (origin_of(model.trunk), "frozen") if text)
    views = "1 view" if data.views == 1 else f"{data.views} views"
    return (
        f"{classes} classes, {images} images of {data.image_size} px, trunk {model.trunk} "
        f"({origin}); {views} of each training image: mirrored and cropped"
    )


class Work(NamedTuple):
    """The views of one split: which are wanted, and under which keys."""

    split: Split
    contents: list[bytes]
    views: int

    def all_keys(self) -> list[Key]:
        return [key_of(content, view) for content in self.contents for view in range(self.views)]

    def missing(self, store: FeatureStore, planned: set[Key]) -> list[tuple[int, int]]:
        """Places and views that are neither in the store nor ``planned``, which they join."""
        found = []
        for place, content in enumerate(self.contents):
            for view in range(self.views):
                key = key_of(content, view)
                if key not in store and key not in planned:
                    planned.add(key)
                    found.append((place, view))
        return found


class Seen(Protocol):
    """How images are seen: ``ImageData`` and ``TrainedModel`` both say it."""

    @property
    def image_size(self) -> int: ...
    @property
    def crop(self) -> float: ...
    @property
    def mean(self) -> Channels: ...
    @property
    def std(self) -> Channels: ...


def with_features(
    images: ImageData,
    model: ImageClassifier,
    *,
    views: int,
    cache: Path,
    workers: int,
    say: Say,
    parts: Sequence[str] = ("train", "holdout", "test"),
    plan: Plan = NOTHING_PLANNED,
) -> ImageData:
    """The same data with the trunk's features in place of images; computes what is missing.

    Args:
        images: as the trunk expects them.
        model: its trunk is frozen.
        views: of each training image. The hold-out and the test have one.
        cache: where features are kept.
        workers: processes that decode images.
        say: tells the user how far it has come.
        parts: the splits to do this for; the others stay images.
        plan: said first if the trunk has seen none of this before.
    """
    splits = {name: split for name in parts if len(split := getattr(images, name))}
    found = feature_splits(
        splits,
        model,
        images,
        views={"train": views},
        cache=cache,
        workers=workers,
        say=say,
        plan=plan,
        name=images.name,
    )
    return replace(images, **found)


def feature_splits(
    splits: Mapping[str, Split],
    model: ImageClassifier,
    seen: Seen,
    *,
    cache: Path,
    workers: int,
    say: Say,
    views: Mapping[str, int] = MappingProxyType({}),
    plan: Plan = NOTHING_PLANNED,
    name: str = "",
) -> dict[str, FeatureSplit]:
    """What the trunk says of the images of some splits; ``views`` of each, one by default. The
    cache notes the ``name`` of the data set."""
    about = {
        "trunk": model.describe()["trunk"],
        "image_size": seen.image_size,
        "crop": seen.crop,
        "mean": seen.mean,
        "std": seen.std,
    }
    entry = cache_key(about, weights_digest(model.trunk))
    works = {
        part: Work(split, digests(split.pictures, len(split)), views.get(part, 1))
        for part, split in splits.items()
    }
    store = FeatureStore(cache, entry, about)  # files are written whole: reading waits for nobody
    if store.damaged or any(work.missing(store, set()) for work in works.values()):
        damaged = store.damaged
        with locked(cache, entry, FOLDER):
            store = FeatureStore(cache, entry, about)
            if damaged:
                say(f"note: {damaged} damaged files of features are computed again")
            _compute(works, store, seen, model.trunk, workers, say, plan)
    store.serves(name)
    return {part: FeatureSplit(_gathered(work, store), work.split) for part, work in works.items()}


def worth_features(model: ImageClassifier, split: Split) -> bool:
    """Whether a split is sooner evaluated on features: where the trunk is frozen, so that they may
    be kept already, and where images are large enough to be decoded one by one."""
    return model.freeze_trunk or isinstance(split, StreamSplit)


def _gathered(work: Work, store: FeatureStore) -> Float32[Tensor, "n views features"]:
    rows = np.stack([store[key] for key in work.all_keys()])
    return torch.from_numpy(rows).view(len(work.split), work.views, -1)


def _compute(
    works: dict[str, Work],
    store: FeatureStore,
    images: Seen,
    trunk: nn.Module,
    workers: int,
    say: Say,
    plan: Plan,
) -> None:
    planned: set[Key] = set()
    wanted = {name: work.missing(store, planned) for name, work in works.items()}
    total, done = sum(map(len, wanted.values())), 0
    if not total:
        return
    seen = images.image_size, images.mean, images.std
    extract = fast_features(trunk, *seen, way=store.way, images=total)
    store.way = extract.name
    every = len({key for work in works.values() for key in work.all_keys()})
    for line in _announced(total, every, plan, extract):
        say(line)
    ready: list[tuple[list[Key], Tensor]] = []
    try:
        with Telling(total, say) as telling:
            for name, work in works.items():
                for keys, features in _passed(
                    work, wanted[name], extract, images.image_size, workers
                ):
                    ready.append((keys, features))
                    done += len(keys)
                    telling.update(done)
                    if sum(len(keys) for keys, _ in ready) >= KEPT_VIEWS:
                        _keep(store, ready)
    finally:
        _keep(store, ready)


def _announced(total: int, every: int, plan: Plan, extract: FeatureExtractor) -> list[str]:
    """What is to come: ``total`` of ``every`` view of this pass, or of all passes as planned."""

    def about(views: int) -> str:
        return f"about {duration(views / extract.images_per_second)}"

    if total < every:
        passed = f"{every - total} of {every} views have passed through the trunk"
        return [f"{passed}; the other {total} follow: {about(total)}"]
    planned = max(plan.views, total)
    count, how = (str(total), "") if planned == total else (f"about {planned}", " in all")
    text = (
        f"{count} views of images pass through the trunk once: {about(planned)}{how} "
        f"({extract.name}, {extract.images_per_second:.0f} images/s)"
    )
    return [*([plan.introduction] if plan.introduction else []), text]


def _keep(store: FeatureStore, ready: list[tuple[list[Key], Tensor]]) -> None:
    if ready:
        keys = [key for some, _ in ready for key in some]
        store.add(keys, torch.cat([features for _, features in ready]).numpy())
        ready.clear()


def _passed(
    work: Work,
    wanted: Sequence[tuple[int, int]],
    extract: FeatureExtractor,
    image_size: int,
    workers: int,
) -> Iterator[tuple[list[Key], Float32[Tensor, "n features"]]]:
    """Sends the wanted views through the trunk, a batch at a time."""
    batches = [wanted[first : first + BATCH] for first in range(0, len(wanted), BATCH)]
    views = Views(work.split.pictures, work.contents, image_size, work.split.crop)
    for batch, pixels in zip(batches, read_views(views, batches, workers), strict=True):
        keys = [key_of(work.contents[place], view) for place, view in batch]
        yield keys, extract(pixels.permute(0, 3, 1, 2))


class Telling:
    """How far the trunk has come: a bar in a terminal, a line every few seconds elsewhere."""

    def __init__(self, total: int, say: Say) -> None:
        self.total, self.say = total, say
        console = Console(file=raw_output(), highlight=False)
        self.bar = Progress(
            TextColumn("features"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed} of {task.total} views"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("", total=total)
        self.began = self.told = time.perf_counter()

    def __enter__(self) -> Self:
        if not self.bar.disable:  # else rich before version 15 prints an empty line in the end
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if not self.bar.disable:
            self.bar.stop()

    def update(self, done: int) -> None:
        self.bar.update(self.task, completed=done)
        now = time.perf_counter()
        if self.bar.disable and now - self.told > TOLD_EVERY and done < self.total:
            self.told = now
            left = (now - self.began) / done * (self.total - done)
            self.say(f"features: {done} of {self.total} views, {duration(left)} left")
