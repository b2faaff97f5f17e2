"""Which classes share which branches: a tree of the classes, and the groups with their images."""

import html
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from blockout.nodesets import ClassGroup
from blockout.report.grouping import learned_groups, some_names
from blockout.report.numbers import strongest_clusters
from blockout.report.panels import LINE
from blockout.report.pictures import class_strips
from blockout.report.search import shows_classes
from blockout.report.section import Figure, Section, cluster_colour, plain
from blockout.report.selection import in_detail, with_branches
from blockout.report.tree import Tree, tree_of
from blockout.report.view import RunView
from blockout.training import files

MOST_BYTES = 1_500_000
"""Of all sample images together."""
TWIGS = 120
"""Rows of the tree; where there are more classes, those that join first share a row."""
ROW = 15
LISTED = 25
"""Groups that are listed at once; the smaller ones open on demand."""
OPEN = 60
"""Classes up to which the groups stand open."""

LEAD = (
    "Classes that use similar branches of the network (clusters) form groups: the hierarchy that "
    "training found, cut into as many groups as are known beforehand, or where none are known into "
    "as many as fit best. A group may join several branches. Point at a class, tap it or reach it "
    "with the Tab key to see some of its test "
    "images. In the tree, classes that join further left are more alike in their branches."
)
STYLE = """<style>
.group-list details{margin:.35em 0}
.group-list summary{cursor:pointer}
.group-list .swatch{display:inline-block;width:.8em;height:.8em;border-radius:50%;
 margin-right:.35em}
.group-list .class-names{display:flex;flex-wrap:wrap;gap:.3em;padding:.5em 0 .5em 1.2em}
.class-name{position:relative;font:inherit;font-size:.9em;color:inherit;cursor:pointer;
 background:rgba(128,128,128,.14);border:1px solid transparent;border-radius:1em;padding:.1em .7em}
.class-name:hover,.class-name:focus{border-color:currentColor}
.class-name img{display:none;position:absolute;z-index:5;left:0;top:105%;height:64px;max-width:none;
 border:3px solid #888;border-radius:6px;background:#fff;pointer-events:none}
.class-name:hover img,.class-name:focus img{display:block}
@media print{.class-name img{display:none}}
</style>"""


def section(runs: Sequence[RunView]) -> Section | None:
    """Tree and groups of each run with Blockout."""
    shown, left_out = in_detail(with_branches(runs))
    if not shown:
        return None
    bodies = [_groups(run, MOST_BYTES // len(shown), len(shown) > 1) for run in shown]
    figures = tuple(_figure(run, i, len(shown) > 1) for i, run in enumerate(shown))
    body = STYLE + "".join(bodies)
    return Section("hierarchy", "The hierarchy of the classes", LEAD + left_out, body, figures)


# --- groups as a list -----------------------------------------------------------------------------


def _groups(run: RunView, most_bytes: int, named: bool) -> str:
    structure = run.structure
    assert structure is not None
    strips = class_strips(run.folder / files.THUMBNAILS, len(run.classes), most_bytes)
    head = f"<h3><bdi>{html.escape(run.name)}</bdi></h3>" if named else ""
    nowhere = set(structure.class_set.dead)
    lines = [_group(group, run.classes, strips, nowhere) for group in structure.class_groups]
    if len(lines) > LISTED + 1:
        rest = "".join(lines[LISTED:])
        more = f"<details><summary>{len(lines) - LISTED} smaller groups</summary>{rest}</details>"
        lines = [*lines[:LISTED], more]
    dead = [run.classes[c] for c in structure.class_set.dead]
    lost = (
        f"<p>In no branch with P of at least {structure.threshold:g}, so that nothing of an image "
        f"would reach them in a compact network: {_text(some_names(dead, 20))}.</p>"
    )
    return f'{head}<div class="group-list">{"".join(lines)}</div>{lost if dead else ""}'


def _group(
    group: ClassGroup, names: Sequence[str], strips: Sequence[str], nowhere: Set[int]
) -> str:
    size = len(group.members)
    swatches = "".join(_swatch(c) for c in group.clusters_of_all or group.clusters_of_some)
    opened = " open" if len(names) <= OPEN else ""
    chips = "".join(_class(c, names[c], strips[c] if strips else "") for c in group.members)
    few = "" if opened else f": {_text(some_names([names[c] for c in group.members], 4))}"
    return (
        f"<details{opened}><summary>{swatches}<b>{group.name}</b> · {size} "
        f"class{'es' if size > 1 else ''}{few} · {_branches(group, nowhere)}</summary>"
        f'<div class="class-names">{chips}</div></details>'
    )


def _class(number: int, name: str, strip: str) -> str:
    image = f'<img loading="lazy" alt="test images of {_text(name)}" src="{strip}">'
    return (
        f'<button type="button" class="class-name" data-class="{number}">'
        f"<bdi>{_text(name)}</bdi>{image if strip else ''}</button>"
    )


def _branches(group: ClassGroup, nowhere: Set[int]) -> str:
    """In words, where some classes are in no branch.

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


def _swatch(cluster: int) -> str:
    return f'<span class="swatch" style="background:{cluster_colour(cluster)}"></span>'


def _text(text: str) -> str:
    return html.escape(text)


# --- the tree -------------------------------------------------------------------------------------


def _figure(run: RunView, number: int, named: bool) -> Figure:
    p = run.class_memberships
    assert p is not None
    tree = tree_of(p)
    twigs = _twigs(tree, TWIGS)
    labels = [some_names([plain(run.classes[c], 24) for c in twig], 2) for twig in twigs]
    means = np.stack([p[twig].mean(0) for twig in twigs])
    count, clusters = means.shape
    share = min(0.04 * clusters, 0.35)
    layout = {
        "height": 130 + ROW * count, "hovermode": "closest", "showlegend": False,
        "xaxis": {"domain": [0, share], "side": "top", "showgrid": False, "zeroline": False,
                  "title": {"text": "branches"}, "tickfont": {"size": 10},
                  "tickmode": "linear" if clusters <= 12 else "auto", "dtick": 1},
        "xaxis2": {"domain": [share + 0.02, 1], "side": "top", "zeroline": False,
                   "title": {"text": "distance at which classes join"},
                   "range": [-0.06, 1.03 * float(tree.heights.max(initial=0.1))]},
        "yaxis": {"tickmode": "array", "tickvals": list(range(count)), "ticktext": labels,
                  "range": [count - 0.4, -0.6], "tickfont": {"size": 10}, "showgrid": False,
                  "zeroline": False, "automargin": True},
        "margin": {"t": 90, "b": 20},
    }  # fmt: skip
    data = [*_strips(means), *_lines(run, tree, twigs), _class_points(run, twigs)]
    note = (
        "Cells: the chance that the class belongs to the branch of that column, the fuller the "
        "surer. Lines have the colour of the strongest branch of the classes that they join; grey "
        "lines join groups."
    )
    return Figure(f"hierarchy-{number}", data, layout, note, run.name if named else "")


def _twigs(tree: Tree, most: int) -> list[list[int]]:
    """The rows of the tree, from the top: a class each, or those that join first."""
    kept = max(tree.count - most, 0)  # merges that happen inside rows
    inside = set(tree.merges[:kept].reshape(-1).tolist())
    nodes = [n for n in range(tree.count + kept) if n not in inside]
    place = {leaf: i for i, leaf in enumerate(tree.leaves)}
    return sorted((tree.below[n] for n in nodes), key=lambda leaves: place[leaves[0]])


def _strips(means: np.ndarray) -> list[dict[str, Any]]:
    """P of every row: a column a branch, in its colour."""
    return [
        {
            "type": "heatmap", "x": [cluster], "z": column[:, None].astype(np.float32),
            "zmin": 0, "zmax": 1, "showscale": False, "xgap": 1, "ygap": 1,
            "colorscale": [[0, "rgba(128,128,128,0.08)"], [1, cluster_colour(cluster)]],
            "hovertemplate": "%{y}<br>branch %{x}: P = %{z:.2f}<extra></extra>",
        }
        for cluster, column in enumerate(means.T)
    ]  # fmt: skip


def _lines(run: RunView, tree: Tree, twigs: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """One trace for each colour; a merge is three sides of a rectangle. Within a group it has the
    colour of its strongest branch, between groups it is grey."""
    groups, p = learned_groups(run), run.class_memberships
    assert groups is not None and p is not None
    own_group = groups.of_class
    row = {leaf: float(i) for i, twig in enumerate(twigs) for leaf in twig}
    where = [(0.0, row[leaf]) for leaf in range(tree.count)]
    paths: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for (a, b), height in zip(tree.merges.tolist(), tree.heights.tolist(), strict=True):
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
        {"type": "scatter", "mode": "lines", "x": _rounded(xs), "y": ys, "xaxis": "x2",
         "line": {"color": colour, "width": 2}, "hoverinfo": "skip"}
        for colour, (xs, ys) in paths.items()
    ]  # fmt: skip


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 4) for value in values]


def _class_points(run: RunView, twigs: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A point a class at the tips; classes of one row beside each other."""
    p = run.class_memberships
    assert p is not None
    step = 0.012
    found = [(c, -step * i, y) for y, twig in enumerate(twigs) for i, c in enumerate(twig)]
    order = [c for c, _, _ in found]
    strongest = strongest_clusters(p[order]).tolist()
    return {
        "type": "scatter", "mode": "markers", "xaxis": "x2",
        "x": [round(x, 3) for _, x, _ in found], "y": [y for _, _, y in found],
        "text": [plain(run.classes[c]) for c in order],
        "hovertemplate": "<b>%{text}</b><extra></extra>",
        "marker": {"size": 7, "color": [cluster_colour(c) for c in strongest]},
        "meta": shows_classes(run), "customdata": [[c] for c in order],
    }  # fmt: skip
