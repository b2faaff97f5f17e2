"""How a training run begins: a new folder, or one that holds the same run already."""

import shutil
from pathlib import Path

from blockout.data import ImageData
from blockout.runs import folder as files
from blockout.runs.config import TrainConfig, read_config
from blockout.runs.documents import read_document
from blockout.runs.folder import RunError


def open_folder(folder: Path, config: TrainConfig, images: ImageData) -> None:
    """Makes the folder of a run, or checks that it holds the same run.

    With ``restart`` it first deletes what the run has left there.

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
    if config.run.restart:
        _clear(folder)
    for name in (*files.ALL, files.REPORT):  # what a killed process was writing
        for half_written in folder.glob(f".{name}.*"):
            half_written.unlink(missing_ok=True)
    path = folder / files.CONFIG
    if path.exists():
        _require_same(folder, read_config(path).for_images(images), config)
    else:
        files.write_json(path, config.flat() | {"restart": False})


def _require_same(folder: Path, before: TrainConfig, now: TrainConfig) -> None:
    was = before.recipe() | {"seed": before.optimisation.seed}
    wanted = now.recipe() | {"seed": now.optimisation.seed}
    changed = [name for name in was | wanted if was.get(name) != wanted.get(name)]
    if changed:
        what = ", ".join(f"{k} was {was.get(k)!r} and is {wanted.get(k)!r}" for k in changed[:4])
        raise RunError(
            f"{folder} holds another run ({what}); give the same flags, name another folder with "
            "--run, or say --restart to begin anew there"
        )


def _clear(folder: Path) -> None:
    """Deletes the files of a run, and nothing from a folder that something else has written."""
    config = folder / files.CONFIG
    is_run = config.exists() and "method" in read_document(config, dict)
    if any(folder.iterdir()) and not is_run:
        raise RunError(
            f"--restart: {folder} is not the folder of a run; name another with --run, or empty it"
        )
    for name in (*files.ALL, *files.MADE_LATER):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
