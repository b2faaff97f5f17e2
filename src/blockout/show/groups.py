"""Groups of a run's classes, learned or known, and the tree in which classes join."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int64

from blockout.runs import Run
from blockout.structure.groups import class_tree


@dataclass(frozen=True)
class Tree:
    """Merges of pairs, the nearest first; merge ``i`` of n leaves makes node ``n + i``."""

    merges: Int64[np.ndarray, "joins 2"]
    heights: Float[np.ndarray, " joins"]
    """Distance at which they join: 0 for the same memberships, 2 for opposite ones."""

    @property
    def count(self) -> int:
        """Leaves."""
        return len(self.merges) + 1

    @cached_property
    def below(self) -> list[list[int]]:
        """The leaves below every node, in drawing order."""
        found = [[leaf] for leaf in range(self.count)]
        for a, b in self.merges.tolist():
            # the larger side first: a tree that adds one leaf at a time then reads from the top
            first, second = sorted((found[a], found[b]), key=len, reverse=True)
            found.append(first + second)
        return found

    @property
    def leaves(self) -> list[int]:
        """All leaves, in an order in which no lines cross."""
        return self.below[-1]


def tree_of(p: Float[np.ndarray, "classes clusters"]) -> Tree:
    """By average linkage over the cosine of centred memberships, as ``Structure.class_groups``.

    >>> tree_of(np.array([[.9, .1], [.1, .9], [.8, .1]])).leaves
    [0, 2, 1]
    """
    linked = class_tree(p)
    return Tree(linked[:, :2].astype(np.int64), linked[:, 2])


@dataclass(frozen=True)
class Grouping:
    """Every class in one group; groups and the classes in them are in the order to show."""

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    learned: bool
    """Found by training, not known beforehand."""

    @property
    def order(self) -> list[int]:
        """The classes, group by group."""
        return [c for group in self.members for c in group]

    @property
    def of_class(self) -> Int64[np.ndarray, " classes"]:
        """The group of every class."""
        found = np.zeros(len(self.order), dtype=np.int64)
        for number, group in enumerate(self.members):
            found[list(group)] = number
        return found

    @property
    def starts(self) -> list[int]:
        """Where in ``order`` each group begins, and where the last one ends.

        >>> Grouping(("A", "B"), ((2, 0), (1,)), True).starts
        [0, 2, 3]
        """
        return [0, *np.cumsum([len(group) for group in self.members]).tolist()]

    @property
    def tells(self) -> bool:
        """Whether it groups anything: several groups, one of them with several classes."""
        return 1 < len(self.names) < len(self.order)


def learned_groups(run: Run) -> Grouping | None:
    """Groups of classes with similar memberships, along the leaves of their tree; None without."""
    p = run.class_memberships
    if run.structure is None or p is None or run.one_branch:
        return None
    place = {c: i for i, c in enumerate(tree_of(p).leaves)}
    groups = sorted(
        run.structure.class_groups, key=lambda group: min(place[c] for c in group.members)
    )
    members = tuple(tuple(sorted(group.members, key=place.__getitem__)) for group in groups)
    return Grouping(tuple(group.name for group in groups), members, learned=True)


def known_groups(run: Run) -> Grouping | None:
    """The data's own groups, such as superclasses or nested folders; None without."""
    if run.description is None or run.description.groups is None:
        return None
    of_class, names = run.description.groups, run.description.group_names
    found = sorted(set(of_class))
    members = tuple(tuple(c for c, own in enumerate(of_class) if own == g) for g in found)
    return Grouping(tuple(names[g] if names else str(g) for g in found), members, learned=False)


def groups_to_show(run: Run) -> Grouping:
    """The learned groups; without them the data's own; without those, all classes in one."""
    everything = Grouping(("all",), (tuple(range(len(run.classes))),), learned=False)
    return learned_groups(run) or known_groups(run) or everything
