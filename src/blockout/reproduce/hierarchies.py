"""Hierarchies that are fixed beforehand, as the work that the paper cites has them.

A baseline's confusions are clustered spectrally, as in HD-CNN and the self-informed networks. Every
group of classes has a cluster of its own, with hidden nodes in proportion to its classes.
"""

import warnings

import numpy as np
import torch
from jaxtyping import Float, Int64
from sklearn.cluster import SpectralClustering
from torch import Tensor, nn

from blockout.layers import BlockoutLayer, memberships_of

Confusion = Float[np.ndarray, "classes classes"]
Groups = Int64[np.ndarray, " classes"]


def confused_groups(confusion: Confusion, count: int, seed: int = 0) -> Groups:
    """Groups of the classes that are confused with each other.

    >>> pairs = np.kron(np.eye(2), np.full((2, 2), 0.5))
    >>> confused_groups(pairs, 2).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True

    Args:
        confusion: for each class (row), how probable each class (column) looks on average.
        count: of the groups.
        seed: of the clustering's random start.
    """
    alike = (confusion + confusion.T) / 2
    np.fill_diagonal(alike, 0)
    if len(alike) <= count:
        return np.arange(len(alike))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected")
        clustering = SpectralClustering(count, affinity="precomputed", random_state=seed)
        return clustering.fit_predict(alike).astype(np.int64)


def merged_groups(groups: Groups, confusion: Confusion, count: int, seed: int = 0) -> Groups:
    """Known groups merged to ``count``: those whose classes are confused with each other."""
    of = np.eye(groups.max() + 1)[groups]  # (classes, groups)
    between = of.T @ confusion @ of / np.outer(of.sum(0), of.sum(0))
    return confused_groups(between, count, seed)[groups]


def shuffled_groups(groups: Groups, seed: int) -> Groups:
    """Groups of the same sizes, with classes at random."""
    return np.random.default_rng(seed).permutation(groups)


def one_hot(groups: Groups, clusters: int) -> Float[Tensor, "classes clusters"]:
    return torch.from_numpy(np.eye(clusters, dtype=np.float32)[groups])


def shared_out(groups: Groups, nodes: int, clusters: int) -> Float[Tensor, "nodes clusters"]:
    """Hidden nodes for the clusters, in proportion to their classes.

    >>> shared_out(np.array([0, 0, 0, 1]), 8, 2).sum(0)
    tensor([6., 2.])
    """
    sizes = np.bincount(groups, minlength=clusters).cumsum()
    ends = np.round(nodes * sizes / len(groups)).astype(np.int64)
    return one_hot(np.searchsorted(ends, np.arange(nodes), side="right"), clusters)


def give(head: nn.Module, groups: Groups) -> None:
    """Gives the memberships of a head: they are neither drawn nor learned."""
    found = list(memberships_of(head).values())
    for m in found[:-1]:
        m.initial = shared_out(groups, m.nodes, m.clusters)
    found[-1].initial = one_hot(groups, found[-1].clusters)
    _start_again(head)


def give_probability(head: nn.Module, probability: float) -> None:
    """Sets the fixed P of all memberships of a head."""
    for m in memberships_of(head).values():
        m.initial = torch.full((1, m.clusters), probability)
    _start_again(head)


def _start_again(head: nn.Module) -> None:
    """The scale of the weights follows from the memberships."""
    for m in memberships_of(head).values():
        m.reset_parameters()
    for layer in head.modules():
        if isinstance(layer, BlockoutLayer):
            layer.reset_parameters()
