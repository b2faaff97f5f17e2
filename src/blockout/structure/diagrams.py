"""The branching network for Graphviz and Mermaid: boxes of nodes, edges between connected ones."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from blockout.structure.nodes import Code, NodeSet, on_one_line, role_of

if TYPE_CHECKING:
    from blockout.structure.structure import Structure

NAMES_SHOWN, NAMES_A_LINE = 12, 4
PLAIN = frozenset(" -_.,:()/+*'=!?@~^|{}[]")
"""Punctuation without a meaning in a quoted Mermaid label."""


@dataclass(frozen=True)
class Box:
    """Nodes of one set that a diagram draws as one box."""

    id: str
    codes: dict[Code, int]
    """The number of nodes per code."""
    lines: tuple[str, ...]
    """The label."""


def as_dot(structure: "Structure", most: int) -> str:
    """For Graphviz: `dot -Tsvg`. A dashed edge connects only some pairs of its two boxes.

    A set with at most ``most`` codes has one box per code: the nodes that belong to exactly these
    clusters. A set with more codes has one box per cluster, and a node of several clusters is in
    several boxes; classes are drawn in groups instead. Nodes without clusters have a box without
    edges.
    """
    boxes = _boxes(structure, most)
    lines = ["digraph blockout {", "  rankdir=LR; node [shape=box];"]
    for number, (name, nodes) in enumerate(structure.sets.items()):
        title = _in_dot(_title(structure, nodes))
        lines += [f"  subgraph cluster_{number} {{", f'    label="{title}";']
        for box in boxes[name]:
            style = ", style=dotted" if set(box.codes) == {()} else ""
            label = "\\n".join(_in_dot(line) for line in box.lines)
            lines.append(f'    {box.id} [label="{label}"{style}];')
        lines.append("  }")
    for start, end, share in _edges(boxes, structure):
        lines.append(f"  {start.id} -> {end.id}{'' if share == 1 else ' [style=dashed]'};")
    return "\n".join([*lines, "}"]) + "\n"


def as_mermaid(structure: "Structure", most: int) -> str:
    """For Mermaid, as used in Markdown; the same boxes and edges as ``as_dot``."""
    boxes = _boxes(structure, most)
    lines = ["flowchart LR"]
    for number, (name, nodes) in enumerate(structure.sets.items()):
        lines.append(f'  subgraph s{number}["{_in_mermaid(_title(structure, nodes))}"]')
        for box in boxes[name]:
            label = "<br/>".join(_in_mermaid(line) for line in box.lines)
            lines.append(f'    {box.id}["{label}"]')
        lines.append("  end")
    for start, end, share in _edges(boxes, structure):
        lines.append(f"  {start.id} {'-->' if share == 1 else '-.->'} {end.id}")
    return "\n".join(lines) + "\n"


def connected_share(inputs: Mapping[Code, int], outputs: Mapping[Code, int]) -> float:
    """The share of pairs of nodes that have a cluster in common.

    >>> connected_share({(0,): 2, (1,): 2}, {(0, 2): 5})
    0.5
    """
    together = sum(
        m * n for a, m in inputs.items() for b, n in outputs.items() if not set(a).isdisjoint(b)
    )
    return together / (sum(inputs.values()) * sum(outputs.values()))


def _boxes(structure: "Structure", most: int) -> dict[str, list[Box]]:
    if most < 1:
        raise ValueError(f"a set of nodes needs at least one box, got most={most}")
    found = {}
    for number, (name, nodes) in enumerate(structure.sets.items()):
        names = structure.classes if name == structure.class_set.name else None
        if sum(1 for code in nodes.nodes_by_code if code) <= most:
            contents = list(_code_boxes(nodes, names))
        elif names is not None:
            contents = list(_group_boxes(structure))
        else:
            contents = list(_cluster_boxes(nodes))
        if nodes.without_cluster:
            contents.append(({(): 1}, ["no cluster", *_who(nodes.without_cluster, names)]))
        found[name] = [
            Box(f"n{number}_{i}", codes, tuple(lines)) for i, (codes, lines) in enumerate(contents)
        ]
    return found


Contents = tuple[dict[Code, int], list[str]]


def _code_boxes(nodes: NodeSet, names: Sequence[str] | None) -> Iterator[Contents]:
    for code, members in nodes.nodes_by_code.items():
        if code:
            title = f"cluster{'s' if len(code) > 1 else ''} {' + '.join(map(str, code))}"
            yield {code: len(members)}, [title, *_who(members, names)]


def _cluster_boxes(nodes: NodeSet) -> Iterator[Contents]:
    for cluster, size in enumerate(nodes.cluster_sizes):
        if size:
            alone = len(nodes.nodes_by_code.get((cluster,), ()))
            lines = [f"in cluster {cluster}", _count(size), f"{alone} of them in no other"]
            yield {(cluster,): size}, lines


def _group_boxes(structure: "Structure") -> Iterator[Contents]:
    codes = structure.class_set.codes
    for group in structure.class_groups:
        if living := [member for member in group.members if codes[member]]:
            lines = [f"group {group.name}", *_who(living, structure.classes)]
            yield dict(Counter(codes[member] for member in living)), lines


def _who(members: Sequence[int], names: Sequence[str] | None) -> list[str]:
    if names is None:
        return [_count(len(members))]
    return _listed([names[member] for member in members])


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def _listed(names: Sequence[str]) -> list[str]:
    shown = names if len(names) <= NAMES_SHOWN + 1 else names[:NAMES_SHOWN]
    rows = [shown[i : i + NAMES_A_LINE] for i in range(0, len(shown), NAMES_A_LINE)]
    rest = len(names) - len(shown)
    return [", ".join(row) for row in rows] + ([f"and {rest} more"] if rest else [])


def _title(structure: "Structure", nodes: NodeSet) -> str:
    what = "classes, " if nodes.name == structure.class_set.name else ""
    return f"{nodes.name}: {nodes.nodes} {what}{role_of(nodes.name, structure.layers)}"


def _edges(
    boxes: Mapping[str, list[Box]], structure: "Structure"
) -> Iterator[tuple[Box, Box, float]]:
    drawn = dict.fromkeys((layer.inputs, layer.outputs) for layer in structure.layers)
    for start, end in (pair for i, o in drawn for pair in product(boxes[i], boxes[o])):
        if share := connected_share(start.codes, end.codes):
            yield start, end, share


def _in_dot(text: str) -> str:
    """Text for a quoted Graphviz label: quotes, backslashes and ampersands are escaped.

    >>> print(_in_dot('say "<b>" & \\\\N'))
    say \\"<b>\\" &amp; \\\\N
    """
    text = on_one_line(text).replace("\\", "\\\\").replace('"', '\\"')
    return text.replace("&", "&amp;")


def _in_mermaid(text: str) -> str:
    """Text for a quoted Mermaid label: punctuation with a meaning becomes a numbered entity.

    >>> _in_mermaid('a "quoted" <b>')
    'a #34;quoted#34; #60;b#62;'
    """
    return "".join(
        c if c.isalnum() or c in PLAIN or ord(c) > 127 else f"#{ord(c)};" for c in on_one_line(text)
    )
