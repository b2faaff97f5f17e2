"""How a training run begins: a new folder, or one that holds the same run already."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockout import files as whole_files
from blockout.data import ImageData
from blockout.runs import digests, lock
from blockout.runs import folder as files
from blockout.runs.config import TrainConfig, read_config
from blockout.runs.documents import Environment, read_document
from blockout.runs.errors import RunError
from blockout.runs.split import write_split
from blockout.terminal import tell


@contextlib.contextmanager
def open_folder(folder: Path, config: TrainConfig, images: ImageData) -> Iterator[None]:
    """Makes the folder of a run, or checks that it holds the same run; inside, it is held.

    With ``restart`` it first deletes what the run has left there. Nothing is touched while another
    process works on the folder.

    Args:
        folder: of the run.
        config: resolved for the images.
        images: what it trains on.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot make the run folder {folder}: {error.strerror}; name another with --run"
        ) from error
    with lock.held(folder, "training"):
        if config.run.restart:
            _clear(folder)
        whole_files.remove_litter(folder, files.EVERYTHING)
        path = folder / files.CONFIG
        if path.exists():
            _require_same(folder, read_config(path).for_images(images), config)
            _require_same_origins(folder, config)
            if note := digests.unnoticed(folder, sorted(files.READ_BACK)):
                tell(note)
        else:
            files.write_json(path, config.flat() | {"restart": False})
        begun = (files.SPLIT, files.CHECKPOINT, files.RESULT)
        if not any((folder / name).exists() for name in begun):
            write_split(folder, images)
        yield


def _require_same(folder: Path, before: TrainConfig, now: TrainConfig) -> None:
    was = before.recipe() | {"seed": before.optimisation.seed}
    wanted = now.recipe() | {"seed": now.optimisation.seed}
    _require_equal(folder, was, wanted)


def _require_same_origins(folder: Path, now: TrainConfig) -> None:
    """Refuses other weights under the same name; older runs have not recorded theirs."""
    path = folder / files.ENVIRONMENT
    was = read_document(path, Environment).origins if path.exists() else {}
    wanted = now.origins() if was else {}
    shared = was.keys() & wanted.keys()
    _require_equal(folder, {k: was[k] for k in shared}, {k: wanted[k] for k in shared})


def _require_equal(folder: Path, was: dict[str, Any], wanted: dict[str, Any]) -> None:
    changed = [name for name in was | wanted if was.get(name) != wanted.get(name)]
    if changed:
        what = ", ".join(f"{k} was {was.get(k)!r} and is {wanted.get(k)!r}" for k in changed[:4])
        raise RunError(
            f"{folder} holds another run ({what}); give the same flags, name another folder with "
            "--run, or say --restart to start over there"
        )


def _clear(folder: Path) -> None:
    """Deletes the files of a run, and nothing from a folder that something else has written."""
    others = [path for path in folder.iterdir() if path.name != files.LOCK]
    if others and not _is_run(folder / files.CONFIG):
        raise RunError(
            f"--restart: {folder} is not the folder of a run; name another with --run, or empty it"
        )
    try:
        for name in files.EVERYTHING:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"--restart: cannot clear {folder}: {error}") from error


def _is_run(config: Path) -> bool:
    """Whether a training run wrote this, damaged or not."""
    if digests.recorded(config):
        return True
    return config.exists() and "method" in read_document(config, dict)
