"""Training on images, as usable from a notebook as from the shell."""

from blockout.data import DataConfig
from blockout.guidance import Guidance
from blockout.models import ModelConfig
from blockout.training.config import ComputeConfig, OptimisationConfig, RunConfig, TrainConfig
from blockout.training.evaluation import Evaluation, evaluate, recalibrate
from blockout.training.files import RunError
from blockout.training.finish import TrainedModel, load_trained
from blockout.training.images import load_images
from blockout.training.interrupts import Interrupted
from blockout.training.loop import train

__all__ = [
    "ComputeConfig",
    "DataConfig",
    "Evaluation",
    "Guidance",
    "Interrupted",
    "ModelConfig",
    "OptimisationConfig",
    "RunConfig",
    "RunError",
    "TrainConfig",
    "TrainedModel",
    "evaluate",
    "load_images",
    "load_trained",
    "recalibrate",
    "train",
]
