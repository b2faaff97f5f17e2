"""A structure in words, for the terminal."""

import textwrap
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import torch

from blockout.structure.nodes import ClassGroup, Cost, on_one_line, role_of

if TYPE_CHECKING:
    from blockout.structure.groups import Agreement
    from blockout.structure.structure import Structure

WIDTH, NAMES_SHOWN, CLUSTERS_SHOWN = 96, 60, 12
NO_BREAK = "\u00a0"


def as_text(structure: "Structure") -> str:
    """Groups of classes by name, what they share, which nodes are dead and how much is left."""
    parts = [
        _opening(structure),
        _groups(structure) + _lost(structure),
        _sharing(structure),
        _sets(structure),
        _costs(structure),
    ]
    if structure.taxonomy:
        parts.insert(2, in_words(structure.agreement()))
    return "\n\n".join("\n".join(part) for part in parts)


def in_words(agreement: "Agreement") -> list[str]:
    """How well groups match the taxonomy, and how often chance would do as well."""
    names = ("adjusted Rand index", "normalised mutual information", "AUC of co-membership")
    meanings = (
        "of the groups: 1 the same, 0 chance",
        "of the groups: 1 the same; chance is above 0",
        "of pairs: 1 if pairs of one known group are always more similar, 0.5 chance",
    )
    values = (agreement.adjusted_rand, agreement.nmi, agreement.auc)
    p_values = (agreement.p_value, agreement.nmi_p_value, agreement.auc_p_value)
    rows = [
        [name, f"{value:.2f}", f"{p:.2g}", meaning]
        for name, value, p, meaning in zip(names, values, p_values, meanings, strict=True)
        if value is not None
    ]
    last = [p for p in p_values if p is not None][-1]
    verdict = "more similar" if last < 0.01 else "not clearly more similar"
    return [
        "Against the taxonomy, the known groups of classes (p: how often chance does as well)",
        *_table([["", "", "p", ""], *rows], left=(0, 3)),
        f"  Classes of one known group are {verdict} here than by chance.",
    ]


def _opening(structure: "Structure") -> list[str]:
    classes = structure.class_set
    text = (
        f"{classes.nodes} classes and the nodes before them may belong to {classes.clusters} "
        f"clusters, the branches of the network. A node belongs to a cluster where its probability "
        f"P is at least {classes.threshold:g}. Two nodes are connected where they share a cluster; "
        f"{structure.total.left:.0%} of the connections are left between living nodes."
    )
    return textwrap.wrap(text, WIDTH)


def _groups(structure: "Structure") -> list[str]:
    count = len(structure.class_groups)
    lines = [f"{count} group{'s' if count > 1 else ''} of classes with similar memberships"]
    for group in structure.class_groups:
        head = f"  {group.name:<2} {len(group.members):>4}  "
        lines += _named(structure, group.members, head)
        lines.append(" " * len(head) + f"[{_clusters(group)}]")
    return lines


def _lost(structure: "Structure") -> list[str]:
    """Dead classes, which the network can no longer recognise."""
    dead = (~structure.alive[structure.class_set.name]).nonzero().flatten().tolist()
    head = "  Nothing of the input reaches these classes: "
    return _named(structure, dead, head) if dead else []


def _named(structure: "Structure", classes: Sequence[int], head: str) -> list[str]:
    """Names of classes after a heading; no name is broken in two."""
    names = [on_one_line(structure.classes[c]) for c in classes[:NAMES_SHOWN]]
    rest = len(classes) - len(names)
    whole = ", ".join(name.replace(" ", NO_BREAK) for name in names)
    lines = textwrap.wrap(
        whole + (f" and {rest} more" if rest else ""),
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * min(len(head), 11),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK, " ") for line in lines]


def _clusters(group: ClassGroup) -> str:
    """
    >>> _clusters(ClassGroup("A", (0, 1, 2, 3), (0, 2, 4, 3)))
    'all in cluster 2; some also in 3 (3 classes), 1 (2)'
    """
    every = ", ".join(map(str, group.clusters_of_all))
    counts = [f"{c} ({group.cluster_sizes[c]})" for c in group.clusters_of_some]
    if counts:
        counts[0] = counts[0][:-1] + " classes)"
    clusters = "clusters" if len(group.clusters_of_all) > 1 else "cluster"
    if every and counts:
        return f"all in {clusters} {every}; some also in {', '.join(counts)}"
    if every:
        return f"all in {clusters} {every} and no other"
    return f"some in cluster {', '.join(counts)}" if counts else "in no cluster at all"


def _sharing(structure: "Structure") -> list[str]:
    """How many nodes serve all groups, several, or one; which groups share no cluster."""
    groups = structure.class_groups
    reached = [structure.reached_by(group.members) for group in groups]
    rows = [["", "all groups", "several", "one alone", "none"]]
    for name in structure.sets:
        if name == structure.class_set.name:
            continue
        served = torch.stack([by_group[name] for by_group in reached]).sum(0)
        every, none = int((served == len(groups)).sum()), int((served == 0).sum())
        one = int((served == 1).sum()) if len(groups) > 1 else 0
        several = len(served) - every - one - none
        rows.append([name, *map(str, (every, several, one, none))])
    title = "What is shared, what is separate: nodes with a path to the classes of"
    return [title, *_table(rows, left=(0,)), *_separate(groups)]


def _separate(groups: Sequence[ClassGroup]) -> list[str]:
    clusters = {g.name: {*g.clusters_of_all, *g.clusters_of_some} for g in groups}
    pairs = list(combinations(clusters, 2))
    if not pairs:
        return []
    apart = [f"{a}|{b}" for a, b in pairs if clusters[a].isdisjoint(clusters[b])]
    text = f"{len(apart)} of the {len(pairs)} pairs of groups share no cluster"
    if apart:
        more = f" and {len(apart) - 12} more" if len(apart) > 12 else ""
        text += f": {' '.join(apart[:12])}{more}"
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _sets(structure: "Structure") -> list[str]:
    sets = structure.sets
    most = max(nodes.clusters for nodes in sets.values())
    shown = min(most, CLUSTERS_SHOWN)
    columns = [*map(str, range(1, shown)), *(["..."] if most > shown else [])]
    rows = [["", "", "nodes", "dead", "clusters per node", "in cluster 0", *columns]]
    for name, nodes in sets.items():
        is_classes = "classes, " if name == structure.class_set.name else ""
        role = is_classes + role_of(name, structure.layers)
        dead = int((~structure.alive[name]).sum())
        mean = f"{sum(nodes.cluster_sizes) / nodes.nodes:.2f}"
        sizes = map(str, nodes.cluster_sizes[:shown])
        rows.append([name, role, str(nodes.nodes), str(dead), mean, *sizes])
    note = "  A node is dead if nothing living feeds it or nothing living reads it."
    return ["Sets of nodes", *_table(rows, left=(0, 1)), note]


def _costs(structure: "Structure") -> list[str]:
    costs: list[tuple[str, Cost]] = [(cost.layer.name, cost) for cost in structure.costs]
    if len(costs) > 1:
        costs.append(("all", structure.total))
    rows = [["", "weights", "of", "multiply-adds", "of", "left"]]
    for name, c in costs:
        weights = [c.weights_after, c.weights_before]
        products = [c.multiply_adds_after, c.multiply_adds_before]
        rows.append([name, *(f"{n:,}" for n in weights + products), f"{c.left:.1%}"])
    note = "  The Blockout layers alone, without biases; for one example."
    if any(layer.positions is None for layer in structure.layers):
        note += " Convolutions: for one output position."
    return ["What is left", *_table(rows, left=(0,)), note]


def _table(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Aligned columns: those in ``left`` to the left, the rest to the right; rows may be short.

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
