"""Training, narrated: Algorithm 1 of the paper inside a loop that survives interruption.

Chance is a function of (seed, step, process): before each step torch's generator and those of the
memberships are seeded from it, and order and augmentation of the images follow from (seed, epoch).
So a run that continues from a checkpoint is, on a CPU, bit for bit the run that was never stopped.

The risk of a step is the sum over the images of the joined batch by their number, however they are
dealt out to processes (``--devices``) and parts (``--accumulate``), and all of these see the same
drawn architecture. Only batch normalisation makes a difference then: it takes its statistics from
the images of one part on one process.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Fabric
from torch import Tensor, nn
from torch.nn import functional as F

from blockout.data import ImageData
from blockout.guidance import Guide
from blockout.layers import DropConnectLinear, memberships_of
from blockout.models import build_model
from blockout.optimisation import parameter_groups
from blockout.sampling import seed_draws
from blockout.training import checkpoint, files, watch
from blockout.training.assembly import make_guide, moving_average, require_divisible
from blockout.training.config import TrainConfig
from blockout.training.evaluation import (
    LARGEST_BATCH,
    Evaluation,
    average_statistics,
    evaluate,
    recalibrate,
)
from blockout.training.fabric import launch, make_fabric, on_first_process
from blockout.training.finish import initial_weights, write_results
from blockout.training.images import load_images
from blockout.training.interrupts import SIGNALS, Interrupted, Pending
from blockout.training.progress import Narrator
from blockout.training.records import environment


def train(
    config: TrainConfig | None = None,
    *,
    model: nn.Module | None = None,
    trunk: nn.Module | None = None,
    data: ImageData | None = None,
    after_save: Callable[[Path], object] | None = None,
) -> Path:
    """Trains as the config says and returns the run folder; continues what was interrupted.

    A model, a trunk or data of one's own are no part of the config: who changes them names another
    folder, or says ``restart``. torch's random state is left as it was.

    Args:
        config: everything that decides the run.
        model: a model of one's own, images to logits, in place of the configured one.
        trunk: a trunk of one's own below the configured head.
        data: images of one's own in place of ``config.data``.
        after_save: called on the first process with the run folder after each checkpoint, of an
            epoch's end or within one, to show how far it has come.
    """
    config = config or TrainConfig()
    folder = config.folder
    fabric = make_fabric(config.compute, config.run, folder)
    launch(fabric)
    on_first_process(fabric, lambda: files.open_folder(
        folder, config.identity(), config.flat(), config.run.restart
    ))  # fmt: skip
    if fabric.broadcast((folder / files.RESULT).exists()):
        return folder
    data = data or load_images(config)
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(config.optimisation.seed)
        if model is None:
            model = build_model(
                config.model, classes=len(data.classes), data_name=data.name,
                image_size=data.image_size, trunk=trunk,
            )  # fmt: skip
        training = Training(config, fabric, model, data, folder, after_save)
        try:
            training.run()
        finally:
            if training.guide is not None:
                training.guide.close()
    return folder


class Training:
    """One run: the parts that the loop works with, and the loop."""

    narrator: Narrator

    def __init__(
        self,
        config: TrainConfig,
        fabric: Fabric,
        model: nn.Module,
        data: ImageData,
        folder: Path,
        after_save: Callable[[Path], object] | None = None,
    ) -> None:
        self.config, self.fabric, self.data, self.folder = config, fabric, data, folder
        self.after_save = after_save
        o = config.optimisation
        self.batch_size = config.batch_size
        require_divisible(self.batch_size, fabric.world_size * o.accumulate)
        if config.run.init_from is not None:
            initial_weights(model, config.run.init_from, fabric.print)
        self.module = model.to(memory_format=torch.channels_last)  # pyright: ignore
        self.model = fabric.setup_module(self.module)
        self.averaged = moving_average(config, self.module, fabric.device)
        groups = parameter_groups(
            self.module, config.peak_rate, o.weight_decay, membership_scale=o.membership_scale
        )
        self.optimizer = torch.optim.SGD(groups, momentum=o.momentum, nesterov=True)
        self.peak_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.stepper: Any = fabric.setup_optimizers(self.optimizer)
        self.epoch_steps = data.train.batch_count(self.batch_size, train=True)
        self.steps = o.steps or config.epochs * self.epoch_steps
        self.log_every = config.run.log_every or max(min(50, self.steps // 40), 1)
        self.joined_batch = min(self.batch_size, len(data.train))
        self.guide = make_guide(config, self.module, data, self.steps)
        self.identity = {**config.identity(), "images": data.fingerprint()}
        self.position = checkpoint.restore(
            folder / files.CHECKPOINT, self.module, self.optimizer, self.identity,
            self.averaged, self.guide,
        )  # fmt: skip
        exact = config.compute.precision.startswith("64")
        # Fabric gives outputs in torch's default dtype, which its context makes float64.
        self._precise = fabric.autocast if exact else nullcontext
        weights, dtype = data.class_weights, torch.float64 if exact else torch.float32
        self.class_weights = None if weights is None else weights.to(fabric.device, dtype)
        self.masks_weights = any(isinstance(m, DropConnectLinear) for m in self.module.modules())
        self.tested, self.saved = "", time.perf_counter()
        self.pending = Pending()
        self.save_is_due, self.stop = False, 0

    def run(self) -> None:
        """From where the run stands to its end."""
        position, first = self.position, self.fabric.global_rank == 0
        on_first_process(self.fabric, self._begin_records)
        with Narrator(self.steps, position.step, self.batch_size, not first) as self.narrator:
            self._introduce()
            with self.pending.noted():
                while position.step < self.steps:
                    self._epoch(position.step // self.epoch_steps)
            self._finish()

    def _epoch(self, epoch: int) -> None:
        """One pass over the training images, or the rest of one."""
        o, position, fabric = self.config.optimisation, self.position, self.fabric
        batches = self.data.train.batches(
            self.batch_size, train=True, seed=o.seed, epoch=epoch,
            start=position.step % self.epoch_steps,
            rank=fabric.global_rank, world=fabric.world_size,
        )  # fmt: skip
        self.model.train()
        began = time.perf_counter()
        for x, y in batches:
            position.unlogged.append(self._step(x, y))
            if position.step % self.log_every == 0:
                self._log(position.unlogged)
            if position.step % self.epoch_steps == 0 or position.step == self.steps:
                break  # what is due now comes with the end of the epoch
            if self.save_is_due or self.stop:
                position.seconds += time.perf_counter() - began
                began = time.perf_counter()
                self._save()
                self._obey()
        position.seconds += time.perf_counter() - began
        self._end_epoch(epoch)
        self._obey()

    def _step(self, x: Tensor, y: Tensor) -> float:
        """One iteration of Algorithm 1; returns the mean loss of the joined batch."""
        o, position, fabric = self.config.optimisation, self.position, self.fabric
        self.rate = self._set_rates(position.step)
        x, y = x.to(fabric.device, non_blocking=True), y.to(fabric.device, non_blocking=True)
        parts = list(zip(x.chunk(o.accumulate), y.chunk(o.accumulate), strict=True))
        loss: Any = 0.0
        hits: Any = 0
        for part, (x_part, y_part) in enumerate(parts):
            with fabric.no_backward_sync(self.model, enabled=part < len(parts) - 1):
                # Forward: C_j ~ B(1, P_j) and W_j = W~_j * C_j C_{j-1}^T / k happen inside the
                # layers; then predictions and empirical risk.
                self._seed(part)
                logits = self._logits(x_part)
                risk = self._risk(logits, y_part)
                # Backward: gradients by Eqs. 8 and 9.
                fabric.backward(risk)
            loss = loss + risk.detach()
            hits = hits + (logits.detach().argmax(1) == y_part).sum()
        value = self._join(loss, hits)
        watch.require_finite(value, position.step, self.rate)
        # Update W~_j and P_j, each at its own rate.
        self.stepper.step()
        self.stepper.zero_grad()
        if self.guide is not None:
            self._guide_memberships(self.guide, y)
        if self.averaged is not None:
            self.averaged.update_parameters(self.module)
        position.step += 1
        position.loss_sum += value * self.joined_batch
        position.seen += self.joined_batch
        return value

    def _guide_memberships(self, guide: Guide, y: Tensor) -> None:
        """Beyond the paper: budget, affinity, settling."""
        before = guide.fixed
        guide.step(y)
        if guide.fixed > before:
            what = "structure is" if guide.settled else "hidden nodes are"
            self.narrator.say(f"step {self.position.step + 1}: the {what} settled")
            if self.averaged is not None:  # an average over both sides of this would be neither
                self.averaged.module.load_state_dict(self.module.state_dict())

    def _seed(self, part: int) -> None:
        """All chance of a part of this step. Draws are those of the step, on every process alike;
        Dropout differs for every part and process. DropConnect's masks are draws, but follow the
        same generator as Dropout, which is then alike everywhere too."""
        compute, position = self.config.compute, self.position
        rank, seed = self.fabric.global_rank, self.config.optimisation.seed
        own = rank if compute.own_draws else 0
        alike = self.masks_weights
        torch.manual_seed(_mixed(seed, position.step, *((own, 0) if alike else (rank, part))))
        seed_draws(self.module, _mixed(seed, position.step, own, 1 << 32))

    def _logits(self, x: Tensor) -> Tensor:
        try:
            with self._precise():
                return self.model(x)
        except ValueError:  # Memberships refuse to draw from what is no number
            for name, memberships in memberships_of(self.module).items():
                if not checkpoint.whole(memberships.logits).isfinite().all():
                    what = f"the logits of {name} are not finite"
                    raise watch.diverged(what, self.position.step, self.rate) from None
            raise

    def _risk(self, logits: Tensor, y: Tensor) -> Tensor:
        """This part's share of the mean over the joined batch, times the number of processes, since
        gradients are averaged over processes. Class weights are 1 on average over the training
        images, so the divisor is the number of images with them as well."""
        total = F.cross_entropy(
            logits, y, self.class_weights, reduction="sum",
            label_smoothing=self.config.optimisation.label_smoothing,
        )  # fmt: skip
        return total * (self.fabric.world_size / self.joined_batch)

    def _join(self, loss: Tensor, hits: Tensor) -> float:
        """What all processes have seen in this step: the one exchange, and the one wait for the
        device, of a step beside the gradients. They agree on stopping and on checkpoints as well.
        """
        due = time.perf_counter() - self.saved > 60 * self.config.run.checkpoint_minutes
        flags = torch.tensor([due and self.fabric.global_rank == 0, *self.pending.flags()])
        seen = torch.cat([torch.stack([loss, hits.to(loss)]), flags.to(loss)])
        joined: Any = self.fabric.all_reduce(seen)
        value, correct, save, *signals = joined.tolist()
        self.save_is_due = save > 0
        self.stop = max((n for n, told in zip(SIGNALS, signals, strict=True) if told), default=0)
        self.position.hits += round(correct * self.fabric.world_size)
        return value

    def _set_rates(self, step: int) -> float:
        """One cycle, up to the peak and down to nothing along cosines; returns the main rate."""
        rise = max(self.config.optimisation.warmup * self.steps, 1)
        share = step / rise if step < rise else 1 - (step - rise) / max(self.steps - rise, 1)
        factor = max((1 - math.cos(math.pi * share)) / 2, 0.04 if step < rise else 0)
        for group, peak in zip(self.optimizer.param_groups, self.peak_rates, strict=True):
            group["lr"] = peak * factor
        return self.optimizer.param_groups[0]["lr"]

    def _log(self, losses: list[float]) -> None:
        position = self.position
        speed = self.narrator.measure_speed(position.step)
        epoch, loss = position.step / self.epoch_steps, sum(losses) / len(losses)
        accuracy = 100 * position.hits / position.seen
        self._write({
            "step": position.step, "epoch": round(epoch, 4), "loss": loss,
            "train_accuracy": accuracy, "lr": self.rate,
            "images_per_second": round(speed, 1),
        })  # fmt: skip
        self._write_memberships()
        self._warn()
        self.narrator.step(position.step, int(epoch) + 1, loss, accuracy, self.tested)
        losses.clear()

    def _end_epoch(self, epoch: int) -> None:
        """Evaluation, what it says of collapses, the best weights, and a checkpoint."""
        position, began = self.position, time.perf_counter()
        loss, accuracy = position.loss_sum / position.seen, 100 * position.hits / position.seen
        entry: dict[str, Any] = {"step": position.step, "epoch": epoch + 1, "epoch_loss": loss,
                                 "train_accuracy": accuracy}  # fmt: skip
        self._recalibrate()
        parts = {"holdout": self.data.holdout, "test": self.data.test}
        tests = {name: self._evaluate(split) for name, split in parts.items() if len(split)}
        for name, result in tests.items():
            entry |= {f"{name}_{k}": v for k, v in result.numbers().items()}
        if "holdout" in tests and tests["holdout"].accuracy > position.best_accuracy:
            position.best_accuracy, position.best_step = tests["holdout"].accuracy, position.step
            self._write_weights(files.BEST)
        position.loss_sum, position.hits, position.seen = 0.0, 0, 0
        position.seconds += time.perf_counter() - began
        self._write(entry)
        self.tested = "".join(f"  {name} {r.accuracy:.1f} %" for name, r in tests.items())
        speed = self.narrator.speed
        self.narrator.say(
            f"epoch {epoch + 1}: loss {loss:.3f}  train {accuracy:.1f} %{self.tested}"
            + (f"  {speed:.0f} images/s" if speed else "")
        )
        self._warn()
        self._save()

    def _finish(self) -> None:
        final = {"test": self._evaluate(self.data.test)}
        if len(self.data.holdout):
            final["holdout"] = self._evaluate(self.data.holdout)
        self._write_weights(files.FINAL)
        p = self._probabilities()
        on_first_process(self.fabric, lambda: write_results(
            self.folder, self.config, self._evaluated(), self.data, final, p, self.position
        ))  # fmt: skip

    # --- parts of the above ---------------------------------------------------------------------

    def _begin_records(self) -> None:
        for name in (files.METRICS, files.DISTRIBUTIONS):
            files.forget_after(self.folder / name, self.position.step)
        files.write_json(self.folder / files.ENVIRONMENT, environment())

    def _introduce(self) -> None:
        d, say = self.data, self.narrator.say
        start = f", from step {self.position.step}" if self.position.step else ""
        say(f"{d.name}: {len(d.classes)} classes, {len(d.train)} training images, "
            f"{len(d.holdout)} held out, {len(d.test)} for the test")  # fmt: skip
        for note in d.notes:
            say(f"note: {note}")
        say(f"{self.steps} steps of {self.batch_size} images{start}; "
            f"results in {self.folder}")  # fmt: skip

    def _evaluated(self) -> nn.Module:
        """The weights that are evaluated and saved: the moving average where there is one."""
        return self.module if self.averaged is None else self.averaged.module

    def _evaluate(self, split: Any) -> Evaluation:
        fabric = self.fabric
        return evaluate(
            self.model if self.averaged is None else self.averaged.module, split,
            batch_size=min(self.batch_size, LARGEST_BATCH), device=fabric.device,
            rank=fabric.global_rank, world=fabric.world_size,
            gather=self._gather if fabric.world_size > 1 else None,
        )  # fmt: skip

    def _gather(self, part: Tensor) -> Tensor:
        """(world, n, ...) of all processes' parts: a sum in which each fills its own place."""
        places = part.new_zeros(self.fabric.world_size, *part.shape)
        places[self.fabric.global_rank] = part
        gathered: Any = self.fabric.all_reduce(places, reduce_op="sum")
        return gathered

    def _recalibrate(self) -> None:
        o, fabric, model = self.config.optimisation, self.fabric, self._evaluated()
        if o.recalibrate or self.averaged is not None:
            recalibrate(
                model, self.data.train, batch_size=self.batch_size, seed=o.seed,
                device=fabric.device, rank=fabric.global_rank, world=fabric.world_size,
            )  # fmt: skip
        if fabric.world_size > 1:
            average_statistics(model, partial(fabric.all_reduce, reduce_op="mean"))  # pyright: ignore

    def _probabilities(self) -> dict[str, Tensor]:
        found = memberships_of(self._evaluated())
        return {name: checkpoint.whole(m.probabilities.detach()).cpu() for name, m in found.items()}

    def _write(self, entry: dict[str, Any]) -> None:
        if self.fabric.global_rank == 0:
            files.append_line(self.folder / files.METRICS, entry)
            numbers = {k: v for k, v in entry.items() if k != "step" and not isinstance(v, str)}
            self.fabric.log_dict(numbers, entry["step"])

    def _write_memberships(self) -> None:
        p = self._probabilities()
        if p and self.fabric.global_rank == 0:
            entry = {name: watch.distribution(values) for name, values in p.items()}
            files.append_line(
                self.folder / files.DISTRIBUTIONS, {"step": self.position.step, **entry}
            )

    def _write_weights(self, name: str) -> None:
        weights = checkpoint.whole_weights(self._evaluated())
        on_first_process(self.fabric, lambda: files.write_tensors(self.folder / name, weights))

    def _warn(self) -> None:
        for key, text in watch.collapses(self._probabilities(), self.data.classes).items():
            if key not in self.position.said:
                self.position.said.append(key)
                self.narrator.say(f"warning: {text}")
                self._write({"step": self.position.step, "warning": text})

    def _save(self) -> None:
        state = checkpoint.state_of(
            self.module, self.optimizer, self.position, self.identity,
            self.averaged, self.guide,
        )  # fmt: skip
        path = self.folder / files.CHECKPOINT
        on_first_process(self.fabric, lambda: files.write_checkpoint(path, state))
        if self.after_save is not None and self.fabric.global_rank == 0 and not self.stop:
            self.after_save(self.folder)
        self.narrator.pause()
        self.saved = time.perf_counter()

    def _obey(self) -> None:
        """Stops where a signal has asked for it; the checkpoint has just been written."""
        if self.stop:
            raise Interrupted(
                f"stopped at step {self.position.step} of {self.steps}; the same command continues",
                self.stop,
            )


def _mixed(*numbers: int) -> int:
    """A seed from several numbers; neighbours give unrelated ones."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1
