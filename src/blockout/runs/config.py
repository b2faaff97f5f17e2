"""Everything that decides a run, as one frozen dataclass of several."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from blockout.data import DataConfig, ImageData, StreamSplit
from blockout.data.sources import GENERATED
from blockout.guidance import Guidance
from blockout.limits import HUB
from blockout.models import ModelConfig
from blockout.models.config import (
    SMALL_TRUNK,
    default_clusters,
    in_paper,
    is_hub_id,
    is_pretrained,
)
from blockout.models.config import resolved as resolved_model
from blockout.models.pretrained import folder_digest
from blockout.runs import digests
from blockout.runs.documents import read_document
from blockout.runs.errors import RunError
from blockout.runs.folder import CONFIG, FINAL
from blockout.runs.options import ComputeConfig, OptimisationConfig, RunConfig
from blockout.runs.schedule import LARGE_SET, SHAPES, Schedule, fitting_schedule

PARTS = (DataConfig, ModelConfig, OptimisationConfig, Guidance, ComputeConfig, RunConfig)
"""The dataclasses of a `TrainConfig`, in the order of its fields."""
WHERE_IT_RAN = {"accelerator", "devices", "num_nodes", "strategy"}
OF_THE_MACHINE = {"cache", "workers"}
OF_FINETUNING = {"finetune", "finetune_epochs", "finetune_lr"}
FINETUNED = "finetuned"
"""Ends the name of a run that was fine-tuned."""
FINETUNING_BATCH = 32
"""Images per step."""
OF_BLOCKOUT = {"clusters", "hard", "learned", "membership_scale", "paper"}
ORIGIN_DIGITS = 16
"""Hexadecimal digits of a digest that tell the weights that runs start from apart."""
OF_GUIDANCE = {"affinity_from", *(field.name for field in dataclasses.fields(Guidance))}


@dataclass(frozen=True)
class TrainConfig:
    """One training run.

    A config that a user writes leaves values open (None, auto). ``for_images`` and ``resolved``
    fill them in; a run stores and compares resolved configs only.
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    guidance: Guidance = field(default_factory=Guidance)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """The config whose ``flat`` these values are; what is missing has its default."""
        parts = {}
        for part, kind in zip(dataclasses.fields(cls), PARTS, strict=True):
            names = {f.name for f in dataclasses.fields(kind)}
            chosen = {k: v for k, v in values.items() if k in names}
            for name in ("cache", "run", "init_from"):
                if isinstance(chosen.get(name), str):
                    chosen[name] = Path(chosen[name])
            parts[part.name] = kind(**chosen)
        return cls(**parts)

    def flat(self) -> dict[str, Any]:
        """All values by flag, JSON-able: what ``--config`` reads."""
        values: dict[str, Any] = {}
        for part in dataclasses.fields(self):
            values |= dataclasses.asdict(getattr(self, part.name))
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}

    # --- nothing left open ------------------------------------------------------------------------

    def for_images(self, images: ImageData) -> Self:
        """Every value that training on these images uses."""
        begun = self if self.run.restart else self.as_begun()
        chosen = begun.resolved(
            image_size=images.image_size,
            images=len(images.train),
            classes=len(images.classes),
            stream=isinstance(images.train, StreamSplit),
        )
        chosen = chosen._in_whole_epochs(images)
        return chosen.resolved(classes=len(images.classes), steps=chosen.steps_on(images))

    def as_begun(self) -> Self:
        """With what older runs did where you leave it open, if the run in ``--run`` is one: they
        began with 6 clusters for any number of classes, and without a linear classifier."""
        path = Path(self.run.run or "") / CONFIG
        if self.run.run is None or not path.exists():
            return self
        before, m = read_config(path), self.model
        clusters = before.model.clusters or default_clusters(before.data.data, None)
        beside = bool(before.model.with_linear) if m.with_linear is None else m.with_linear
        model = replace(m, clusters=m.clusters or clusters, with_linear=beside)
        return replace(self, model=model)

    def _in_whole_epochs(self, images: ImageData) -> Self:
        """Steps that make whole epochs become epochs: one length has one name."""
        o = self.optimisation
        epoch_steps = images.train.batch_count(self.before.batch_size, train=True)
        if not o.steps or o.steps % epoch_steps:
            return self
        return replace(self, optimisation=replace(o, steps=None, epochs=o.steps // epoch_steps))

    def resolved(
        self,
        *,
        image_size: int | None = None,
        images: int | None = None,
        classes: int | None = None,
        steps: int | None = None,
        stream: bool | None = None,
    ) -> Self:
        """Fills in what was left open, as far as it can be known.

        Args:
            image_size: of the images; it decides the trunk.
            images: how many there are to train on; they decide how long and how fast.
            classes: how many there are; there are no more clusters by default.
            steps: of the whole training run; they decide how often it logs.
            stream: whether images are decoded while training.
        """
        d, o, g = self.data, self.optimisation, self.guidance
        image_size = d.image_size or image_size
        streamed = d.stream if d.stream is not None else stream
        model = resolved_model(self.model, d.data, image_size, classes)
        beside = self.guided if model.with_linear is None else model.with_linear
        model = replace(model, with_linear=beside and model.method != "baseline")
        fitting = _schedule(o.batch_size, d.data, model, images)
        rate = replace(
            o,
            epochs=None if o.steps else o.epochs or fitting.epochs,
            batch_size=fitting.batch_size,
            lr=o.lr or fitting.lr,
            paper=self.paper,
            trunk_follows=o.trunk_follows
            if o.trunk_follows != "auto"
            else ("linear" if beside else "head"),
        )
        run = self.run
        if steps is not None:
            g = g.resolved(frozen=bool(model.freeze_trunk), classes=classes)
            run = replace(run, log_every=run.log_every or max(min(50, steps // 40), 1))
        data = replace(d, image_size=image_size, stream=streamed)
        return replace(self, data=data, model=model, optimisation=rate, guidance=g, run=run)

    @property
    def paper(self) -> bool:
        """Whether memberships learn by the paper's rule alone."""
        if self.optimisation.paper is not None:
            return self.optimisation.paper
        return in_paper(self.data.data)

    @property
    def guided(self) -> bool:
        """Whether a guide leads memberships that are learned."""
        return self.model.method == "blockout" and self.model.learned and not self.paper

    @property
    def leads(self) -> bool:
        """Whether the trunk learns from the linear classifier beside the head alone."""
        learns = not self.model.freeze_trunk and not self.finetunes
        beside = self.model.with_linear
        return bool(beside) and learns and self.optimisation.trunk_follows != "head"

    # --- how long and how fast: of a resolved config ----------------------------------------------

    @property
    def finetunes(self) -> bool:
        """Whether this is the second of two runs: see ``before``."""
        return self.optimisation.finetune > 0

    @property
    def before(self) -> Self:
        """The run that fine-tuning starts from: the same, with the head alone."""
        return replace(self, optimisation=replace(self.optimisation, finetune=0))

    @property
    def steps(self) -> int | None:
        """If they were given in place of epochs."""
        return None if self.finetunes else self.optimisation.steps

    @property
    def epochs(self) -> int:
        if self.finetunes:
            return self.optimisation.finetune_epochs
        return self.optimisation.epochs or 1

    @property
    def batch_size(self) -> int:
        if self.finetunes:
            return FINETUNING_BATCH
        assert self.optimisation.batch_size is not None
        return self.optimisation.batch_size

    @property
    def peak_rate(self) -> float:
        if self.finetunes:
            return self.optimisation.finetune_lr
        assert self.optimisation.lr is not None
        return self.optimisation.lr

    def steps_on(self, images: ImageData) -> int:
        """Of the whole run."""
        return self.steps or self.epochs * images.train.batch_count(self.batch_size, train=True)

    # --- the same run, and the same but for its seed ----------------------------------------------

    def recipe(self, data_name: str | None = None) -> dict[str, Any]:
        """Everything that decides the result but the seed, without what the method does not use.

        Two resolved configs with equal recipes are the same experiment, wherever and on however
        many devices it ran. Names the data set, never a path; what a path stood for is in
        ``origins``.

        >>> one = TrainConfig(DataConfig("cifar100"), ModelConfig(nodes=512)).resolved()
        >>> one.recipe() == TrainConfig(DataConfig("cifar100")).resolved().recipe()
        True
        """
        unused = {"seed", *WHERE_IT_RAN, *OF_THE_MACHINE} | {
            f.name for f in dataclasses.fields(RunConfig)
        }
        method, learned = self.model.method, self.model.learned
        if method != "blockout":
            unused |= OF_BLOCKOUT
        elif not learned:
            unused |= {"paper", "membership_scale"}
        if not self.guided:
            unused |= OF_GUIDANCE
        if not self.leads:
            unused.add("trunk_follows")
        if not self.model.with_linear:
            unused.add("with_linear")
        if method == "baseline":
            unused |= {"nodes", "with_linear"}
        if method not in ("dropout", "dropconnect"):
            unused.add("dropout")
        if not self.finetunes:
            unused |= OF_FINETUNING
        if not self.model.freeze_trunk:
            unused.add("views")
        elif self.data.views:
            unused.add("augment")
        if self.model.trunk != SMALL_TRUNK:
            unused |= {"width", "early_downsampling"}
        chosen = {name: value for name, value in self.flat().items() if name not in unused}
        chosen |= {
            "data": data_name or name_of(self.data.data),
            "trunk": self._trunk_name,
        }
        if self.run.init_from is not None:
            chosen["init_from"] = name_of(str(self.run.init_from))
        return chosen

    @property
    def _trunk_name(self) -> str:
        trunk = self.model.trunk
        return trunk.removeprefix(HUB) if is_hub_id(trunk) else name_of(trunk)

    def origins(self) -> dict[str, str]:
        """Digests of the weights that paths in this config stand for, as far as they are there.

        Two folders of one name may hold different weights, and one may be moved: the recipe has
        their names, and a run records these digests beside it.
        """
        start, found = self.run.init_from, {"trunk_weights": folder_digest(self.model.trunk)}
        if start is not None and (path := Path(start) / FINAL).is_file():
            found["init_from_weights"] = digests.digest_of(path).sha256
        return {name: digest[:ORIGIN_DIGITS] for name, digest in found.items() if digest}

    def identity(self, images: ImageData) -> dict[str, Any]:
        """Recipe, origins, seed and images: where it is equal, runs end in equal weights."""
        seed = {"seed": self.optimisation.seed, "images": images.fingerprint()}
        return self.recipe(images.name) | self.origins() | seed

    def folder_for(self, images: ImageData) -> Path:
        """``--run``, or ``runs/`` and a name that is the same for equal runs; what is fine-tuned
        stands beside what it starts from."""
        if self.finetunes:
            return Path(f"{self.before.folder_for(images)}-{FINETUNED}")
        if self.run.run is not None:
            return Path(self.run.run)
        text = json.dumps(self.identity(images), sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:8]
        return Path("runs") / f"{images.name}-{self.model.method}-{short}"


def _schedule(
    batch_size: int | None, data: str, model: ModelConfig, images: int | None
) -> Schedule:
    """What fits the images, unless the data set is one that we know."""
    kind = "new" if not is_pretrained(model.trunk) else "tuned"
    known = SHAPES if data == GENERATED else LARGE_SET if in_paper(data) else None
    return fitting_schedule(
        images, "frozen" if model.freeze_trunk else kind, batch_size=batch_size, known=known
    )


def read_config(path: Path) -> TrainConfig:
    """The config in a run folder's ``config.json``; older ones leave values open.

    Raises:
        RunError: it is missing, or not what a training run writes.
    """
    values = read_document(path, dict[str, Any])
    if missing := [name for name in ("data", "method") if name not in values]:
        raise RunError(f"{path} is damaged: it does not say {missing[0]!r}")
    parts = {}
    for part, kind in zip(dataclasses.fields(TrainConfig), PARTS, strict=True):
        names = {f.name for f in dataclasses.fields(kind)}
        chosen = {name: value for name, value in values.items() if name in names}
        try:
            parts[part.name] = msgspec.convert(chosen, kind, dec_hook=_path)
        except (msgspec.ValidationError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}") from error
    return TrainConfig(**parts)


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"expected a path, got {value!r}")


def name_of(source: str) -> str:
    """What a path, a name or a hub id is called on any machine.

    >>> name_of("/home/me/photos/"), name_of("uoft-cs/cifar100"), name_of("shapes")
    ('photos', 'cifar100', 'shapes')
    """
    return source.replace("\\", "/").rstrip("/").rpartition("/")[2] or source
