"""Which classes share which branches: a tree of the classes, and the groups with their images."""

from collections.abc import Sequence, Set

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.subplots import make_subplots

from blockout.runs import Run
from blockout.show.colours import LINE, cluster_colour
from blockout.show.groups import Tree, learned_groups, tree_of
from blockout.show.nodes import strongest_clusters
from blockout.show.page.drawing import class_points, to_class
from blockout.show.page.pictures import class_strips
from blockout.show.page.section import Figure, Section, in_detail, part, some_names
from blockout.show.selection import with_branches
from blockout.structure.nodes import ClassGroup

MOST_BYTES = 1_500_000
"""Of all sample images together."""
TWIGS = 120
"""Rows of the tree; if there are more classes, those that join first share a row."""
ROW = 15
LISTED = 25
"""Groups that are listed at once; the smaller ones open on demand."""
OPEN = 30
"""Up to so many classes, the groups stand open."""
BETWEEN = 0.012
"""Distance of two classes in one row of the tree."""

LEAD = """Classes that use the same branches of the network form groups: the hierarchy that training
found. Point at a class, tap it or reach it with the Tab key to see some of its test images."""
ABOUT_TREE = """ It is cut into as many groups as the data knows, or if the data knows none into as
many as fit best; a group may join several branches. In the tree, classes that join further left are
more alike in their branches."""
NOTE = """Cells: the chance that the class belongs to the branch of that column, fuller for
surer. Lines have the colour of the strongest branch of the classes that they join; grey lines
join groups."""


def section(runs: Sequence[Run]) -> Section | None:
    """Tree and groups of each run with Blockout."""
    shown, left_out = in_detail(with_branches(runs))
    if not shown:
        return None
    several = len(shown) > 1
    body = Markup().join(_groups(run, MOST_BYTES // len(shown), several) for run in shown)
    figures = tuple(_figure(run, i, several) for i, run in enumerate(shown) if _has_tree(run))
    lead = LEAD + (ABOUT_TREE if figures else "") + left_out
    return Section("hierarchy", "The hierarchy of the classes", lead, body, figures)


def _has_tree(run: Run) -> bool:
    """Whether a tree says more than the groups: not where each class is in one branch, or none."""
    p = run.class_memberships
    assert p is not None
    return bool(((p > 0) & (p < 1)).any() or (p.sum(1) > 1).any())


# --- groups as a list -----------------------------------------------------------------------------


def _groups(run: Run, most_bytes: int, named: bool) -> Markup:
    structure = run.structure
    assert structure is not None
    strips = class_strips(run.thumbnails, most_bytes)
    lost = structure.class_set.without_cluster
    opened = len(run.classes) <= (OPEN if _has_tree(run) else TWIGS)
    lines = []
    for group in structure.class_groups:
        colours = [cluster_colour(c) for c in group.clusters_of_all or group.clusters_of_some]
        few = "" if opened else some_names([run.classes[c] for c in group.members], 4)
        branches = _branches(group, set(lost))
        lines.append(
            part("class_group", group, run.classes, strips, branches, colours, few, opened)
        )
    shown = LISTED if len(lines) > LISTED + 1 else len(lines)
    told = (
        f"In no branch with P of at least {structure.threshold:g}, so nothing of an image would "
        f"reach them in a compact network: {some_names([run.classes[c] for c in lost], 20)}."
    )
    name = run.name if named else ""
    return part("class_groups", name, lines[:shown], lines[shown:], told if lost else "")


def _branches(group: ClassGroup, nowhere: Set[int]) -> str:
    """In words; ``nowhere`` are the classes in no branch.

    >>> _branches(ClassGroup("A", (0, 1, 2), (0, 3, 1)), set())
    'all in branch 1, some also in 2'
    >>> _branches(ClassGroup("A", (0, 1, 2), (0, 2, 1)), {2})
    'in some of the branches 1, 2, or in none'
    """
    every = " + ".join(map(str, group.clusters_of_all))
    some = ", ".join(map(str, group.clusters_of_some))
    if every:
        plural = "es" if len(group.clusters_of_all) > 1 else ""
        return f"all in branch{plural} {every}" + (f", some also in {some}" if some else "")
    if not some:
        return "in no branch"
    if nowhere.isdisjoint(group.members):
        return f"each in some of the branches {some}"
    return f"in some of the branches {some}, or in none"


# --- the tree -------------------------------------------------------------------------------------


def _figure(run: Run, number: int, named: bool) -> Figure:
    p = run.class_memberships
    assert p is not None
    tree = tree_of(p)
    twigs = _twigs(tree)
    labels = [some_names([to_class(run, c, 24) for c in twig], 2) for twig in twigs]
    means = np.stack([p[twig].mean(0) for twig in twigs])
    count, clusters = means.shape
    share = min(0.04 * clusters, 0.35)
    chart = make_subplots(
        1, 2, shared_yaxes=True, column_widths=[share, 1 - share], horizontal_spacing=0.02
    )
    for cluster, column in enumerate(means.T):
        chart.add_trace(_cells(cluster, column), 1, 1)
    for line in _lines(run, p, tree, twigs):
        chart.add_trace(line, 1, 2)
    chart.add_trace(_tips(run, p, twigs), 1, 2)
    chart.update_xaxes(side="top", zeroline=False)
    steps = {"tickmode": "linear" if clusters <= 12 else "auto", "dtick": 1, "tickfont_size": 10}
    chart.update_xaxes(title_text="branches", showgrid=False, **steps, col=1)
    far = [-0.06, 1.03 * float(tree.heights.max(initial=0.1))]
    chart.update_xaxes(title_text="distance at which classes join", range=far, col=2)
    chart.update_yaxes(range=[count - 0.4, -0.6], showgrid=False, zeroline=False)
    rows = {"tickmode": "array", "tickvals": list(range(count)), "ticktext": labels}
    chart.update_yaxes(**rows, tickfont_size=10, automargin=True, col=1)
    chart.update_layout(height=130 + ROW * count, showlegend=False)
    chart.update_layout(margin={"t": 90, "b": 20})
    return Figure(f"hierarchy-{number}", chart, NOTE, run.name if named else "")


def _twigs(tree: Tree) -> list[list[int]]:
    """The rows of the tree, from the top: a class each, or those that join first."""
    kept = max(tree.count - TWIGS, 0)  # merges that happen inside rows
    inside = set(tree.merges[:kept].reshape(-1).tolist())
    nodes = [n for n in range(tree.count + kept) if n not in inside]
    place = {leaf: i for i, leaf in enumerate(tree.leaves)}
    return sorted((tree.below[n] for n in nodes), key=lambda leaves: place[leaves[0]])


def _cells(cluster: int, column: np.ndarray) -> go.Heatmap:
    """P of every row in one branch, in its colour."""
    return go.Heatmap(
        x=[cluster],
        z=column[:, None].astype(np.float32),
        zmin=0,
        zmax=1,
        showscale=False,
        xgap=1,
        ygap=1,
        colorscale=[[0, "rgba(128,128,128,0.08)"], [1, cluster_colour(cluster)]],
        hovertemplate="%{y}<br>branch %{x}: P = %{z:.2f}<extra></extra>",
    )


def _lines(run: Run, p: np.ndarray, tree: Tree, twigs: Sequence[Sequence[int]]) -> list[go.Scatter]:
    """One trace per colour; a merge is three sides of a rectangle.

    Within a group it has the colour of its strongest branch, between groups it is grey.
    """
    groups = learned_groups(run)
    assert groups is not None
    own_group = groups.of_class
    row = {leaf: float(i) for i, twig in enumerate(twigs) for leaf in twig}
    where = [(0.0, row[leaf]) for leaf in range(tree.count)]
    paths: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for (a, b), height in zip(tree.merges.tolist(), tree.heights.round(4).tolist(), strict=True):
        (x_a, y_a), (x_b, y_b) = where[a], where[b]
        where.append((height if y_a != y_b else 0.0, (y_a + y_b) / 2))
        if y_a == y_b:
            continue
        below = tree.below[len(where) - 1]
        apart = np.ptp(own_group[below]) > 0
        colour = LINE if apart else cluster_colour(int(strongest_clusters(p[below].mean(0))))
        xs, ys = paths.setdefault(colour, ([], []))
        xs += [x_a, height, height, x_b, None]
        ys += [y_a, y_a, y_b, y_b, None]
    return [
        go.Scatter(x=xs, y=ys, mode="lines", line={"color": c, "width": 2}, hoverinfo="skip")
        for c, (xs, ys) in paths.items()
    ]


def _tips(run: Run, p: np.ndarray, twigs: Sequence[Sequence[int]]) -> go.Scatter:
    """A point per class at the tips of the tree; classes of one row side by side."""
    order = [c for twig in twigs for c in twig]
    x = [round(-BETWEEN * i, 3) for twig in twigs for i in range(len(twig))]
    y = [row for row, twig in enumerate(twigs) for _ in twig]
    colours = [cluster_colour(c) for c in strongest_clusters(p[order]).tolist()]
    return class_points(run, order, x=x, y=y, marker={"size": 7, "color": colours})
