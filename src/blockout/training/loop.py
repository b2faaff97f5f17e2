"""Training, narrated: Algorithm 1 of the paper inside a loop that survives interruption.

Chance is a function of (seed, step, process): before each step torch's generator and those of the
memberships are seeded from it, and order and augmentation of the images follow from (seed, epoch).
So a run that continues from a checkpoint is, on a CPU, bit for bit the run that was never stopped.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from blockout.data import ImageData, load
from blockout.layers import memberships_of
from blockout.models import build_model
from blockout.optimisation import parameter_groups
from blockout.sampling import seed_draws
from blockout.training import checkpoint, files, watch
from blockout.training.config import TrainConfig
from blockout.training.evaluation import Evaluation, evaluate, recalibrate
from blockout.training.fabric import make_fabric
from blockout.training.finish import initial_weights, write_results
from blockout.training.progress import Narrator
from blockout.training.records import environment


class Interrupted(RuntimeError):
    """Stopped by a signal at the end of a step, after a checkpoint."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


def train(
    config: TrainConfig | None = None,
    *,
    model: nn.Module | None = None,
    trunk: nn.Module | None = None,
    data: ImageData | None = None,
) -> Path:
    """Trains as the config says and returns the run folder; continues what was interrupted.

    Args:
        config: everything that decides the run.
        model: a model of one's own, images to logits, in place of the configured one.
        trunk: a trunk of one's own below the configured head.
        data: images of one's own in place of ``config.data``.
    """
    config = config or TrainConfig()
    folder = config.folder
    fabric = make_fabric(config.compute, config.run, folder)
    if fabric.global_rank == 0:
        files.open_folder(folder, config.identity(), config.flat(), config.run.restart)
    if (folder / files.RESULT).exists():
        return folder
    fabric.launch()
    data = data or load(config.data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.optimisation.seed)
        if model is None:
            model = build_model(
                config.model, classes=len(data.classes), data_name=data.name,
                image_size=data.image_size, trunk=trunk,
            )  # fmt: skip
        Training(config, fabric, model, data, folder).run()
    return folder


class Training:
    """One run: the parts that the loop works with, and the loop."""

    def __init__(
        self, config: TrainConfig, fabric: Fabric, model: nn.Module, data: ImageData, folder: Path
    ) -> None:
        self.config, self.fabric, self.data, self.folder = config, fabric, data, folder
        o = config.optimisation
        self._require_divisible(o.batch_size, o.accumulate)
        if config.run.init_from is not None:
            initial_weights(model, config.run.init_from, fabric.print)
        self.module = model.to(memory_format=torch.channels_last)  # pyright: ignore
        self.averaged = self._average() if o.ema else None
        self.model = fabric.setup_module(self.module)
        groups = parameter_groups(
            self.module, config.peak_rate, o.weight_decay, membership_scale=o.membership_scale
        )
        self.optimizer = torch.optim.SGD(groups, momentum=o.momentum, nesterov=True)
        self.peak_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.stepper: Any = fabric.setup_optimizers(self.optimizer)
        self.epoch_steps = data.train.batch_count(o.batch_size, train=True)
        self.steps = o.steps or o.epochs * self.epoch_steps
        self.position = checkpoint.restore(
            folder / files.CHECKPOINT, self.module, self.optimizer, config.identity(), self.averaged
        )
        weights = data.class_weights
        self.class_weights = None if weights is None else weights.to(fabric.device)
        self.tested = ""
        self.stop: int | None = None

    def run(self) -> None:
        """From where the run stands to its end."""
        position, first = self.position, self.fabric.global_rank == 0
        o = self.config.optimisation
        if first:
            for name in (files.METRICS, files.DISTRIBUTIONS):
                files.forget_after(self.folder / name, position.step)
            files.write_json(self.folder / files.ENVIRONMENT, environment())
        silent = not first
        with Narrator(self.steps, position.step, o.batch_size, silent) as self.narrator:
            self._introduce()
            with self._signals():
                while position.step < self.steps:
                    self._epoch(position.step // self.epoch_steps)
            self._finish()

    def _epoch(self, epoch: int) -> None:
        """One pass over the training images, or the rest of one."""
        o, position, fabric = self.config.optimisation, self.position, self.fabric
        batches = self.data.train.batches(
            o.batch_size, train=True, seed=o.seed, epoch=epoch,
            start=position.step % self.epoch_steps,
            rank=fabric.global_rank, world=fabric.world_size,
        )  # fmt: skip
        self.model.train()
        saved = began = time.perf_counter()
        losses: list[float] = []
        for x, y in batches:
            losses.append(self._step(x, y))
            if position.step % self.config.run.log_every == 0:
                self._log(losses)
                due = time.perf_counter() - saved > 60 * self.config.run.checkpoint_minutes
                if fabric.broadcast(due):
                    position.seconds += time.perf_counter() - began
                    self._save()
                    saved = began = time.perf_counter()
            if self.stop is not None:
                position.seconds += time.perf_counter() - began
                self._interrupt(self.stop)
            if position.step >= self.steps:
                break
        position.seconds += time.perf_counter() - began
        self._end_epoch(epoch)

    def _step(self, x: Tensor, y: Tensor) -> float:
        """One iteration of Algorithm 1; returns the mean loss of this process's images."""
        o, position, fabric = self.config.optimisation, self.position, self.fabric
        self._seed_step()
        x, y = x.to(fabric.device, non_blocking=True), y.to(fabric.device, non_blocking=True)
        total = torch.zeros((), device=fabric.device)
        for part, (x_part, y_part) in enumerate(
            zip(x.chunk(o.accumulate), y.chunk(o.accumulate), strict=True)
        ):
            last = part == o.accumulate - 1
            with fabric.no_backward_sync(self.model, enabled=not last):
                # Forward: C_j ~ B(1, P_j) and W_j = W~_j * C_j C_{j-1}^T / k happen inside the
                # layers; then predictions and empirical risk.
                logits = self.model(x_part)
                loss = F.cross_entropy(
                    logits, y_part, self.class_weights, label_smoothing=o.label_smoothing
                )
                # Backward: gradients by Eqs. 8 and 9.
                fabric.backward(loss / o.accumulate)
            total += loss.detach() / o.accumulate
            position.hits += int((logits.detach().argmax(1) == y_part).sum())
        self.rate = self._set_rates(position.step)
        value = total.item()
        watch.require_finite(value, position.step, self.rate)
        # Update W~_j and P_j, each at its own rate.
        self.stepper.step()
        self.stepper.zero_grad()
        if self.averaged is not None:
            self.averaged.update_parameters(self.module)
        position.step += 1
        position.loss_sum += value * len(y)
        position.seen += len(y)
        return value

    def _seed_step(self) -> None:
        """All chance of this step, from the seed, the step and (Dropout, own draws) the process."""
        rank, seed = self.fabric.global_rank, self.config.optimisation.seed
        shared = (seed << 32) + self.position.step
        torch.manual_seed(shared + (rank << 48))
        seed_draws(self.module, shared + (rank << 48) * self.config.compute.own_draws)

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
        self.narrator.pause()

    def _finish(self) -> None:
        final = {"test": self._evaluate(self.data.test)}
        if len(self.data.holdout):
            final["holdout"] = self._evaluate(self.data.holdout)
        self._write_weights(files.FINAL)
        p = self._probabilities()
        if self.fabric.global_rank == 0:
            write_results(
                self.folder, self.config, self._evaluated(), self.data, final, p, self.position
            )
        self.fabric.barrier()

    # --- parts of the above ---------------------------------------------------------------------

    def _require_divisible(self, batch_size: int, accumulate: int) -> None:
        parts = self.fabric.world_size * accumulate
        if batch_size % parts:
            raise ValueError(
                f"--batch-size must be a multiple of processes x --accumulate = {parts}, "
                f"got {batch_size}"
            )

    def _average(self) -> AveragedModel:
        if self.config.compute.strategy == "fsdp2":
            raise ValueError("--ema keeps a whole copy of the weights; it does not go with fsdp2")
        decay = get_ema_multi_avg_fn(self.config.optimisation.ema)
        return AveragedModel(self.module, self.fabric.device, multi_avg_fn=decay)

    def _introduce(self) -> None:
        d, say = self.data, self.narrator.say
        start = f", from step {self.position.step}" if self.position.step else ""
        say(f"{d.name}: {len(d.classes)} classes, {len(d.train)} training images, "
            f"{len(d.holdout)} held out, {len(d.test)} for the test")  # fmt: skip
        for note in d.notes:
            say(f"note: {note}")
        say(f"{self.steps} steps of {self.config.optimisation.batch_size} images{start}; "
            f"results in {self.folder}")  # fmt: skip

    def _evaluated(self) -> nn.Module:
        """The weights that are evaluated and saved: the moving average where there is one."""
        return self.module if self.averaged is None else self.averaged.module

    def _evaluate(self, split: Any) -> Evaluation:
        fabric = self.fabric
        return evaluate(
            self.model if self.averaged is None else self.averaged.module, split,
            device=fabric.device, rank=fabric.global_rank, world=fabric.world_size,
            gather=self._gather if fabric.world_size > 1 else None,
        )  # fmt: skip

    def _gather(self, part: Tensor) -> Tensor:
        gathered = self.fabric.all_gather(part)
        assert isinstance(gathered, Tensor)
        return gathered

    def _recalibrate(self) -> None:
        o, fabric = self.config.optimisation, self.fabric
        if o.recalibrate or self.averaged is not None:
            recalibrate(
                self.model if self.averaged is None else self.averaged.module, self.data.train,
                batch_size=o.batch_size, seed=o.seed, device=fabric.device,
                rank=fabric.global_rank, world=fabric.world_size,
            )  # fmt: skip

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
        if self.fabric.global_rank == 0:
            files.write_tensors(self.folder / name, weights)

    def _warn(self) -> None:
        for key, text in watch.collapses(self._probabilities(), self.data.classes).items():
            if key not in self.position.said:
                self.position.said.append(key)
                self.narrator.say(f"warning: {text}")
                self._write({"step": self.position.step, "warning": text})

    def _save(self) -> None:
        checkpoint.save(
            self.folder / files.CHECKPOINT, self.module, self.optimizer, self.position,
            self.config.identity(), self.averaged, self.fabric.global_rank == 0,
        )  # fmt: skip

    def _interrupt(self, number: int) -> None:
        if self.fabric.world_size == 1:  # others may be in the midst of a collective
            self._save()
        raise Interrupted(
            f"stopped at step {self.position.step} of {self.steps}; the same command continues",
            number,
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the step; a second Ctrl-C ends at once."""

        def note(number: int, _frame: object) -> None:
            self.stop = number
            signal.signal(signal.SIGINT, signal.default_int_handler)

        try:
            before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: signals are the caller's business
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
