"""Training: ``fit`` any module on any batches, or ``train`` on images with a run folder."""

from blockout.data import DataConfig
from blockout.guidance import Guidance
from blockout.models import ModelConfig
from blockout.runs.config import TrainConfig
from blockout.runs.errors import RunError
from blockout.runs.images import load_images
from blockout.runs.options import ComputeConfig, OptimisationConfig, RunConfig
from blockout.runs.run import Run
from blockout.runs.trained import TrainedModel
from blockout.training.engine import Diverged, Engine, Recipe, fit
from blockout.training.evaluation import Evaluation, evaluate, recalibrate
from blockout.training.images import training_images
from blockout.training.interrupts import Interrupted
from blockout.training.loop import train

__all__ = [
    "ComputeConfig",
    "DataConfig",
    "Diverged",
    "Engine",
    "Evaluation",
    "Guidance",
    "Interrupted",
    "ModelConfig",
    "OptimisationConfig",
    "Recipe",
    "Run",
    "RunConfig",
    "RunError",
    "TrainConfig",
    "TrainedModel",
    "evaluate",
    "fit",
    "load_images",
    "recalibrate",
    "train",
    "training_images",
]
