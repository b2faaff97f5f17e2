"""Which layers of a model make which nodes, which layers read them, and which nodes live."""

from blockout.graph.holders import held_outside
from blockout.graph.joints import Joint, Reader, constant_arriving, find_joints
from blockout.graph.liveness import connected_pairs, living_codes, without_partner
from blockout.graph.plain import PlainLayer, geometry, why_not_plain
from blockout.graph.producers import find_producers
from blockout.graph.tracing import refuse_weights_read_directly

__all__ = [
    "Joint",
    "PlainLayer",
    "Reader",
    "connected_pairs",
    "constant_arriving",
    "find_joints",
    "find_producers",
    "geometry",
    "held_outside",
    "living_codes",
    "refuse_weights_read_directly",
    "why_not_plain",
    "without_partner",
]
