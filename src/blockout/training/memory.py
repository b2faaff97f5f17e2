"""Refuses, before anything is allocated, what this machine cannot hold.

Linux grants memory that it does not have, and kills whoever uses it.
"""

import os
import sys
from pathlib import Path

from blockout.runs.config import TrainConfig

MOST_TOLD = 10**30
"""Bytes: what is more than that is told as this much, for it may be no float."""
BYTES = 4
"""Of a number in float32."""
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Of a container."""


def require_memory(config: TrainConfig, classes: int, *, copies: int) -> None:
    """Refuses a head whose weights alone are more than the memory of this machine.

    Args:
        config: resolved.
        classes: how many there are.
        copies: of every weight: itself, its gradient, its momentum.
    """
    model, there = config.model, memory()
    nodes, clusters = model.nodes or 0, model.clusters or 0
    if model.method == "baseline":
        return
    weights = nodes * (nodes + classes)
    if model.method == "blockout":
        weights += (2 * nodes + classes) * clusters
    needed = weights * BYTES * copies
    if needed > there:
        clustered = f" and --clusters {clusters}" if model.method == "blockout" else ""
        raise ValueError(
            f"--nodes {nodes}{clustered} need at least {_gigabytes(needed)} for the weights of the "
            f"head and their training, and this machine has {_gigabytes(there)}; choose fewer"
        )


def memory() -> int:
    """Bytes that this process may use at most, as far as the system says."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    import resource

    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        found.append(allowed)
    for name in LIMITS:
        text = Path(name).read_text().strip() if Path(name).is_file() else ""
        found += [int(text)] if text.isdecimal() else []
    return min(found)


def _gigabytes(count: int) -> str:
    if count < 10**15:
        return f"{count / 1e9:,.0f} GB"
    return f"{min(count, MOST_TOLD) / 1e12:.3g} TB"
