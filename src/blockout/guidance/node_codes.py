"""Chooses a code (a subset of clusters) per hidden node: the clusters that it serves already."""

import torch
from jaxtyping import Float
from torch import Tensor

from blockout.guidance.class_codes import Codes
from blockout.layers import BlockoutLayer
from blockout.memberships import Memberships

SMALLEST_SHARE = 0.5
"""A cluster that serves any class has at least this share of an equal part of the nodes."""


def codes_of_nodes(
    layers: list[BlockoutLayer], known: dict[Memberships, Codes], budget: float
) -> dict[Memberships, Codes]:
    """Codes of all other sets of nodes, from the outputs back to the inputs.

    A node takes the clusters of the nodes that read it with the largest weights. Clusters are as
    large as the classes they serve are many, in every layer. Nodes that no layer reads, if their
    codes are not known, are divided evenly.

    Args:
        layers: of one model, in its order.
        known: codes of the classes.
        budget: clusters per node, on average.
    """
    codes = dict(known)
    for layer in reversed(layers):
        for nodes in (layer.outputs, layer.inputs):
            if nodes not in codes:
                readers = [r for r in layers if r.inputs is nodes and r.outputs in codes]
                sizes = _sizes(known, nodes.clusters)
                codes[nodes] = chosen_codes(_served(nodes, readers, codes), budget, sizes)
    return codes


def chosen_codes(
    served: Float[Tensor, "nodes clusters"], budget: float, sizes: Float[Tensor, " clusters"]
) -> Codes:
    """Zeros and ones: ``budget`` clusters per node on average, and each cluster's share of them.

    First each node takes one cluster, then the rest of the budget is spent. The pair of node and
    cluster that serves most comes first, as long as the cluster has room.

    >>> chosen_codes(torch.tensor([[3., 1.], [2., 1.], [0., 1.]]), 1, torch.tensor([2/3, 1/3]))
    tensor([[1., 0.],
            [1., 0.],
            [0., 1.]])
    """
    nodes, clusters = served.shape
    order = served.flatten().argsort(descending=True, stable=True).tolist()
    pairs = [divmod(place, clusters) for place in order]
    chosen, homes = torch.zeros(nodes, clusters), set()
    whole = _room(sizes, round(min(budget, clusters) * nodes), [nodes] * clusters)
    room = _room(sizes, round(min(budget, 1) * nodes), whole)
    for node, cluster in pairs:
        if node not in homes and room[cluster] > 0:
            homes.add(node)
            chosen[node, cluster] = 1
            room[cluster] -= 1
    room = (torch.tensor(whole) - chosen.sum(0)).tolist()
    for node, cluster in pairs:
        if budget > 1 and room[cluster] > 0 and chosen[node, cluster] == 0:
            chosen[node, cluster] = 1
            room[cluster] -= 1
    return chosen.to(served)


def _room(sizes: Float[Tensor, " clusters"], total: int, most: list[int]) -> list[int]:
    """Whole numbers of nodes per cluster that add up to ``total``; no cluster has more than its
    ``most``: a smaller total may give it more by rounding."""
    exact = [float(size) * total for size in sizes]
    room = [min(int(size), limit) for size, limit in zip(exact, most, strict=True)]
    open_ = [c for c, size in enumerate(exact) if size > 0]
    while sum(room) < min(total, sum(most[c] for c in open_)):
        wanting = max((c for c in open_ if room[c] < most[c]), key=lambda c: exact[c] - room[c])
        room[wanting] += 1
    return room


def _sizes(known: dict[Memberships, Codes], clusters: int) -> Float[Tensor, " clusters"]:
    """Each cluster's share of the nodes: that of the memberships of classes it has."""
    if not known:
        return torch.full((clusters,), 1 / clusters)
    serves = next(iter(known.values())).double().cpu().sum(0)
    share = serves / serves.sum()
    used = share > 0
    share = torch.where(used, share.clamp_min(SMALLEST_SHARE / int(used.sum())), 0.0)
    return share / share.sum()


def _served(
    nodes: Memberships, readers: list[BlockoutLayer], codes: dict[Memberships, Codes]
) -> Float[Tensor, "nodes clusters"]:
    """Which share of a node's outgoing weights (squared) leads to each cluster."""
    if not readers:
        turn = torch.arange(nodes.nodes)[:, None] % nodes.clusters
        return (turn == torch.arange(nodes.clusters)).float()
    served = torch.zeros(nodes.nodes, nodes.clusters, dtype=torch.float64)
    for layer in readers:
        energy = layer.weight.detach().double().square().cpu()
        energy = energy.reshape(len(energy), nodes.nodes, -1).sum(2)
        code = codes[layer.outputs].double().cpu()
        served += energy.T @ (code / code.sum(1, keepdim=True).clamp_min(1))
    return served / served.sum(1, keepdim=True).clamp_min(1e-30)
