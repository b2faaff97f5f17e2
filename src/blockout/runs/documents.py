"""What each JSON file of a run folder holds, as types: a file that reads is a file that fits.

Code that works with a document needs no guards: missing keys, wrong types, numbers that are not
finite and lists of the wrong length are refused here, with the name of the file.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from blockout import files
from blockout.limits import LARGEST_SIZE
from blockout.runs import digests
from blockout.runs.errors import RunError

FORMAT = 1
"""Of ``model.json`` and ``compact.json``."""
BINS = 50
"""Of the histograms of P that training writes."""
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[float, Meta(ge=-1e100, le=1e100)]
"""Finite, and so is whatever is computed from it."""
Duration = Annotated[float, Meta(ge=0, le=1e100)]
Time = Annotated[float, Meta(gt=0, le=1e100)]
"""That something took, so that it can be divided by."""
Percent = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(ge=0, le=1)]
Level = Annotated[float, Meta(ge=-1e6, le=1e6)]
Spread = Annotated[float, Meta(ge=1e-6, le=1e6)]
"""That pixels are divided by."""
Channels = tuple[Level, Level, Level]
Document = TypeVar("Document")


class Description(msgspec.Struct, frozen=True):
    """``model.json``: what classifying takes beside the weights."""

    format: int
    model: dict[str, Any]
    """Architecture, as ``ImageClassifier.describe`` gives it."""
    classes: tuple[str, ...]
    groups: tuple[Count, ...] | None
    """Index into ``group_names`` for every class, where the data knows groups of classes."""
    data: str
    """Name of the data set, never a path."""
    image_size: Annotated[int, Meta(ge=1, le=LARGEST_SIZE)]
    mean: Channels
    std: tuple[Spread, Spread, Spread]
    crop: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The centred square that it sees, as a share of an image's shorter side."""
    group_names: tuple[str, ...] | None = None
    images: str | None = None
    """Fingerprint of the images it was trained and tested on."""
    compaction: "Compaction | None" = None
    """Only in ``compact.json``: how the network was made smaller."""

    def __post_init__(self) -> None:
        outputs = self.head.get("classes", len(self.classes))
        if len(self.classes) != outputs:
            raise ValueError(f"{len(self.classes)} classes are named and {outputs} predicted")
        if self.groups is not None:
            if len(self.groups) != len(self.classes):
                raise ValueError(f"{len(self.groups)} of {len(self.classes)} classes have a group")
            if self.group_names and max(self.groups, default=0) >= len(self.group_names):
                raise ValueError("a class belongs to a group that has no name")

    @property
    def head(self) -> dict[str, Any]:
        """The head's own description."""
        found = self.model.get("head", {})
        return found if isinstance(found, dict) else {}

    @property
    def known_groups(self) -> tuple[str, ...] | None:
        """The name of the group that the data gives each class, where it gives any."""
        if self.groups is None:
            return None
        names = self.group_names
        return tuple(names[group] if names else str(group) for group in self.groups)


class SplitImage(msgspec.Struct, frozen=True, array_like=True):
    """An image of a run, as a short list."""

    name: str
    """Its file within the data set, or its row."""
    label: Count
    content: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    """Digest of its file: BLAKE2b of 16 bytes."""


class SplitImages(msgspec.Struct, frozen=True):
    """``split.json``: which images a run trains on, holds out and is tested on."""

    data: str
    """Where they were, on the machine that trained; only here."""
    classes: tuple[str, ...]
    train: tuple[SplitImage, ...]
    holdout: tuple[SplitImage, ...]
    test: tuple[SplitImage, ...]
    notes: tuple[str, ...] = ()
    """What was said of the division when it was drawn; older files lack it."""

    def __post_init__(self) -> None:
        labels = (image.label for part in (self.train, self.holdout, self.test) for image in part)
        if max(labels, default=-1) >= len(self.classes):
            raise ValueError("an image belongs to a class that has no name")


class Scores(msgspec.Struct, frozen=True):
    """How well a network does on one split."""

    accuracy: Percent
    top5: Percent
    loss: Number


class Best(msgspec.Struct, frozen=True):
    """The step whose weights did best on the hold-out."""

    holdout_accuracy: Percent
    step: Count


class Tuning(msgspec.Struct, frozen=True):
    """What fine-tuning changed: scores of the network that it started from and of its own."""

    start: str
    """Name of the run that it started from."""
    stages: tuple[str, ...]
    """Those of the trunk that learned."""
    test: tuple[Scores, Scores]
    holdout: tuple[Scores, Scores] | None
    kept: Literal["start", "tuned"]
    """Which of both the run holds: the better one on the hold-out."""
    chance: Percent = 0.0
    """Points of accuracy on the hold-out by which both may differ without one being better."""

    @property
    def tied(self) -> bool:
        """Whether both do equally well on the hold-out but for chance, so that the loss decides."""
        if self.holdout is None:
            return False
        return abs(self.holdout[0].accuracy - self.holdout[1].accuracy) <= self.chance


class GroupsFound(msgspec.Struct, frozen=True):
    """Groups of classes by learned memberships, against the groups that the data knows."""

    count: Positive
    found: tuple[Count, ...]
    adjusted_rand: Number
    nmi: Number
    p_value: Share
    nmi_p_value: Share
    auc: Number | None = None
    auc_p_value: Number | None = None


class ImageCounts(msgspec.Struct, frozen=True):
    """How many images each split had."""

    train: Count
    holdout: Count
    test: Count


class Result(msgspec.Struct, frozen=True):
    """``result.json``: written last; its presence says that the run is finished."""

    test: Scores
    steps: Count
    seconds: Duration
    seed: Seed = 0
    parameters: Count = 0
    holdout: Scores | None = None
    linear: Scores | None = None
    """A linear classifier on the same features, on the test images."""
    layers: Scores | None = None
    """The other layers of a head that answers with the mean of them and a linear classifier."""
    tuning: Tuning | None = None
    """Only where the trunk was fine-tuned."""
    chance: Percent | None = None
    """Accuracy of always answering the most frequent class."""
    best: Best | None = None
    groups: GroupsFound | None = None
    warnings: tuple[str, ...] = ()
    images: ImageCounts | None = None
    notes: tuple[str, ...] = ()
    """What was doubtful about the data before training started, in words."""


class CopiedImage(msgspec.Struct, frozen=True):
    """A test image that is a copy of a training image."""

    test: str
    """Its name in ``split.json``."""
    test_label: Count
    train: str
    train_label: Count
    exact: bool
    """The files are equal; otherwise the images are nearly the same."""
    similarity: Annotated[float, Meta(ge=-1, le=1)]
    """Cosine of their features; 1 for equal files."""


class DoubtedLabel(msgspec.Struct, frozen=True):
    """An image whose label looks wrong."""

    image: str
    part: Literal["train", "holdout", "test"]
    label: Count
    looks_like: Count
    """The class that it looks like."""
    beside: str
    """The training image of that class that is most similar to it."""
    typical: Duration
    """How much it looks like that class; 1 is what images of the class reach on average."""


class Checks(msgspec.Struct, frozen=True):
    """``checks.json``: images of the data that somebody should look at, the most striking first."""

    copies: tuple[CopiedImage, ...] = ()
    copies_found: Count = 0
    """How many there are; ``copies`` holds the first of them."""
    doubts: tuple[DoubtedLabel, ...] = ()
    doubts_found: Count = 0
    skipped: str = ""
    """What was not looked for, and why; empty if all was."""

    @property
    def labels(self) -> set[int]:
        """All classes that it names, by their number."""
        copied = {label for copy in self.copies for label in (copy.test_label, copy.train_label)}
        return copied | {c for doubt in self.doubts for c in (doubt.label, doubt.looks_like)}


class Entry(msgspec.Struct, frozen=True):
    """What every line of a log has."""

    step: Count


class StepEntry(msgspec.Struct, frozen=True):
    """A line of ``metrics.jsonl`` within an epoch."""

    step: Count
    epoch: Duration
    loss: Number
    train_accuracy: Percent
    lr: Number
    images_per_second: Duration = 0.0


class EpochEntry(msgspec.Struct, frozen=True):
    """A line of ``metrics.jsonl`` at the end of an epoch."""

    step: Count
    epoch: Positive
    epoch_loss: Number
    train_accuracy: Percent
    holdout_accuracy: Percent | None = None
    holdout_top5: Percent | None = None
    holdout_loss: Number | None = None
    test_accuracy: Percent | None = None
    test_top5: Percent | None = None
    test_loss: Number | None = None


class WarningEntry(msgspec.Struct, frozen=True):
    """A line of ``metrics.jsonl`` that says what went wrong."""

    step: Count
    warning: str


class Distribution(msgspec.Struct, frozen=True):
    """P of one set of nodes at one step, as ``memberships.jsonl`` keeps it."""

    histogram: Annotated[tuple[Count, ...], Meta(min_length=BINS, max_length=BINS)]
    quartiles: tuple[Share, Share, Share]


class Machine(msgspec.Struct, frozen=True):
    """Where a run was computed; no host name, no path."""

    system: str = ""
    processor: str = ""
    cores: Count | None = None
    threads: Count | None = None
    accelerator: str | None = None


class Environment(msgspec.Struct, frozen=True):
    """``environment.json``: what a run was made with."""

    commit: str | None = None
    versions: dict[str, str] = {}
    machine: Machine = Machine()
    command: str = ""
    origins: dict[str, str] = {}
    """Digests of the weights that it started from, where a path named them."""
    compiled_kernels: bool | None = None
    """Whether they computed large layers; None without any, and in older runs."""


class NetworkTimes(msgspec.Struct, frozen=True):
    """Milliseconds for a batch, from images to logits: medians, in turns in one process."""

    batch_size: Positive
    dense: Time
    compact: Time
    linear: Time
    """Of the `--method baseline` network: a linear classifier on the same trunk."""
    dense_head: Time
    """Of the dense network's head alone."""
    compact_head: Time
    folded: bool = False
    """Whether batch normalisation was folded into the trunk's convolutions, as exports have it."""


class WholeNetwork(msgspec.Struct, frozen=True):
    """What ships, trunk and head: dense, compact, and a linear classifier on the same trunk."""

    bytes: tuple[Positive, Positive, Positive]
    """Of all weights: dense, compact, linear."""
    times: Annotated[tuple[NetworkTimes, ...], Meta(min_length=1)]


class Compaction(msgspec.Struct, frozen=True):
    """What a network was before it was made compact, and has become; in ``compact.json``."""

    threshold: Share
    multiply_adds: tuple[Positive, Count]
    """Of the head for one image: dense, compact."""
    milliseconds: tuple[Time, Time]
    """Of the head for a batch, measured in turns on one machine: dense, compact."""
    batch_size: Positive
    holdout: tuple[Percent, Percent] | None
    """Accuracy: as trained, compact."""
    test: tuple[Percent, Percent]
    fine_tuned: Count
    """Epochs."""
    notes: dict[str, str] = {}
    """What became of each layer, and why."""
    network: WholeNetwork | None = None
    """Trunk and head together; older files lack it."""


class CompactionPoint(msgspec.Struct, frozen=True):
    """A compact head at one threshold beside the dense head, which computes everything."""

    threshold: Share
    needed: Share
    """Share of the multiply-adds that lie between connected nodes."""
    carried_out: Duration
    """Share that the compact head carries out: more where larger blocks are faster."""
    dense_milliseconds: Time
    """Of the dense head for a batch, measured in turns with the compact one."""
    compact_milliseconds: Time
    accuracy: Percent


class CompactionCurve(msgspec.Struct, frozen=True):
    """``compaction.json``: accuracy and time as fewer connections stay, from all of them on."""

    points: tuple[CompactionPoint, ...] = ()
    reason: str = ""
    """Why there are no points."""
    images: str = ""
    """Which images accuracy was measured on, in words."""
    count: Count = 0
    batch_size: Positive = 256
    machine: Machine = Machine()
    network: WholeNetwork | None = None
    """Trunk and head together at the usual threshold; older files lack it."""


def read_document(path: Path, kind: type[Document]) -> Document:
    """The document in a file.

    Raises:
        RunError: it is missing or not what we wrote; the message names the file and the place.
    """
    content = content_of(path)
    digests.require_content(path, content)
    return parsed(content, path, kind)


def read_description(path: Path) -> Description:
    """``model.json`` or ``compact.json``, as this version of blockout writes them."""
    if read_document(path, dict[str, Any]).get("format") != FORMAT:
        raise RunError(f"{path} was written by another version of blockout")
    return read_document(path, Description)


def metrics_entry(line: bytes, path: Path, number: int) -> StepEntry | EpochEntry | WarningEntry:
    """A line of ``metrics.jsonl`` as what it is."""
    where = f" at line {number}"
    names = parsed(line, path, dict[str, Any], where)
    kind = EpochEntry if "epoch_loss" in names else StepEntry
    return parsed(line, path, WarningEntry if "warning" in names else kind, where)


def parsed(content: bytes, path: Path, kind: type[Document], where: str = "") -> Document:
    """The document that ``content`` of the file holds, or of a place in it."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged{where}: {error}") from error


def content_of(path: Path) -> bytes:
    """All of a file."""
    try:
        return files.read_bytes(path)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error


def as_json(document: Any) -> Any:
    """A document as plain dictionaries and lists."""
    return msgspec.to_builtins(document)
