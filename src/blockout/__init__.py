"""Blockout: networks that learn their own branching as they train (Murdock et al., CVPR 2016)."""

from blockout import starting  # noqa: F401  # first: importing torch takes seconds
from blockout.compact import to_branches
from blockout.convert import convert, to_dense
from blockout.dropconnect import DropConnectLinear
from blockout.guidance import Guidance, Guide
from blockout.layers import BlockoutConv2d, BlockoutLinear
from blockout.memberships import Memberships
from blockout.optimisation import parameter_groups
from blockout.sampling import SampledPrediction, one_draw, sample_predictions, seed_draws
from blockout.structure import Structure

__version__ = "0.1.0"

__all__ = [
    "BlockoutConv2d",
    "BlockoutLinear",
    "DropConnectLinear",
    "Guidance",
    "Guide",
    "Memberships",
    "SampledPrediction",
    "Structure",
    "convert",
    "one_draw",
    "parameter_groups",
    "sample_predictions",
    "seed_draws",
    "to_branches",
    "to_dense",
]
