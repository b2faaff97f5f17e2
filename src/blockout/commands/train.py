"""``blockout train``."""

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.flags import refuse, train_flags
from blockout.commands.report import write_report
from blockout.commands.runs import FIRST_FIVE, SKIP, one_line, require_training
from blockout.terminal import printable

if TYPE_CHECKING:
    from blockout.data import ImageData
    from blockout.runs import Run, TrainConfig


def run(arguments: list[str]) -> int:
    require_training("lightning.fabric")
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from blockout.data.config import DataError, UnreadableImage
    from blockout.runs import TrainConfig

    values = train_flags(arguments)
    try:
        config = TrainConfig.from_flat(values)
    except ValueError as error:
        refuse("blockout train", str(error))
    try:
        return _train(config)
    except UnreadableImage as error:
        raise DataError(f"{error}; {SKIP}") from error


def _train(config: "TrainConfig") -> int:
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from blockout.runs import Run
    from blockout.runs import folder as files
    from blockout.training import train
    from blockout.training.finetuning import phases

    config, images = _with_images(config)
    draw = Drawing(config.data.cache)
    for phase in phases(config, images):
        result = phase.folder_for(images) / files.RESULT
        finished = result.exists() and not phase.run.restart
        folder = train(phase, data=images, after_save=draw)
        if getattr(rank_zero_only, "rank", 0) > 0:
            continue
        if not finished or _is_to_be_drawn(folder):
            draw.now(folder)
        if config.finetunes and not phase.finetunes:
            print(f"fine-tuning starts from the finished run in {folder}")
            continue
        if finished:
            print(f"this run is finished already; --restart starts over. It is in {folder}")
            if note := new_images(images):
                print(note)
        _summarise(Run.open(folder))
    return 0


def _with_images(config: "TrainConfig") -> tuple["TrainConfig", "ImageData"]:
    """The images, without unreadable ones if these are few, and the config that says so."""
    from blockout.data.config import UnreadableImage
    from blockout.data.unreadable import require_few_unreadable
    from blockout.training import training_images

    say = partial(print, flush=True)
    try:
        return config, training_images(config, say)
    except UnreadableImage:
        if config.data.skip_corrupt:
            raise
        require_few_unreadable(config.data)
    config = replace(config, data=replace(config.data, skip_corrupt=True))
    return config, training_images(config, say)


def new_images(images: "ImageData") -> str:
    """Of images that a finished run has not seen, in words."""
    count = len(images.changes.new)
    if not count:
        return ""
    photographs, them = ("photograph", "it") if count == 1 else ("photographs", "them")
    return f"the folder has {count} new {photographs}: --restart trains on {them} too"


def _is_to_be_drawn(folder: Path) -> bool:
    """Whether a finished run has no page yet that shows how it ended."""
    from blockout.runs import Run
    from blockout.runs import folder as files
    from blockout.training.compaction import is_to_be_measured

    page, result = folder / files.REPORT, folder / files.RESULT
    if not page.exists() or page.stat().st_mtime_ns < result.stat().st_mtime_ns:
        return True
    return is_to_be_measured(Run.open(folder))


class Drawing:
    """Writes the page of a run; a failure is said once and never ends a training.

    While it trains, drawing takes at most a twentieth of the time: the page of a run with many
    short epochs is not renewed after each.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self.cache, self.complained = cache, False
        self.due = 0.0

    def __call__(self, folder: Path) -> None:
        """Draws the page if enough time has passed."""
        if time.perf_counter() >= self.due:
            began = time.perf_counter()
            self.now(folder)
            self.due = time.perf_counter() + 20 * (time.perf_counter() - began)

    def now(self, folder: Path) -> None:
        """Draws the page."""
        from blockout.runs import folder as files

        try:
            write_report([folder], folder / files.REPORT, cache=self.cache)
        except Exception as error:  # whatever it is, hours of training matter more than a picture
            if not self.complained:
                print(f"note: {files.REPORT} could not be drawn: {printable(one_line(error))}")
            self.complained = True


def worst_classes(run: "Run", most: int = 3) -> list[str]:
    """The classes it gets wrong most often, with how many test images they have."""
    from blockout.show.mistakes import weakest_classes

    weak = weakest_classes(run, most)
    return [f"{run.classes[w.number]} {w.accuracy:.0f} % of {w.count}" for w in weak]


def images_to_check(run: "Run") -> str:
    """How many test images have a copy in training, and how many labels look wrong, in words."""
    from blockout.show.verdict import copies_in_words

    checks = run.checks
    if checks is None:
        return ""
    count = checks.doubts_found
    images = "image looks" if count == 1 else "images look"
    doubts = f"{count} {images} mislabelled" if count else ""
    return "; ".join(text for text in (copies_in_words(checks), doubts) if text)


def _summarise(run: "Run") -> None:
    """How good it is, how its groups of classes compare with the truth, and where everything is."""
    from blockout.runs import folder as files
    from blockout.show.verdict import easy_holdout

    result = run.result
    assert result is not None
    top = f" (first five: {result.test.top5:.2f} %)" if len(run.classes) > FIRST_FIVE else ""
    print(
        f"test accuracy {result.test.accuracy:.2f} %{top} after {result.steps} steps in "
        f"{result.seconds / 60:.1f} minutes"
    )
    if beside := _beside(run):
        print(f"beside it: {', '.join(beside)}")
    if (tuning := result.tuning) is not None:
        kept = "; fine-tuning did not help, so this is still it" if tuning.kept == "start" else ""
        print(f"before fine-tuning: {tuning.test[0].accuracy:.2f} % ({tuning.start}){kept}")
    if distrust := easy_holdout(run):
        print(f"warning: {distrust}")
    if worst := worst_classes(run):
        print(printable(f"worst classes: {', '.join(worst)}"))
    if doubtful := images_to_check(run):
        print(f"{doubtful}: see {files.REPORT}, and {files.CHECKS_TABLE} for all of them")
    if groups := result.groups:
        print(
            f"learned class memberships in {groups.count} groups against the true groups: "
            f"adjusted Rand {groups.adjusted_rand:.2f}, normalised mutual information "
            f"{groups.nmi:.2f}, p = {groups.p_value:.3g} by permutation"
        )
        if groups.auc is not None:
            print(
                f"two classes of one true group are more alike than two of different ones with "
                f"probability {groups.auc:.2f} (chance 0.5), p = {groups.auc_p_value:.3g}"
            )
    _say_where(run)


def _beside(run: "Run") -> list[str]:
    """Other accuracies to compare the result with, in words."""
    from blockout.show.verdict import guessing

    result, beside = run.result, []
    assert result is not None
    if result.linear is not None:
        features = "the same features" if result.tuning is None else "features before fine-tuning"
        alone = "its linear classifier alone"
        which = alone if run.config.model.with_linear else f"a linear classifier on {features}"
        beside.append(f"{which} {result.linear.accuracy:.2f} %")
    if result.layers is not None:
        layers = "its other layers alone" if beside else "without its linear classifier"
        beside.append(f"{layers} {result.layers.accuracy:.2f} %")
    chance = guessing(result, len(run.classes))
    return beside if chance is None else [*beside, f"guessing {chance:.1f} %"]


def _say_where(run: "Run") -> None:
    """The files of a finished run, and what to do next."""
    from blockout.runs import folder as files

    folder = run.folder
    print(f"everything is in {folder}:")
    for names, what in (
        ((files.REPORT,), "all of it as a page to explore: open it in a browser"),
        ((files.RESULT, files.METRICS), "how well it does, and how it came there"),
        ((files.FINAL, files.BEST, files.MODEL), "the network: weights and description"),
        ((files.MEMBERSHIPS,), "the learned P of every set of nodes"),
        ((files.PREDICTIONS, files.THUMBNAILS), "what it said of test images, and some of them"),
        ((files.CHECKS_TABLE,), "images to look at: copies, and labels that look wrong"),
    ):
        if there := [name for name in names if (folder / name).exists()]:
            print(f"  {', '.join(there):<50}  {what}")
    board = f"; tensorboard --logdir {folder}" if (folder / files.EVENTS).exists() else ""
    shown = f"; blockout structure {folder}" if (folder / files.MEMBERSHIPS).exists() else ""
    print(f"next: blockout evaluate {folder}; blockout predict {folder} IMAGE{shown}{board}")
    tuned = run.result is not None and run.result.tuning is not None
    if run.config.model.freeze_trunk and not tuned:
        print(
            "the same command with --finetune also trains the end of the trunk, which takes longer "
            "and may do better; the hold-out decides"
        )
