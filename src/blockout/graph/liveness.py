"""Which nodes are alive at a threshold, and which connections are left between them.

A connection is left where its two nodes share a cluster and both are alive. A node is alive if
something living feeds it and something living reads it. Nodes that no Blockout layer makes count as
fed, and nodes that none reads count as read.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

Codes = Bool[Tensor, "nodes clusters"]
"""Which node belongs to which cluster; a dead node has no cluster."""


def living_codes(codes: Mapping[str, Codes], layers: Sequence[tuple[str, str]]) -> dict[str, Codes]:
    """The codes of every set of nodes, with those of dead nodes cleared.

    Args:
        codes: by the name of the set.
        layers: the sets that each layer reads and makes, in any order.

    Cluster 1 ends at the first layer's outputs, so its inputs die:

    >>> both = torch.eye(2, dtype=torch.bool)
    >>> first = torch.tensor([[True, False], [True, False]])
    >>> living_codes({"a": both, "b": both, "c": first}, [("a", "b"), ("b", "c")])["a"].tolist()
    [[True, False], [False, False]]
    """
    alive = {name: found.clone() for name, found in codes.items()}
    changed = True
    while changed:
        changed = False
        for name, own in alive.items():
            feeding = [alive[inputs] for inputs, outputs in layers if outputs == name]
            reading = [alive[outputs] for inputs, outputs in layers if inputs == name]
            for others in filter(None, (feeding, reading)):
                dying = own.any(1) & without_partner(own, others)
                own[dying] = False
                changed |= bool(dying.any())
    return alive


def without_partner(codes: Codes, others: Iterable[Codes]) -> Bool[Tensor, " nodes"]:
    """Which nodes share a cluster with none of the others.

    >>> codes = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    >>> without_partner(codes, [codes[:1]])
    tensor([False,  True,  True])
    """
    clusters = torch.stack([other.any(0) for other in others]).any(0)
    return ~(codes & clusters).any(1)


def connected_pairs(outputs: Codes, inputs: Codes) -> int:
    """How many pairs of an output and an input share a cluster; codes are few, nodes may be many.

    >>> codes = torch.tensor([[1, 0], [1, 1], [0, 0]], dtype=torch.bool)
    >>> connected_pairs(codes, codes)
    4
    """
    codes_out, nodes_out = torch.unique(outputs, dim=0, return_counts=True)
    codes_in, nodes_in = torch.unique(inputs, dim=0, return_counts=True)
    shared = codes_out.float() @ codes_in.float().T > 0
    return int(nodes_out.double() @ shared.double() @ nodes_in.double())
