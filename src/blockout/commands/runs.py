"""What commands about runs share: opening them, and failing in one line."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.flags import flag
from blockout.terminal import tell

if TYPE_CHECKING:
    from blockout.commands.flags import Parser
    from blockout.data import ImageData
    from blockout.runs import Run


DATA = """where the images of the run are now, if not where they were; what the hub has
(hf://owner/name) is fetched only if you say it here"""
SKIP = "mend or delete what is damaged, or say --skip-corrupt to leave such images out"
FIRST_FIVE = 5
"""With no more classes than this, some class of the first five is always right."""
CACHE = "folder for decoded images (default: the usual one, whatever the run says)"


def data_flags(parser: "Parser") -> None:
    """``--data`` and ``--cache``: what a run's own config must not decide."""
    flag(parser, "--data NAME", DATA, str)
    flag(parser, "--cache DIR", CACHE, Path)


def open_run(folder: Path, *, data: str | None = None, cache: Path | None = None) -> "Run":
    """The run in a folder; what is missing or damaged is named, and what nobody could notice."""
    require_training()
    from blockout.runs import Run

    run = Run.open(folder, data=data, cache=cache)
    if run.unnoticed:
        tell(run.unnoticed)
    return run


def images_of(run: "Run", *, quiet: bool = False) -> "ImageData":
    """The images of a run, with a note where they have changed since it was trained."""
    found = run.images()
    if quiet:
        return found
    for change in found.changes.words():
        print(f"note: {change}")
    if run.split is None and run.has_changed(found):
        print("note: the images have changed since this run; its splits are no longer the same")
    return found


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


def require_training(*packages: str) -> None:
    """Says what to do where a package that training needs is missing or broken."""
    try:
        for name in (*packages, "blockout.training"):
            importlib.import_module(name)
    except Exception as error:  # foreign packages that do not fit each other fail in many ways
        raise ImportError(
            f"a package that this needs is missing or broken ({one_line(error)}); "
            "`blockout doctor` says what is in the way"
        ) from error
