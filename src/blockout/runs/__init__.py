"""The run folder: its names, its files, and one ``Run`` that reads them."""

from blockout.runs.config import TrainConfig
from blockout.runs.errors import RunError
from blockout.runs.images import load_images
from blockout.runs.options import ComputeConfig, OptimisationConfig, RunConfig
from blockout.runs.run import Run
from blockout.runs.trained import TrainedModel

__all__ = [
    "ComputeConfig",
    "OptimisationConfig",
    "Run",
    "RunConfig",
    "RunError",
    "TrainConfig",
    "TrainedModel",
    "load_images",
]
