"""A structure in words, for a terminal."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from blockout.nodesets import ClassGroup, LayerCost, NodeSet, on_one_line, role_of

if TYPE_CHECKING:
    from blockout.analysis import Agreement

WIDTH, NAMES_SHOWN, CLUSTERS_SHOWN = 96, 60, 12
NO_BREAK = "\u00a0"


@dataclass(frozen=True)
class GroupUse:
    """A group of classes, and the nodes of every set that have a path to it."""

    group: ClassGroup
    reached: dict[str, Bool[Tensor, "nodes"]]


def as_text(
    sets: Mapping[str, NodeSet],
    costs: Sequence[LayerCost],
    class_set: str,
    classes: Sequence[str],
    uses: Sequence[GroupUse],
    agreement: "Agreement | None",
) -> str:
    """Groups of classes by name, what they share, what is dead and how much is left."""
    parts = [
        _opening(sets, costs, class_set),
        _groups(uses, classes) + _lost(sets[class_set], classes),
        _sharing(uses, sets, class_set),
        _sets(sets, costs, class_set),
        _costs(costs),
    ]
    if agreement is not None:
        parts.insert(2, in_words(agreement))
    return "\n\n".join("\n".join(part) for part in parts)


def in_words(agreement: "Agreement") -> list[str]:
    """How groups agree with known ones, and whether chance would do as well."""
    rows = [
        ("adjusted Rand index", agreement.adjusted_rand, agreement.p_value,
         "of the groups: 1 the same, 0 chance"),
        ("normalised mutual information", agreement.nmi, agreement.nmi_p_value,
         "of the groups: 1 the same; chance is above 0"),
        ("AUC of co-membership", agreement.auc, agreement.auc_p_value,
         "of pairs: 1 if those of one known group are always more alike, 0.5 chance"),
    ]  # fmt: skip
    known = [(name, value, p, what) for name, value, p, what in rows if value is not None]
    cells = [[name, f"{value:.2f}", f"{p:.2g}", what] for name, value, p, what in known]
    verdict = "more alike" if known[-1][2] < 0.01 else "not clearly more alike"
    return [
        "Against the known groups of these classes (p: how often chance does as well)",
        *_table([["", "", "p", ""], *cells], left=(0, 3)),
        f"  Classes of one known group are {verdict} here than by chance.",
    ]


def _opening(sets: Mapping[str, NodeSet], costs: Sequence[LayerCost], class_set: str) -> list[str]:
    classes = sets[class_set]
    left = sum(c.weights_after for c in costs) / sum(c.weights_before for c in costs)
    text = (
        f"{classes.nodes} classes and the nodes before them may belong to {classes.clusters} "
        f"clusters, the branches of the network. A node belongs to a cluster where its probability "
        f"P is at least {classes.threshold:g}. Two nodes are connected where they share a cluster: "
        f"{left:.0%} of the connections are left."
    )
    return textwrap.wrap(text, WIDTH)


def _groups(uses: Sequence[GroupUse], classes: Sequence[str]) -> list[str]:
    count = len(uses)
    lines = [f"{count} group{'s' if count > 1 else ''} of classes with like memberships"]
    for use in uses:
        group = use.group
        names = [on_one_line(classes[c]) for c in group.members[:NAMES_SHOWN]]
        rest = len(group.members) - len(names)
        head = f"  {group.name:<2} {len(group.members):>4}  "
        lines += _wrapped(names, rest, head)
        lines.append(" " * len(head) + f"[{_branches(group)}]")
    return lines


def _lost(nodes: NodeSet, classes: Sequence[str]) -> list[str]:
    """Classes without a cluster, which a network can no longer tell by its inputs."""
    if not nodes.dead:
        return []
    names = [on_one_line(classes[c]) for c in nodes.dead[:NAMES_SHOWN]]
    head = "  In no cluster, so that nothing of the input reaches them: "
    return _wrapped(names, len(nodes.dead) - len(names), head)


def _wrapped(names: Sequence[str], rest: int, head: str) -> list[str]:
    """Names behind a heading; no name is broken in two."""
    whole = ", ".join(name.replace(" ", NO_BREAK) for name in names)
    lines = textwrap.wrap(
        whole + (f" and {rest} more" if rest else ""), WIDTH, initial_indent=head,
        subsequent_indent=" " * min(len(head), 11), break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(NO_BREAK, " ") for line in lines]


def _branches(group: ClassGroup) -> str:
    """
    >>> _branches(ClassGroup("A", (0, 1, 2, 3), (0, 2, 4, 3)))
    'all in cluster 2; some also in 3 (3 classes), 1 (2)'
    """
    every = ", ".join(map(str, group.clusters_of_all))
    counts = [f"{c} ({group.branch_sizes[c]})" for c in group.clusters_of_some]
    if counts:
        counts[0] = counts[0][:-1] + " classes)"
    clusters = "clusters" if len(group.clusters_of_all) > 1 else "cluster"
    if every and counts:
        return f"all in {clusters} {every}; some also in {', '.join(counts)}"
    if every:
        return f"all in {clusters} {every} and no other"
    return f"some in cluster {', '.join(counts)}" if counts else "in no cluster at all"


def _sharing(uses: Sequence[GroupUse], sets: Mapping[str, NodeSet], class_set: str) -> list[str]:
    """How many nodes serve all groups, some, or one alone; which groups have nothing in common."""
    rows = [["", "all groups", "several", "one alone", "none"]]
    for name in sets:
        if name == class_set:
            continue
        served = torch.stack([use.reached[name] for use in uses]).sum(0)
        every, none = int((served == len(uses)).sum()), int((served == 0).sum())
        one = int((served == 1).sum()) if len(uses) > 1 else 0
        several = len(served) - every - one - none
        rows.append([name, *map(str, (every, several, one, none))])
    title = "What is shared, what is separate: nodes with a path to the classes of"
    return [title, *_table(rows, left=(0,)), *_separate(uses)]


def _separate(uses: Sequence[GroupUse]) -> list[str]:
    clusters = {u.group.name: {*u.group.clusters_of_all, *u.group.clusters_of_some} for u in uses}
    names = list(clusters)
    apart = [
        f"{a}|{b}"
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if clusters[a].isdisjoint(clusters[b])
    ]
    pairs = len(names) * (len(names) - 1) // 2
    if not pairs:
        return []
    text = f"{len(apart)} of the {pairs} pairs of groups share no cluster"
    if apart:
        more = f" and {len(apart) - 12} more" if len(apart) > 12 else ""
        text += f": {' '.join(apart[:12])}{more}"
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _sets(sets: Mapping[str, NodeSet], costs: Sequence[LayerCost], class_set: str) -> list[str]:
    layers = [cost.layer for cost in costs]
    most = max(nodes.clusters for nodes in sets.values())
    shown = min(most, CLUSTERS_SHOWN)
    columns = [*map(str, range(1, shown)), *(["..."] if most > shown else [])]
    rows = [["", "", "nodes", "dead", "clusters a node", "in cluster 0", *columns]]
    for name, nodes in sets.items():
        role = ("classes, " if name == class_set else "") + role_of(name, layers)
        mean = f"{sum(nodes.branch_sizes) / nodes.nodes:.2f}"
        sizes = map(str, nodes.branch_sizes[:shown])
        rows.append([name, role, str(nodes.nodes), str(len(nodes.dead)), mean, *sizes])
    note = "  A dead node is in no cluster: nothing passes through it."
    return ["Sets of nodes", *_table(rows, left=(0, 1)), note]


def _costs(costs: Sequence[LayerCost]) -> list[str]:
    numbers = [
        [c.weights_after, c.weights_before, c.multiply_adds_after, c.multiply_adds_before]
        for c in costs
    ]
    names = [cost.layer.name for cost in costs]
    if len(costs) > 1:
        names.append("all")
        numbers.append([sum(column) for column in zip(*numbers, strict=True)])
    rows = [["", "weights", "of", "multiply-adds", "of", "left"]]
    for name, row in zip(names, numbers, strict=True):
        left = row[2] / row[3] if row[3] else 0.0
        rows.append([name, *(f"{number:,}" for number in row), f"{left:.1%}"])
    note = "  The Blockout layers alone, without biases; for one example."
    if any(cost.layer.positions is None for cost in costs):
        note += " Convolutions: for one output position."
    return ["What is left", *_table(rows, left=(0,)), note]


def _table(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Columns of equal width, those of ``left`` flush left; shorter rows end early.

    >>> _table([["", "nodes"], ["P_0", "12"]], left=(0,))
    ['       nodes', '  P_0     12']
    """
    cells = [[on_one_line(cell) for cell in row] for row in rows]
    count = max(map(len, cells))
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(count)]
    lines = []
    for row in cells:
        padded = [
            cell.ljust(widths[i]) if i in left else cell.rjust(widths[i])
            for i, cell in enumerate(row)
        ]
        lines.append("  " + "  ".join(padded).rstrip())
    return lines
