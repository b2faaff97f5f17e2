"""Whether compiled kernels compute the large layers of a run: its last bits depend on it."""

from pathlib import Path

from torch import nn

from blockout import kernels
from blockout.layers import BlockoutLinear
from blockout.runs import folder as files
from blockout.runs.documents import Environment, read_document
from blockout.runs.errors import RunError


def in_use(module: nn.Module) -> tuple[bool | None, str]:
    """Whether they are, and where they are or why not. None without a layer on this processor that
    they are for; then nothing is compiled."""
    for layer in module.modules():
        if isinstance(layer, BlockoutLinear) and kernels.is_large(layer.weight):
            return kernels.compiled()
    return None, ""


def began_with(folder: Path) -> bool | None:
    """Whether they were when the run was last begun or continued; None if nobody knows."""
    try:
        return read_document(folder / files.ENVIRONMENT, Environment).compiled_kernels
    except RunError:  # missing or damaged, and about to be written anew
        return None


def note(before: bool | None, now: bool | None, told: str) -> str | None:
    """What to say of them before the first step, if anything.

    >>> note(None, True, "/path"), note(None, None, "")
    (None, None)
    """
    if now is None or now == before or (now and before is None):
        return None
    bits = "results may differ in the last bits from those of a run without a break"
    if now:
        return f"this run began without compiled kernels, which are in use now; {bits}"
    gone = f"compiled kernels are not in use: {told}; large layers train a little slower"
    return f"{gone}; this run began with them, and {bits}" if before else gone
