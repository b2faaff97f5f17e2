"""``train``: from a config to a finished run folder."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from blockout.data import ImageData
from blockout.models import Head, ImageClassifier, build_model
from blockout.runs import folder as files
from blockout.runs.config import TrainConfig
from blockout.runs.start import open_folder
from blockout.training.assembly import make_engine
from blockout.training.engine import kept_random_state
from blockout.training.features import Plan, introduction, with_features
from blockout.training.finetuning import begin, first_stages, phases, unfreeze, without_first
from blockout.training.finish import initial_weights
from blockout.training.images import training_images
from blockout.training.memory import require_memory
from blockout.training.processes import Processes
from blockout.training.recording import Recording, on_first_process

if TYPE_CHECKING:
    from blockout.training.fabric import FabricProcesses


def train(
    config: TrainConfig | None = None,
    *,
    model: nn.Module | None = None,
    trunk: nn.Module | None = None,
    data: ImageData | None = None,
    after_save: Callable[[Path], object] | None = None,
) -> Path:
    """Trains as the config says and returns the run folder. Continues an interrupted run.

    With ``finetune`` there are two runs; the first, which it starts from, may be finished already.

    Your own model, trunk or data are not part of the config. If you change them, use a new folder
    or ``restart=True``. torch's random state is left as it was.

    Args:
        config: everything that decides the run.
        model: your own model from images to logits, instead of the configured one.
        trunk: your own trunk below the configured head.
        data: your own images, instead of ``config.data``.
        after_save: called on the first process with the run folder after each checkpoint, for
            example to draw how far the run has come.
    """
    from blockout.training.fabric import FabricProcesses  # Lightning takes seconds to import

    config = config or TrainConfig()
    images = data or training_images(config, partial(print, flush=True))
    if config.finetunes and (model is not None or trunk is not None):
        raise ValueError("finetune is for trunks that the config names, not for your own")
    processes = FabricProcesses(config.compute)
    for phase in phases(config, images):
        folder = _phase(phase, images, processes, (model, trunk), after_save)
    return folder


def _phase(
    config: TrainConfig,
    images: ImageData,
    processes: "FabricProcesses",
    own: tuple[nn.Module | None, nn.Module | None],
    after_save: Callable[[Path], object] | None,
) -> Path:
    """One run: begins it, continues it, or finds it finished; ``own`` as in ``_run``."""
    model, trunk = own
    if model is not None or trunk is not None:
        config = replace(config, model=replace(config.model, trunk="own"))
    folder = config.folder_for(images)
    if model is None:
        copies = 3 if processes.device.type == "cpu" else 1
        require_memory(config, len(images.classes), copies=copies)
    with processes.noticing_losses(), ExitStack() as held:
        opened = open_folder(folder, config, images)
        on_first_process(processes, lambda: held.enter_context(opened))
        if not processes.broadcast((folder / files.RESULT).exists()):
            _run(config, folder, images, processes, own, after_save)
    return folder


def _run(
    config: TrainConfig,
    folder: Path,
    images: ImageData,
    processes: Processes,
    own: tuple[nn.Module | None, nn.Module | None],
    after_save: Callable[[Path], object] | None,
) -> None:
    """Trains to the end in a folder that is held; ``own`` is the user's own model and trunk."""
    model, trunk = own
    with kept_random_state(processes):
        if model is None:
            model = _built(config, images, trunk)
            assert isinstance(model.head, Head)
            model.head.leads = config.leads
        start = None
        if config.finetunes:
            assert isinstance(model, ImageClassifier)
            before, count = config.before.folder_for(images), config.optimisation.finetune
            start = begin(model, before, count)
        elif config.run.init_from is not None:
            notes = initial_weights(model, config.run.init_from)
            if processes.rank == 0:
                print(*notes, sep="\n")
        learner, images = _learner(config, model, images, processes)
        engine = make_engine(config, learner, images, processes)
        whole = model if isinstance(model, ImageClassifier) and model is not learner else None
        try:
            Recording(config, engine, images, folder, after_save, whole, start).run()
        finally:
            engine.close()


def _built(config: TrainConfig, images: ImageData, trunk: nn.Module | None) -> ImageClassifier:
    """The configured model as its seed makes it."""
    torch.manual_seed(config.optimisation.seed)
    return build_model(
        config.model,
        classes=len(images.classes),
        data_name=images.name,
        image_size=images.image_size,
        trunk=trunk,
    )


def _learner(
    config: TrainConfig, model: nn.Module, images: ImageData, processes: Processes
) -> tuple[nn.Module, ImageData]:
    """The part of a model that learns, and what it learns from: features of what is frozen."""
    if not isinstance(model, ImageClassifier) or not model.freeze_trunk or not config.data.views:
        learner = model
    elif not config.finetunes:
        images = _features(config, model, images, processes)
        learner = ImageClassifier(nn.Identity(), model.head)
    elif (first := first_stages(model, config, images)) is None:
        learner = model
    else:
        below = ImageClassifier(first, model.head, freeze_trunk=True)
        images = _features(config, below, images, processes, parts=("train", "holdout"))
        learner = without_first(model, first, config.optimisation.finetune)
    if config.finetunes and isinstance(model, ImageClassifier):
        unfreeze(model, config.optimisation.finetune)
    return learner, images


def _features(
    config: TrainConfig,
    model: ImageClassifier,
    images: ImageData,
    processes: Processes,
    parts: Sequence[str] = ("train", "holdout", "test"),
) -> ImageData:
    """What the frozen trunk says: the first process computes what is missing, then all read it."""
    count = sum(len(split) for split in (images.train, images.holdout, images.test))
    seen = config.model, config.data, len(images.classes), count
    compute = partial(
        with_features,
        images,
        model,
        views=config.data.views,
        cache=config.data.cache_folder,
        workers=config.data.decoders,
        parts=parts,
        plan=Plan("" if config.finetunes else introduction(*seen)),
    )
    found: list[ImageData] = []
    on_first_process(processes, lambda: found.append(compute(say=partial(print, flush=True))))
    return found[0] if found else compute(say=lambda text: None)
