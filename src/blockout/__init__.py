"""Blockout: networks that learn their own branching as they train (Murdock et al., CVPR 2016)."""

from blockout.convert import convert, to_dense
from blockout.layers import BlockoutConv2d, BlockoutLinear, DropConnectLinear
from blockout.memberships import Memberships
from blockout.optimisation import parameter_groups
from blockout.sampling import SampledPrediction, sample_predictions, seed_draws

__version__ = "0.1.0"

__all__ = [
    "BlockoutConv2d",
    "BlockoutLinear",
    "DropConnectLinear",
    "Memberships",
    "SampledPrediction",
    "convert",
    "parameter_groups",
    "sample_predictions",
    "seed_draws",
    "to_dense",
]
