"""The compact network: dense blocks that hold only the connections between living nodes."""

from blockout.compact.blocks import DenseBlocks, SparseConv2d, SparseLinear
from blockout.compact.cover import Costs
from blockout.compact.description import describe_layers, rebuild_layers
from blockout.compact.network import connected_weights, multiply_adds, notes, to_branches
from blockout.compact.timing import in_turns

__all__ = [
    "Costs",
    "DenseBlocks",
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
