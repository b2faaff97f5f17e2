"""What a run was made with: versions, machine, commit."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

import torch

import blockout
from blockout.runs.documents import Environment, Machine

PACKAGES = ("torch", "lightning", "datasets", "numpy", "safetensors", "transformers")


def environment(
    origins: Mapping[str, str] = MappingProxyType({}), compiled_kernels: bool | None = None
) -> Environment:
    """Everything about this process that matters to someone who repeats it.

    No host names, and no paths but those on the command line.

    Args:
        origins: of the run's config.
        compiled_kernels: whether they compute the run's large layers.
    """
    versions = {"blockout": blockout.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Environment(
        commit=_commit(),
        versions=versions,
        machine=Machine(
            system=platform.system(),
            processor=_processor(),
            cores=os.cpu_count(),
            threads=torch.get_num_threads(),
            accelerator=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        ),
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        origins=dict(origins),
        compiled_kernels=compiled_kernels,
    )


def _commit() -> str | None:
    """Of the sources that are running, with a plus where they have been changed since; records and
    documents beside them may change."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True)
        return run.stdout.strip() if run.returncode == 0 else ""

    try:
        tracked = git("ls-files", Path(__file__).name)
        commit = git("rev-parse", "--short=12", "HEAD") if tracked else ""
        return (
            commit + ("+" if git("status", "--porcelain", "-uno", "--", str(here.parent)) else "")
            if commit
            else None
        )
    except OSError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
