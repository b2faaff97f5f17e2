"""Devices, processes, precision and loggers: Lightning Fabric, set up from the config."""

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric
from lightning.fabric.loggers import TensorBoardLogger
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from blockout.training.config import ComputeConfig, RunConfig
from blockout.training.files import EVENTS, RunError


def make_fabric(compute: ComputeConfig, run: RunConfig, folder: Path) -> Fabric:
    """A Fabric that is not launched yet; wrong values say which flag to change."""
    devices: Any = str(compute.devices)
    devices = int(devices) if devices.isdigit() else devices
    where: dict[str, Any] = {
        "accelerator": compute.accelerator, "devices": devices, "num_nodes": compute.num_nodes,
        "precision": compute.precision,
    }  # fmt: skip
    try:
        strategy: Any = compute.strategy
        if strategy == "fsdp2":
            where["strategy"] = "ddp"  # only to count the processes
            strategy = ModelParallelStrategy(_shard, Fabric(**where).world_size, 1)
        return Fabric(**(where | {"strategy": strategy, "loggers": _loggers(run, folder)}))
    except (ModuleNotFoundError, RunError):
        raise
    except (ValueError, RuntimeError, TypeError, ImportError) as error:
        raise ValueError(
            "--accelerator, --devices, --num-nodes, --strategy or --precision do not fit this "
            f"machine: {error}"
        ) from error


def launch(fabric: Fabric) -> None:
    """Starts the processes, and has each take leave of the others before it ends.

    An interpreter that ends while gloo's threads still run is sometimes aborted by them.
    """
    fabric.launch()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        atexit.register(_leave)


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def on_first_process(fabric: Fabric, work: Callable[[], object]) -> None:
    """``work`` on the first process only; where it cannot go on, every process raises its error.

    Otherwise the others would wait for ever for one that has gone.
    """
    if fabric.world_size == 1:
        work()
        return
    problem = None
    if fabric.global_rank == 0:
        try:
            work()
        except RunError as error:
            problem = str(error)
        except Exception as error:
            fabric.broadcast(f"the first process failed: {type(error).__name__}: {error}")
            raise
    problem = fabric.broadcast(problem)
    if problem is not None:
        raise RunError(problem)


def _shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """FSDP2: trunk and head are a unit each; layers that share memberships stay together.

    It shards contiguous weights only, so images are not computed in channels_last memory.
    """
    module.to(memory_format=torch.contiguous_format)  # pyright: ignore
    mesh = mesh["data_parallel"]
    for child in module.children():
        if next(child.parameters(), None) is not None:
            fully_shard(child, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def _loggers(run: RunConfig, folder: Path) -> list:
    loggers: list[Any] = []
    if run.tensorboard:
        loggers.append(TensorBoardLogger(folder, name=EVENTS, version=""))
    if run.wandb:
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(WandbLogger(name=folder.name, save_dir=folder, project=run.wandb))
    if run.mlflow:
        from lightning.pytorch.loggers import MLFlowLogger

        loggers.append(MLFlowLogger(experiment_name=run.mlflow, run_name=folder.name))
    return loggers
