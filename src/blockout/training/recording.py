"""A training run on images, recorded in its folder: the engine with everything around it.

That is: metrics, evaluation after each epoch, checkpoints, the best weights, warnings, progress for
people, and a stop between two steps when a signal asks for it. The order and augmentation of the
images follow from (seed, epoch), so a run that continues from a checkpoint is, on a CPU, bit for
bit the run that was never stopped.
"""

import math
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from blockout.data import ImageData, Split
from blockout.data.features import FeatureSplit
from blockout.guidance import Guide, GuideWarning
from blockout.layers import memberships_of
from blockout.models import Head, ImageClassifier
from blockout.models.config import LARGEST_SMALL_IMAGE, is_pretrained, origin_of
from blockout.models.heads import LINEAR
from blockout.runs import folder as files
from blockout.runs import logs
from blockout.runs.config import TrainConfig
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.errors import RunError, ToldElsewhere
from blockout.training import checkpoint, compiled, watch
from blockout.training.checks import write_checks
from blockout.training.engine import Diverged, Engine, Step, whole_tensor
from blockout.training.evaluation import (
    LARGEST_BATCH,
    Evaluation,
    average_statistics,
    evaluate,
    recalibrate,
)
from blockout.training.finetuning import Start, as_before, judge, seconds_per_image
from blockout.training.finish import write_results
from blockout.training.interrupts import SIGNALS, Interrupted, Pending
from blockout.training.loggers import Loggers
from blockout.training.processes import Processes
from blockout.training.progress import Narrator, duration
from blockout.training.reference import linear_reference

MOST_ROUNDS, MOST_ROUNDS_ON_FEATURES = 60, 20
"""Where there are more epochs, several are evaluated as one: a few images make epochs of a step,
and on kept features an epoch takes less time than evaluating and saving."""
WORTH_SAYING = 10
"""Seconds: nobody needs to be told of less before it starts."""
TRIED, TRIED_CHEAP = 8, 64
"""Images of the steps that are timed before the first: photographs that pass through a trunk, and
small images or features."""
SETTLED_PACE = 2
"""After so many lines of metrics the first, slow steps no longer spoil an estimate of the time."""


class Recording:
    """One run, from where its folder says it stands to its end."""

    narrator: Narrator

    def __init__(
        self,
        config: TrainConfig,
        engine: Engine,
        data: ImageData,
        folder: Path,
        after_save: Callable[[Path], object] | None = None,
        whole: ImageClassifier | None = None,
        start: Start | None = None,
    ) -> None:
        """``whole`` is what the engine's module is the end of, and is saved with it. ``start`` is
        what fine-tuning starts from."""
        self.config, self.engine, self.data, self.folder = config, engine, data, folder
        self.processes, self.after_save = engine.processes, after_save
        self.whole, self.start = whole, start
        self.batch_size, self.steps = config.batch_size, engine.recipe.steps
        self.joined_batch = min(self.batch_size, len(data.train))
        self.epoch_steps = data.train.batch_count(self.batch_size, train=True)
        on_features = isinstance(data.train, FeatureSplit)
        most = MOST_ROUNDS_ON_FEATURES if on_features else MOST_ROUNDS
        self.round_epochs = math.ceil(self.steps / self.epoch_steps / most)
        self.log_every = config.run.log_every or 1
        self.identity = config.identity(data)
        self.tally = checkpoint.restore(folder / files.CHECKPOINT, engine, self.identity)
        if start is not None and start.result.holdout is not None and not engine.done:
            self.tally.best_accuracy = start.result.holdout.accuracy
        self.tested, self.saved, self.logged_now = "", time.perf_counter(), 0
        self.pending, self.save_is_due, self.stop = Pending(), False, 0
        self.loggers: Loggers | None = None
        self.of_kernels: str | None = None

    def run(self) -> None:
        """Trains to the end, unless a signal stops it."""
        done, first = self.engine.done, self.processes.rank == 0
        on_first_process(self.processes, self._begin_records)
        self.narrator = Narrator(self.steps, done, self.joined_batch, silent=not first)
        with self.loggers.open() if self.loggers else nullcontext():
            with self.narrator.bar if self.narrator.live else nullcontext():
                self._introduce()
                with self.pending.noted(), warnings.catch_warnings():
                    warnings.simplefilter("ignore", GuideWarning)  # said in our own words
                    while self.engine.done < self.steps:
                        self._epoch(self.engine.done // self.epoch_steps)
            self._finish()

    def _epoch(self, epoch: int) -> None:
        """One pass over the training images, or the rest of one."""
        engine, tally = self.engine, self.tally
        batches = self.data.train.batches(
            self.batch_size,
            train=True,
            seed=engine.recipe.seed,
            epoch=epoch,
            start=engine.done % self.epoch_steps,
            rank=self.processes.rank,
            world=self.processes.world,
        )
        engine.train()
        began = time.perf_counter()
        for x, y in batches:
            step = self.step(x, y)
            if engine.done % self.log_every == 0:
                self.log(step.rate)
            self.narrator.passed(engine.done)
            if engine.done % self.epoch_steps == 0 or engine.done == self.steps:
                break  # what is due now comes with the end of the epoch
            if self.save_is_due or self.stop:
                tally.seconds += time.perf_counter() - began
                began = time.perf_counter()
                with self.narrator.pause():
                    self._save()
                self._obey()
        tally.seconds += time.perf_counter() - began
        with self.narrator.pause():
            if (epoch + 1) % self.round_epochs == 0 or engine.done == self.steps:
                self._end_round(epoch)
            elif self.save_is_due or self.stop:
                self._save()
        self._obey()

    def step(self, x: Tensor, y: Tensor) -> Step:
        """One step of the engine, counted. The processes also agree on stopping and on saving."""
        engine, tally = self.engine, self.tally
        try:
            step = engine.step(x, y, examples=self.joined_batch, tell=self._wishes)
        except Diverged as error:
            raise RunError(
                f"{error.fact}; try a lower --lr or --membership-scale, a longer --warmup, or "
                "--precision 32-true, in a new --run folder or with --restart"
            ) from error
        save, *signals = step.told
        self.save_is_due = save > 0
        self.stop = max((n for n, told in zip(SIGNALS, signals, strict=True) if told), default=0)
        tally.unlogged.append(step.loss)
        tally.loss_sum += step.loss * step.examples
        tally.hits += step.hits
        tally.seen += step.examples
        if step.settles and engine.guide is not None:
            self._tell_of(engine.guide)
        return step

    def _tell_of(self, guide: Guide) -> None:
        """What the guide has done; that it gave up is a warning, which the run keeps."""
        if guide.whole:
            self._say_once({"left whole": f"the guide {guide.summary()}"})
        else:
            self.narrator.say(f"step {self.engine.done}: the guide {guide.summary()}")

    def _wishes(self) -> list[float]:
        """What this process asks of all: a checkpoint (the first only), or to obey a signal."""
        due = time.perf_counter() - self.saved > 60 * self.config.run.checkpoint_minutes
        return [float(due and self.processes.rank == 0), *self.pending.flags()]

    def log(self, rate: float) -> None:
        """Writes a line of metrics and one of memberships, and shows the progress."""
        done, tally = self.engine.done, self.tally
        speed = self.narrator.measure_speed(done)
        epoch, loss = done / self.epoch_steps, sum(tally.unlogged) / len(tally.unlogged)
        accuracy = 100 * tally.hits / tally.seen
        self._write(
            {
                "step": done,
                "epoch": round(epoch, 4),
                "loss": loss,
                "train_accuracy": accuracy,
                "lr": rate,
                "images_per_second": round(speed, 1),
            }
        )
        self._write_memberships()
        self._warn()
        self.narrator.step(done, math.ceil(done / self.epoch_steps), loss, accuracy, self.tested)
        tally.unlogged.clear()
        self.logged_now += 1
        if self.logged_now == SETTLED_PACE and speed:
            left = (self.steps - done) * self.joined_batch / speed
            self.narrator.say(f"about {duration(left)} to go at {speed:.0f} images/s")

    def _end_round(self, epoch: int) -> None:
        """After an epoch or a few short ones: evaluates, keeps the best weights, and saves."""
        done, tally, began = self.engine.done, self.tally, time.perf_counter()
        loss, accuracy = tally.loss_sum / tally.seen, 100 * tally.hits / tally.seen
        entry = {"step": done, "epoch": epoch + 1, "epoch_loss": loss, "train_accuracy": accuracy}
        self._recalibrate()
        parts = {"holdout": self.data.holdout, "test": self.data.test}
        if self.start is not None:
            del parts["test"]  # as long as an epoch: it comes in the end
        tests = {name: self._evaluate(split) for name, split in parts.items() if len(split)}
        for name, result in tests.items():
            entry |= {f"{name}_{k}": v for k, v in result.numbers().items()}
        if "holdout" in tests and tests["holdout"].accuracy > tally.best_accuracy:
            tally.best_accuracy, tally.best_step = tests["holdout"].accuracy, done
            self._write_weights(files.BEST)
        if "holdout" in tests and self.engine.guide is not None:
            self._ask(self.engine.guide, tests["holdout"].accuracy)
        tally.loss_sum, tally.hits, tally.seen, tally.train_accuracy = 0.0, 0, 0, accuracy
        tally.seconds += time.perf_counter() - began
        self._write(entry)
        self.tested = "".join(f"  {name} {r.accuracy:.1f} %" for name, r in tests.items())
        speed = f"  {self.narrator.speed:.0f} images/s" if self.narrator.speed else ""
        self.narrator.say(
            f"epoch {epoch + 1}: loss {loss:.3f}  train {accuracy:.1f} %{self.tested}{speed}"
        )
        self._warn()
        self._save()

    def _ask(self, guide: Guide, accuracy: float) -> None:
        """The guide learns what narrowing has cost so far."""
        before = guide.widened_at
        guide.hear(accuracy, len(self.data.holdout))
        if guide.widened_at != before:
            self.narrator.say(f"step {self.engine.done}: the guide {guide.summary()}")

    def _finish(self) -> None:
        weights, p, final = self._weights(), self._probabilities(), {}
        if self.start is None:
            final["test"] = self._evaluate(self.data.test)
            if len(self.data.holdout):
                final["holdout"] = self._evaluate(self.data.holdout)
            final |= self._beside()
        on_first_process(self.processes, lambda: self._leave(weights, p, final))

    def _beside(self) -> dict[str, Evaluation]:
        """The test with a linear classifier on the same features, and with the layers beside it.

        The linear classifier is the one in the head, or one of its own.
        """
        learned = self.engine.result
        if not isinstance(learned, ImageClassifier) or not isinstance(learned.head, Head):
            return {}
        if not learned.head.has_linear:
            trunk = None if self.whole is None else self.whole.trunk
            found = linear_reference(self.config, self.data, self.steps, trunk)
            return {} if found is None else {"linear": found}
        alone = {"layers": learned.head.without_linear()}
        if self.config.leads or self.config.model.freeze_trunk:  # its features are its own
            alone["linear"] = learned.head.get_submodule(LINEAR)
        return {
            name: evaluate(
                ImageClassifier(learned.trunk, head), self.data.test, processes=self.processes
            )
            for name, head in alone.items()
        }

    def _leave(
        self, weights: dict[str, Tensor], p: dict[str, Tensor], final: dict[str, Evaluation]
    ) -> None:
        """Writes what a finished run leaves behind; after fine-tuning, the better of two."""
        network, beside, looked_at = self._network(), {}, self.data
        if self.start is not None:
            assert isinstance(network, ImageClassifier)
            about = (network, self.data, self.config.data, self.narrator.say)
            judged = judge(self.start, weights, *about)
            self.narrator.say(str(judged))
            looked_at = as_before(self.start, *about)
            weights, final = dict(judged.weights), judged.scores
            beside = {"linear": self.start.result.linear, "tuning": judged.tuning}
        pretrained = is_pretrained(self.config.model.trunk)
        self._say_once(watch.verdict(final, self.tally.train_accuracy, pretrained=pretrained))
        if self.config.model.learned:
            self._say_once(watch.starved(p, self.data.classes))
        files.write_tensors(self.folder / files.FINAL, weights)
        write_checks(self.folder, looked_at, final, self.narrator.say)
        done = (p, self.tally, self.engine.done)
        write_results(self.folder, self.config, network, self.data, final, *done, beside)

    def _network(self) -> nn.Module:
        """The network that the run is for: with its trunk."""
        learned = self.engine.result
        if self.whole is None:
            return learned
        return ImageClassifier(self.whole.trunk, learned.get_submodule("head"), freeze_trunk=True)

    # --- parts of the above ---------------------------------------------------------------------

    def _begin_records(self) -> None:
        counts = self.tally.logged
        for name in files.LOGS:
            count = counts.get(name, 0) if counts else None
            logs.rewind(self.folder / name, count, self.engine.done)
        now, told = compiled.in_use(self.engine.module)
        before = compiled.began_with(self.folder) if self.engine.done else None
        self.of_kernels = compiled.note(before, now, told)
        found = environment(self.config.origins(), now)
        files.write_json(self.folder / files.ENVIRONMENT, as_json(found))
        self.loggers = Loggers(self.config.run, self.folder, lambda text: self.narrator.say(text))

    def _introduce(self) -> None:
        d, say = self.data, self.narrator.say
        start = f", from step {self.engine.done}" if self.engine.done else ""
        say(
            f"{d.name}: {len(d.classes)} classes, {len(d.train)} training images, "
            f"{len(d.holdout)} held out, {len(d.test)} for the test"
        )
        for note in (*d.notes, *watch.doubts(d, self.config.data.holdout), self.of_kernels):
            if note is not None:
                say(f"note: {note}")
        say(described(self.config, d.why_trunk))
        if self.start is not None:
            parts = ", ".join(f"trunk.{stage}" for stage in self.start.stages)
            say(f"fine-tuning of {self.start.name}: {parts} learn with the head")
        self._estimate()
        say(f"{self.steps} steps of {self.joined_batch} images{start}; results in {self.folder}")

    def _estimate(self) -> None:
        """Says before the first step how long all of them take."""
        train, size = self.data.train, self.data.image_size
        if self.processes.world > 1 or self.engine.done == self.steps:
            return
        only_head = self.start is None and isinstance(train, FeatureSplit)
        cheap = only_head or size <= LARGEST_SMALL_IMAGE
        tried = min(TRIED_CHEAP, self.joined_batch) if cheap else TRIED
        left = (self.steps - self.engine.done) * self.joined_batch
        try:
            seconds = left * seconds_per_image(self.engine.module, train, tried)
        except ValueError:  # of memberships that are not finite; the first step says so better
            return
        if self.start is not None or seconds > WORTH_SAYING:
            self.narrator.say(f"about {duration(seconds)} on this machine, as it is now")

    def _evaluate(self, split: Split) -> Evaluation:
        size = min(self.batch_size, LARGEST_BATCH)
        return evaluate(self.engine.predictor, split, batch_size=size, processes=self.processes)

    def _recalibrate(self) -> None:
        o, engine = self.config.optimisation, self.engine
        if o.recalibrate or engine.averaged is not None:
            recalibrate(
                engine.result,
                self.data.train,
                batch_size=self.batch_size,
                seed=o.seed,
                processes=self.processes,
            )
        average_statistics(engine.result, self.processes)

    def _probabilities(self) -> dict[str, Tensor]:
        found = memberships_of(self.engine.result)
        return {name: whole_tensor(m.probabilities.detach()).cpu() for name, m in found.items()}

    def _write(self, entry: dict[str, Any]) -> None:
        if self.processes.rank == 0:
            self._append(files.METRICS, entry)
            numbers = {k: v for k, v in entry.items() if k != "step" and not isinstance(v, str)}
            if self.loggers is not None:
                self.loggers.log(numbers, entry["step"])

    def _write_memberships(self) -> None:
        p = self._probabilities()
        if p and self.processes.rank == 0:
            entry = {name: watch.distribution(values) for name, values in p.items()}
            self._append(files.DISTRIBUTIONS, {"step": self.engine.done, **entry})

    def _append(self, name: str, entry: dict[str, Any]) -> None:
        logs.append(self.folder / name, entry)
        self.tally.logged[name] = self.tally.logged.get(name, 0) + 1

    def _weights(self) -> dict[str, Tensor]:
        """Of the whole network, gathered by all processes; whole on the first."""
        weights = self.engine.weights()
        if self.whole is None:
            return weights
        whole = self.whole.state_dict()
        return whole | {name: value for name, value in weights.items() if name in whole}

    def _write_weights(self, name: str) -> None:
        weights = self._weights()
        on_first_process(self.processes, lambda: files.write_tensors(self.folder / name, weights))

    def _warn(self) -> None:
        """Of memberships that learn. A guide decides them itself, and waits for long with P = 1."""
        if not self.config.guided:
            self._say_once(watch.collapses(self._probabilities(), self.data.classes))

    def _say_once(self, warnings: dict[str, str]) -> None:
        """Says and writes each of these warnings (by key) that was not said before."""
        for key, text in warnings.items():
            if key not in self.tally.said:
                self.tally.said.append(key)
                self.narrator.say(f"warning: {text}")
                self._write({"step": self.engine.done, "warning": text})

    def _save(self) -> None:
        state = checkpoint.state_of(self.engine, self.tally, self.identity)
        on_first_process(self.processes, lambda: self._write_checkpoint(state))
        if self.after_save is not None and self.processes.rank == 0 and not self.stop:
            self.after_save(self.folder)
        self.saved = time.perf_counter()

    def _write_checkpoint(self, state: dict[str, Any]) -> None:
        """The logs first: the checkpoint counts on what they hold."""
        for name in files.LOGS:
            logs.seal(self.folder / name)
        files.write_checkpoint(self.folder / files.CHECKPOINT, state)

    def _obey(self) -> None:
        """Stops if a signal asked for it; the checkpoint has just been written."""
        if self.stop:
            raise Interrupted(
                f"stopped at step {self.engine.done} of {self.steps}; the same command continues",
                self.stop,
            )


def described(config: TrainConfig, why_trunk: str = "") -> str:
    """The network and what it sees, in one line; ``why_trunk`` it was chosen, if it was."""
    m, d = config.model, config.data
    learns = "frozen" if m.freeze_trunk else "tuned" if is_pretrained(m.trunk) else ""
    layers = "" if m.method == "baseline" else f", {m.nodes} nodes"
    clusters = f" in {m.clusters} clusters" if m.method == "blockout" else ""
    clusters += " and a linear classifier beside them" if m.with_linear else ""
    if config.leads:
        learns = f"{learns}, led by a linear classifier".removeprefix(", ")
    seen = "as they are" if not d.augment else "mirrored and shifted"
    if config.finetunes:
        learns = f"its last {config.optimisation.finetune} stages tuned"
    if m.freeze_trunk and d.views:
        seen = f"{d.views} views of each, once"
    elif d.stream and d.augment:
        seen = "mirrored and cropped"
    start = ", ".join(text for text in (origin_of(m.trunk), learns) if text)
    start = f"chosen because {why_trunk}; {start}" if why_trunk else start
    return (
        f"images of {d.image_size} px ({seen}), trunk {m.trunk} ({start}), head {m.method}"
        f"{layers}{clusters}"
    )


def on_first_process(processes: Processes, work: Callable[[], object]) -> None:
    """Does ``work`` on the first process only. If it fails there, every process raises an error.

    Otherwise the others would wait forever for a process that is gone.
    """
    problem = None
    if processes.rank == 0:
        try:
            work()
        except Exception as error:
            known = isinstance(error, RunError)
            name = "" if known else f"the first process failed: {type(error).__name__}: "
            processes.broadcast(f"{name}{error}")
            raise
    problem = processes.broadcast(problem)
    if problem is not None:
        raise ToldElsewhere(problem)
