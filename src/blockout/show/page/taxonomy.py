"""Learned groups beside known groups: how they agree, and whether mistakes stay within them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Int64
from markupsafe import Markup

from blockout.runs import Run
from blockout.show.colours import LINE, PALETTE
from blockout.show.groups import Grouping, known_groups, learned_groups
from blockout.show.mistakes import Nearness, nearness
from blockout.show.page.drawing import CELLS, apart, plain
from blockout.show.page.section import Figure, Section, html, in_detail, paragraphs, part
from blockout.show.selection import with_branches, with_predictions
from blockout.structure.groups import Agreement

TALLEST = 900
"""Pixels of a table of groups."""
NO_CHANCE_BELOW = 0.01
"""A p-value below this is no chance."""

LEAD = """This data comes with groups of classes{told}. {found}When the network is wrong, does it at
least stay in the right group?"""
UNTOLD = " that training was not told about"
TOLD = " that training was told about, to put their classes together (--affinity-from groups)"
FOUND = "Did the network find them? "
MISTAKES = Markup("""<p>When an image is taken for a wrong class, is it at least one of the right
group? The mean distance of a mistake counts 1 within the group and 2 across groups.</p>""")
HEADS = ("run", "", "mistakes within the group", "by chance", "p", "mean distance")
OVERLAP_NOTE = """Rows: learned groups; columns: known groups; numbers: classes in common. One
number in each row and column would be full agreement; a known group in many rows was torn apart."""
BARS_NOTE = """Blue bars longer than grey ones: mistakes are mild, towards classes of the same
group. The p in the table says how certain that is."""


class _Row(NamedTuple):
    """How near the mistakes of a run are, in known or in learned groups."""

    name: str
    kind: str
    near: Nearness | None


def section(runs: Sequence[Run]) -> Section | None:
    """Agreement of groups and distance of mistakes; None if the data knows no groups."""
    known = [run for run in with_predictions(runs) if (g := known_groups(run)) and g.tells]
    if not known:
        return None
    learned = with_branches(known)
    rows = [row for run in known for row in _distances(run)]
    words = paragraphs([_agreed(run, len(known) > 1) for run in learned])
    table = part("table", "Distance of mistakes", HEADS, [_cells(row) for row in rows])
    shown, left_out = in_detail(learned)
    figures = [_overlap(run, i, len(shown) > 1) for i, run in enumerate(shown)]
    figures += [_bars(rows)] if any(row.near for row in rows) else []
    title = "Learned groups and known groups" if learned else "Mistakes and known groups"
    configs = [run.config for run in learned]
    told = any(c.guided and c.optimisation.affinity_from == "groups" for c in configs)
    lead = LEAD.format(told=TOLD if told else UNTOLD, found=FOUND if learned else "")
    return Section("taxonomy", title, lead + left_out, words + MISTAKES + table, tuple(figures))


# --- agreement ------------------------------------------------------------------------------------


def _agreed(run: Run, named: bool) -> Markup:
    assert run.structure is not None
    found = run.structure.agreement()
    head = html("<b><bdi>{}</bdi></b>: ", run.name) if named else Markup()
    return head + html("<strong>{}</strong> {}", _verdict(found), _numbers(found))


def _verdict(found: Agreement) -> str:
    """
    >>> _verdict(Agreement(1.0, 1.0, .0005, .0005, 1.0, .0005))
    'Cut into as many groups as the data knows, the learned groups are exactly the known ones.'
    """
    if found.adjusted_rand > 0.9999:
        return (
            "Cut into as many groups as the data knows, the learned groups are exactly the known "
            "ones."
        )
    p_value = found.p_value if found.auc_p_value is None else found.auc_p_value
    alike = found.adjusted_rand if found.auc is None else found.auc - 0.5
    if p_value >= NO_CHANCE_BELOW or alike <= 0:
        return "The learned groups have no clear relation to the known ones."
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
        f"{pairs}Adjusted Rand index of the groups {found.adjusted_rand:.2f} (1: the same, 0: "
        f"chance; p = {found.p_value:.2g}), normalised mutual information {found.nmi:.2f} (1: the "
        f"same; p = {found.nmi_p_value:.2g}). p is how often random groups do as well."
    )


def _overlap(run: Run, number: int, named: bool) -> Figure:
    """How many classes each learned group has in common with each known one."""
    learned, known = learned_groups(run), known_groups(run)
    assert learned is not None and known is not None
    table = overlap_counts(learned, known)
    order = np.argsort(table.argmax(0) - table.max(0) / 1000, kind="stable")  # along the diagonal
    columns = [plain(known.names[g], 34) for g in order]
    rows = [
        f"{name} ({len(own)})" for name, own in zip(learned.names, learned.members, strict=True)
    ]
    above = 30 + 5 * max(map(len, columns))
    chart = go.Figure()
    chart.add_heatmap(
        z=table[:, order],
        x=apart(columns),
        y=rows,
        zmin=0,
        colorscale=CELLS,
        text=[[str(n) if n else "" for n in row] for row in table[:, order].tolist()],
        texttemplate="%{text}",
        textfont_color="#000000",
        showscale=False,
        xgap=1,
        ygap=1,
        hovertemplate="%{z} classes of %{x} in group %{y}<extra></extra>",
    )
    every = {"type": "category", "dtick": 1, "showgrid": False}
    chart.update_xaxes(side="top", tickangle=-45, tickfont_size=10, **every)
    chart.update_yaxes(autorange="reversed", automargin=True, **every)
    height = above + 20 + min(28 * len(rows), TALLEST)
    chart.update_layout(height=height, margin={"t": above, "b": 20})
    title = run.name if named else "Classes that groups have in common"
    return Figure(f"taxonomy-overlap-{number}", chart, OVERLAP_NOTE, title)


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


# --- mistakes -------------------------------------------------------------------------------------


def _distances(run: Run) -> list[_Row]:
    assert run.confusion is not None
    kinds = {"known": known_groups(run), "learned": learned_groups(run)}
    return [
        _Row(run.name, f"{kind} groups", nearness(run.confusion, groups.of_class))
        for kind, groups in kinds.items()
        if groups is not None and groups.tells
    ]


def _cells(row: _Row) -> tuple[str, ...]:
    if row.near is None:
        return row.name, row.kind, "no mistakes", "", "", ""
    within, chance = row.near.within, row.near.by_chance
    far = f"{2 - within:.2f} (by chance {2 - chance:.2f})"
    return row.name, row.kind, f"{within:.0%}", f"{chance:.0%}", f"{row.near.p_value:.2g}", far


def _bars(rows: Sequence[_Row]) -> Figure:
    """Mistakes within the right group beside what chance would give."""
    found = [(row, row.near) for row in rows if row.near is not None]
    labels = apart([f"{plain(row.name, 30)}<br>{row.kind}" for row, _ in found])
    within = [round(100 * near.within, 2) for _, near in found]
    chance = [round(100 * near.by_chance, 2) for _, near in found]
    bars = (("mistakes within the right group", within, PALETTE[0]), ("by chance", chance, LINE))
    chart = go.Figure()
    for name, x, colour in bars:
        look = {"orientation": "h", "marker_color": colour}
        hover = "%{x:.1f} %<extra>%{fullData.name}</extra>"
        chart.add_bar(x=x, y=labels, name=name, hovertemplate=hover, **look)
    chart.update_xaxes(title_text="% of the mistakes", rangemode="tozero")
    chart.update_yaxes(autorange="reversed", automargin=True, type="category")
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
    chart.update_layout(height=130 + 62 * len(found), barmode="group", legend=legend)
    return Figure("taxonomy-mistakes", chart, BARS_NOTE, "Mistakes that stay in the right group")
