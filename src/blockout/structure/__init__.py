"""What a network has become: codes of nodes, groups of classes, and the connections left."""

from blockout.structure.structure import Neighbour, Structure

__all__ = ["Neighbour", "Structure"]
