"""Devices, processes and precision by Lightning Fabric, set up from the config."""

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from lightning import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from blockout.runs.errors import RunError, ToldElsewhere
from blockout.runs.options import ComputeConfig
from blockout.starting import is_first_process
from blockout.training.processes import Processes, T

_FIRST = "BLOCKOUT_FIRST_PROCESS"
_GRACE_SECONDS = 60.0  # for a process that has lost another to say so before it is killed
_ENDING_SECONDS = 2.0  # a process closes its connections before it has ended
_FREEING_SECONDS = 0.5  # a waiting thread takes the lock at once; a busy machine schedules it late


class FabricProcesses(Processes):
    """``Processes`` on whatever devices and machines Fabric supports."""

    def __init__(self, compute: ComputeConfig) -> None:
        """Starts the processes: what follows runs in each of them."""
        self._fabric = make_fabric(compute)
        with _leaving_its_number() as self._parent:
            self._fabric.launch()
        _give_grace()
        super().__init__(self._fabric.device)
        self.rank, self.world = self._fabric.global_rank, self._fabric.world_size
        # Fabric's modules return torch's default dtype. Its context makes that float64.
        self._exact = compute.precision.startswith("64")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            atexit.register(_leave)

    def wrap_module(self, module: nn.Module) -> nn.Module:
        return self._fabric.setup_module(module)

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        return self._fabric.setup_optimizers(optimizer)

    def autocast(self) -> AbstractContextManager[Any]:
        return self._fabric.autocast() if self._exact else nullcontext()

    def no_backward_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        return self._fabric.no_backward_sync(model, enabled=enabled)  # pyright: ignore

    def backward(self, loss: Tensor) -> None:
        self._fabric.backward(loss)

    def clip_gradients(self, model: nn.Module, optimizer: Any, norm: float) -> None:
        found: Any = model
        self._fabric.clip_gradients(found, optimizer, max_norm=norm, error_if_nonfinite=False)

    def all_reduce(self, tensor: Tensor, op: Literal["mean", "sum"]) -> Tensor:
        return self._fabric.all_reduce(tensor, reduce_op=op)  # pyright: ignore

    def broadcast(self, value: T) -> T:
        return self._fabric.broadcast(value)

    @contextmanager
    def noticing_losses(self) -> Iterator[None]:
        """Inside, an exchange that fails because a process is gone is a ``RunError`` that names it.

        The first process speaks for all, unless it is the one that is gone.
        """
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, RunError) or not _is_of_an_exchange(error):
                raise
            lost = self._lost()
            if self.rank and not lost:
                raise ToldElsewhere(str(error)) from error
            raise RunError(
                f"{lost or 'a process'} of {self.world} was lost; the same command continues from "
                "the last checkpoint"
            ) from error

    def _lost(self) -> str:
        """Which process is gone, as far as this one can see: its parent, or its children."""
        children = getattr(self._fabric.strategy.launcher, "procs", None) or []
        until = time.monotonic() + _ENDING_SECONDS
        while time.monotonic() < until:
            if self.rank and os.getppid() != self._parent:
                return "the first process"
            for rank, child in enumerate(children, 1):
                if child.poll():
                    code = child.returncode
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    return f"process {rank} (pid {child.pid}, {how})"
            time.sleep(0.05)
        return ""


def make_fabric(compute: ComputeConfig) -> Fabric:
    """A Fabric that is not launched yet; wrong values say which flag to change."""
    devices: Any = str(compute.devices)
    most = max(64, 8 * (os.cpu_count() or 1))
    if devices.isdecimal() and int(devices) > most:
        raise ValueError(f"--devices must be at most {most} on this machine, got {devices}")
    where: dict[str, Any] = {
        "accelerator": compute.accelerator,
        "devices": int(devices) if devices.isdigit() else devices,
        "num_nodes": compute.num_nodes,
        "precision": compute.precision,
    }
    try:
        strategy: Any = compute.strategy
        if strategy == "fsdp2":
            processes = Fabric(**where, strategy="ddp").world_size
            strategy = ModelParallelStrategy(_shard, processes, 1)
        return Fabric(**where, strategy=strategy)
    except ModuleNotFoundError:
        raise
    except (ValueError, RuntimeError, TypeError, ImportError) as error:
        raise ValueError(
            "--accelerator, --devices, --num-nodes, --strategy or --precision do not fit this "
            f"machine: {error}"
        ) from error


def _is_of_an_exchange(error: RuntimeError) -> bool:
    """Whether processes could not talk to each other; gloo raises plain RuntimeErrors."""
    known = isinstance(error, torch.distributed.DistError)
    return known or any(text in str(error) for text in ("gloo", "peer", "process group"))


@contextmanager
def _leaving_its_number() -> Iterator[int]:
    """The first process leaves its number to those that it starts inside, and they end after it.

    Most would notice its end at the next exchange. One that still waits for the others to connect
    would wait for minutes. Gives the number of this process's parent.
    """
    if is_first_process():
        os.environ[_FIRST] = str(os.getpid())
        try:
            yield os.getppid()
        finally:
            del os.environ[_FIRST]
        return
    parent = int(os.environ.get(_FIRST, os.getppid()))
    threading.Thread(target=_end_after, args=(parent,), name="end-after", daemon=True).start()
    yield parent


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_ENDING_SECONDS / 4)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def _give_grace() -> None:
    """Lightning kills all processes within seconds of the loss of one, before they can say so."""

    def patient(kill: Callable[[], None]) -> None:
        time.sleep(_GRACE_SECONDS)
        kill()

    for thread in threading.enumerate():
        if thread.name == "child-process-observer":
            kill = thread._terminate_all  # pyright: ignore
            thread._terminate_all = partial(patient, kill)  # pyright: ignore


def _leave() -> None:
    """Leaves the process group while the interpreter still runs.

    A thread of gloo that frees the tensors of the last exchange needs the interpreter's lock. If
    the interpreter is already ending, the thread aborts the process. FSDP2 keeps the group alive,
    so destroying it does not wait for the threads: sleeping gives them the lock.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        time.sleep(_FREEING_SECONDS)


def _shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """FSDP2 with trunk and head as one unit each, so layers that share memberships stay together.

    It shards contiguous weights only, so images are not in channels_last memory.
    """
    module.to(memory_format=torch.contiguous_format)  # pyright: ignore
    mesh = mesh["data_parallel"]
    for child in module.children():
        if next(child.parameters(), None) is not None:
            fully_shard(child, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module
