"""What commands about a run have in common: loading it, and saying what is wrong with it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockout.training import TrainConfig, TrainedModel


def load_run(folder: Path, weights: str = "final") -> tuple["TrainedModel", "TrainConfig"]:
    """The model and the config of a finished run; what is missing or damaged is named.

    ``weights`` are "final", "best", or "compact": the network that `blockout compact` made.
    """
    require_training()
    from blockout.training import RunError, TrainConfig, files, load_trained
    from blockout.training.compaction import ABOUT, load_compact

    if folder.is_dir() and not (folder / files.CONFIG).exists():
        raise RunError(f"{folder} is not the folder of a run: there is no {files.CONFIG} in it")
    if (folder / files.RESULT).exists() and not (folder / files.MODEL).exists():
        raise RunError(
            f"the run in {folder} has no {files.MODEL}: it was trained from Python with a model of "
            f"its own; build that model there and load {files.FINAL} into it"
        )
    with damaged(folder / (ABOUT if weights == "compact" else files.MODEL)):
        if weights == "compact":
            trained = load_compact(folder)
        else:
            trained = load_trained(folder, weights=f"{weights}.safetensors")
        names, outputs = len(trained.classes), trained.model.describe()["head"]["classes"]
        if names != outputs:
            raise KeyError(f"{names} classes are named and {outputs} predicted")
    with damaged(folder / files.CONFIG):
        return trained, TrainConfig.from_flat(files.read_json(folder / files.CONFIG))


def named_once(folders: Sequence[Path]) -> list[Path]:
    """Without folders that were named before, which is said: a run is no second run of itself."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if found.setdefault(folder.resolve(), folder) is not folder:
            print(f"note: {folder} is named twice and shown once")
    return list(found.values())


def one_line(error: BaseException) -> str:
    """The first line of the message, and the next where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def require_training() -> None:
    try:
        import blockout.training  # noqa: F401
    except Exception as error:  # foreign packages that do not fit each other fail in many ways
        raise ImportError(
            f"a package that this needs is missing or broken ({one_line(error)}); "
            "`blockout doctor` says what is in the way"
        ) from error


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Says of a JSON file that it is not what we wrote, wherever that comes to light."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        from blockout.training import RunError

        raise RunError(f"{path} is damaged ({type(error).__name__}: {error})") from error
