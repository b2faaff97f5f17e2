"""What was learned beside what is known: agreement with the data's own groups, and how far mistakes
lie from the truth in both."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from blockout.analysis import Agreement
from blockout.report.grouping import Grouping, known_groups, learned_groups
from blockout.report.panels import CELLS, LINE
from blockout.report.section import PALETTE, Figure, Section, plain
from blockout.report.selection import in_detail, with_branches, with_predictions
from blockout.report.view import RunView

PERMUTATIONS = 1000
TALLEST = 900
"""Pixels of a table of groups."""
SURE = 0.01
"""A p-value below this is no chance."""

LEAD = (
    "This data comes with groups of classes{told}. {found}When the network is wrong, does it at "
    "least stay in the right group?"
)
UNTOLD = " that training was not told"
TOLD = " that training was told, to put their classes together (--affinity-from groups)"
FOUND = "Did the network find them? "


def section(runs: Sequence[RunView]) -> Section | None:
    """Agreement and distance of mistakes; None where the data knows no groups."""
    known = [run for run in with_predictions(runs) if _tells(known_groups(run))]
    if not known:
        return None
    with_groups = with_branches(known)
    words = "".join(f"<p>{_agreed(run, len(known) > 1)}</p>" for run in with_groups)
    found = [(run.name, kind, near) for run in known for kind, near in _distances(run).items()]
    body = words + _table(found)
    shown, left_out = in_detail(with_groups)
    overlaps = [_overlap(run, i, len(shown) > 1) for i, run in enumerate(shown)]
    figures = (*overlaps, *([_bars(wrong)] if (wrong := _some(found)) else []))
    title = "Learned groups and known groups" if with_groups else "Mistakes and known groups"
    told = any(run.config.get("affinity_from") == "groups" and run.guided for run in with_groups)
    lead = LEAD.format(told=TOLD if told else UNTOLD, found=FOUND if with_groups else "")
    return Section("taxonomy", title, lead + left_out, body, figures)


def _tells(groups: Grouping | None) -> bool:
    """Whether there are groups at all: several, and one of several classes."""
    return groups is not None and 1 < len(groups.names) < len(groups.order)


# --- agreement ------------------------------------------------------------------------------------


def _agreed(run: RunView, named: bool) -> str:
    """How the learned groups agree with the known ones, in words; HTML."""
    assert run.structure is not None
    found = run.structure.agreement()
    head = f"<b><bdi>{html.escape(run.name)}</bdi></b>: " if named else ""
    return f"{head}<strong>{_verdict(found)}</strong> {_numbers(found)}"


def _verdict(found: Agreement) -> str:
    """
    >>> _verdict(Agreement(1.0, 1.0, .0005, .0005, 1.0, .0005))
    'Cut into as many groups as are known, the learned ones are exactly these.'
    """
    if found.adjusted_rand > 0.9999:
        return "Cut into as many groups as are known, the learned ones are exactly these."
    p_value = found.p_value if found.auc_p_value is None else found.auc_p_value
    alike = found.adjusted_rand if found.auc is None else found.auc - 0.5
    if p_value >= SURE or alike <= 0:
        return "The learned groups have nothing clear to do with the known ones."
    return "Classes of one known group are more alike in their branches than chance would have it."


def _numbers(found: Agreement) -> str:
    pairs = (
        f"Two classes of one known group are more alike in their P than two of different groups "
        f"in {found.auc:.0%} of cases (50% is chance; area under the curve {found.auc:.2f}, p = "
        f"{found.auc_p_value:.2g}). "
        if found.auc is not None
        else ""
    )
    return (
        f"{pairs}Adjusted Rand index of the groups {found.adjusted_rand:.2f} (1 the same, 0 "
        f"chance; p = {found.p_value:.2g}), normalised mutual information {found.nmi:.2f} (1 the "
        f"same; p = {found.nmi_p_value:.2g}). p: how often random groups do as well."
    )


def _overlap(run: RunView, number: int, named: bool) -> Figure:
    """How many classes each learned group has in common with each known one."""
    learned, known = learned_groups(run), known_groups(run)
    assert learned is not None and known is not None
    table = overlap_counts(learned, known)
    order = np.argsort(table.argmax(0) - table.max(0) / 1000, kind="stable")  # along the diagonal
    labels = [plain(known.names[g], 34) for g in order]
    rows = [
        f"{name} ({len(own)})" for name, own in zip(learned.names, learned.members, strict=True)
    ]
    above = 30 + 5 * max(map(len, labels))
    layout = {
        "height": above + 20 + min(28 * len(rows), TALLEST), "margin": {"t": above, "b": 20},
        "xaxis": {"side": "top", "tickangle": -45, "showgrid": False, "tickfont": {"size": 10},
                  "type": "category", "dtick": 1},
        "yaxis": {"autorange": "reversed", "showgrid": False, "type": "category", "dtick": 1,
                  "automargin": True},
    }  # fmt: skip
    shown = [[str(n) if n else "" for n in row] for row in table[:, order].tolist()]
    data = [{
        "type": "heatmap", "z": table[:, order], "x": _apart(labels), "y": rows, "text": shown,
        "texttemplate": "%{text}", "textfont": {"color": "#000000"}, "colorscale": CELLS,
        "showscale": False, "xgap": 1, "ygap": 1,
        "zmin": 0, "hovertemplate": "%{z} classes of %{x} in group %{y}<extra></extra>",
    }]  # fmt: skip
    note = (
        "Rows: learned groups; columns: known groups; numbers: classes in common. One number in "
        "each row and column would be full agreement; a known group in many rows was torn apart."
    )
    title = run.name if named else "Classes that groups have in common"
    return Figure(f"taxonomy-overlap-{number}", data, layout, note, title)


def overlap_counts(
    learned: Grouping, known: Grouping
) -> Int64[np.ndarray, "learned_groups known_groups"]:
    """
    >>> one = Grouping(("A", "B"), ((0, 1), (2,)), True)
    >>> overlap_counts(one, Grouping(("x", "y"), ((0,), (1, 2)), False)).tolist()
    [[1, 1], [0, 1]]
    """
    counts = np.zeros((len(learned.names), len(known.names)), dtype=np.int64)
    np.add.at(counts, (learned.of_class, known.of_class), 1)
    return counts


def _apart(labels: Sequence[str]) -> list[str]:
    """No two alike, none a number: an unseen character more behind each."""
    return [label + "\u200b" * (1 + labels[:i].count(label)) for i, label in enumerate(labels)]


# --- mistakes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nearness:
    """How many mistakes stay within the group of the true class."""

    within: float
    """Share of the mistakes, 0 to 1."""
    by_chance: float
    """The same on average for random groups of the same sizes."""
    p_value: float
    """Share of random groups of the same sizes that hold at least as many mistakes."""


def nearness(
    confusion: Int64[np.ndarray, "classes classes"],
    group: Int64[np.ndarray, "classes"],
    permutations: int = PERMUTATIONS,
) -> Nearness | None:
    """Of the mistakes of a confusion matrix; None without any.

    >>> found = nearness(np.array([[9, 3, 0], [0, 9, 1], [0, 0, 9]]), np.array([0, 0, 1]))
    >>> found.within, round(found.by_chance, 3)
    (0.75, 0.333)
    """
    true, said = np.nonzero(confusion - np.diag(confusion.diagonal()))
    counts = confusion[true, said]
    if not len(counts):
        return None

    def held(groups: np.ndarray) -> int:
        return int(counts[groups[true] == groups[said]].sum())

    observed, total = held(group), int(counts.sum())
    rng = np.random.default_rng(0)
    by_chance = [held(rng.permutation(group)) for _ in range(permutations)]
    sizes, n = np.bincount(group), len(group)
    expected = float((sizes * (sizes - 1)).sum() / (n * (n - 1)))
    as_many = sum(held_by_chance >= observed for held_by_chance in by_chance)
    return Nearness(observed / total, expected, (1 + as_many) / (1 + permutations))


Row = tuple[str, str, Nearness | None]
"""Name of a run, kind of its groups, and how far its mistakes lie."""


def _distances(run: RunView) -> dict[str, Nearness | None]:
    assert run.confusion is not None
    kinds = {"known": known_groups(run), "learned": learned_groups(run)}
    return {
        kind: nearness(run.confusion, groups.of_class)
        for kind, groups in kinds.items()
        if groups is not None and _tells(groups)
    }


def _table(found: Sequence[Row]) -> str:
    """The distance of mistakes for each run and kind of group; HTML."""
    rows = [
        f"<tr><th scope='row'><bdi>{html.escape(name)}</bdi></th><td>{kind} groups</td>"
        f"{_cells(near)}</tr>"
        for name, kind, near in found
    ]
    return (
        "<p>When an image is taken for a wrong class, is it at least one of the right group? "
        "The mean distance of a mistake counts 1 within the group and 2 across groups.</p>"
        "<div class='scroll' style='overflow-x:auto'><table><thead><tr><th>run</th><th></th>"
        "<th>mistakes within the group</th><th>by chance</th><th>p</th><th>mean distance</th>"
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(near: Nearness | None) -> str:
    if near is None:
        return "<td colspan='4'>no mistakes</td>"
    values = (f"{near.within:.0%}", f"{near.by_chance:.0%}", f"{near.p_value:.2g}",
              f"{2 - near.within:.2f} (by chance {2 - near.by_chance:.2f})")  # fmt: skip
    return "".join(f"<td>{value}</td>" for value in values)


def _some(found: Sequence[Row]) -> list[tuple[str, Nearness]]:
    """A label and the distance for each row that has mistakes."""
    return [
        (f"{plain(name, 30)}<br>{kind} groups", near)
        for name, kind, near in found
        if near is not None
    ]


def _bars(found: Sequence[tuple[str, Nearness]]) -> Figure:
    """Mistakes within the right group beside what chance would give."""
    labels = _apart([label for label, _ in found])
    observed = [round(100 * near.within, 2) for _, near in found]
    chance = [round(100 * near.by_chance, 2) for _, near in found]
    data: list[dict[str, Any]] = [
        {"type": "bar", "orientation": "h", "y": labels, "x": values, "name": name,
         "marker": {"color": colour}, "hovertemplate": "%{x:.1f} %<extra>%{fullData.name}</extra>"}
        for name, values, colour in (
            ("mistakes within the right group", observed, PALETTE[0]), ("by chance", chance, LINE),
        )
    ]  # fmt: skip
    layout = {
        "height": 130 + 62 * len(found), "barmode": "group",
        "xaxis": {"title": {"text": "% of the mistakes"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    }  # fmt: skip
    note = (
        "Longer blue than grey bars: mistakes are mild ones, to classes of the same group; p in "
        "the table says how surely."
    )
    title = "Mistakes that stay in the right group"
    return Figure("taxonomy-mistakes", data, layout, note, title)
