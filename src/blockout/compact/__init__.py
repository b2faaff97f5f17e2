"""The hierarchy made physical: only connected nodes, in dense blocks, without the dead."""

from blockout.compact.branches import Branches, SparseConv2d, SparseLinear
from blockout.compact.cover import Costs
from blockout.compact.description import describe_layers, rebuild_layers
from blockout.compact.network import connected_weights, multiply_adds, notes, to_branches
from blockout.compact.timing import in_turns

__all__ = [
    "Branches",
    "Costs",
    "SparseConv2d",
    "SparseLinear",
    "connected_weights",
    "describe_layers",
    "in_turns",
    "multiply_adds",
    "notes",
    "rebuild_layers",
    "to_branches",
]
