"""The groups in which a run's classes are shown: those it learned, or those that the data knows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from blockout.report.tree import tree_of
from blockout.report.view import RunView


@dataclass(frozen=True)
class Grouping:
    """Every class in one group; groups and the classes in them stand in the order to show."""

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    learned: bool
    """Found by training, not known beforehand."""

    @property
    def order(self) -> list[int]:
        """The classes, group by group."""
        return [c for group in self.members for c in group]

    @property
    def of_class(self) -> Int64[np.ndarray, "classes"]:
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


def learned_groups(view: RunView) -> Grouping | None:
    """Groups of classes with like memberships, along the leaves of their tree; None where there is
    nothing to tell them apart."""
    p = view.class_memberships
    if view.structure is None or p is None or view.one_branch:
        return None
    place = {c: i for i, c in enumerate(tree_of(p).leaves)}
    groups = sorted(
        view.structure.class_groups, key=lambda group: min(place[c] for c in group.members)
    )
    members = tuple(tuple(sorted(group.members, key=place.__getitem__)) for group in groups)
    return Grouping(tuple(group.name for group in groups), members, learned=True)


def known_groups(view: RunView) -> Grouping | None:
    """The data's own groups, such as superclasses or nested folders."""
    if view.groups is None:
        return None
    found = sorted(set(view.groups))
    names = view.group_names
    members = tuple(tuple(c for c, own in enumerate(view.groups) if own == g) for g in found)
    return Grouping(tuple(names[g] if names else str(g) for g in found), members, learned=False)


def groups_to_show(view: RunView) -> Grouping:
    """Learned groups; without them the data's own; without these all classes in one."""
    everything = Grouping(("all",), (tuple(range(len(view.classes))),), learned=False)
    return learned_groups(view) or known_groups(view) or everything


def some_names(names: Sequence[str], most: int) -> str:
    """
    >>> some_names(["ash", "elm", "oak", "fir"], 2)
    'ash, elm, +2'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f", +{rest}" if rest > 0 else "")
