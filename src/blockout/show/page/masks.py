"""Which weights there are: masks of each method, and the masks that were learned (Fig. 5)."""

import functools
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from blockout.runs import Run
from blockout.show.colours import LINE
from blockout.show.masks import CLUSTERS, NODES, Mask, example_masks, learned_masks, order_by_code
from blockout.show.page.drawing import EVEN, class_points, layer_called, plain
from blockout.show.page.section import Figure, Section, in_detail
from blockout.show.selection import with_branches

LEAD = """A layer multiplies its inputs by a table of weights, with a row per output node and a
column per input node. A mask says which of these weights exist (blue) and which are zero. Blockout
draws masks made of blocks, one per branch, and learns which nodes belong to which."""
EXAMPLES_NOTE = f"""One draw of each method, for {NODES} nodes; rows and columns are sorted so that
nodes of the same branches stand together. Dropout leaves one block, Blockout with {CLUSTERS}
branches a block per branch, DropConnect none at all."""
LEARNED_NOTE = """The mask of the trained network, P_j P_(j-1)ᵀ / k: per cent of the branches
that an output node and an input node share. By the paper's rule it is the mean of the masks that
training draws. Rows and columns are sorted by branches: the clearer the blocks, the further the
network has divided itself."""


def section(runs: Sequence[Run]) -> Section | None:
    """Examples of masks, and the expected masks of each run's layers."""
    shown, left_out = in_detail(with_branches(runs))
    if not shown:
        return None
    figures = (_examples(), *(_learned(run, i, len(shown) > 1) for i, run in enumerate(shown)))
    return Section("masks", "Masks: which weights there are", LEAD + left_out, figures=figures)


@functools.cache
def _examples() -> Figure:
    """The same on every page: drawn once while a training run renews its page."""
    masks = example_masks()
    chart = _side_by_side([mask.title.replace("clusters", "branches") for mask in masks], 300, 0.05)
    for column, mask in enumerate(masks, 1):
        chart.add_trace(_cells(mask.in_order / mask.largest, "%{z} %", 100), 1, column)
        _name_axes(chart, column, "input nodes", "output nodes" if column == 1 else "")
    return Figure("masks-examples", chart, EXAMPLES_NOTE)


def _learned(run: Run, number: int, named: bool) -> Figure:
    """The expected mask of each Blockout layer, all on one scale."""
    assert run.structure is not None and run.class_memberships is not None
    masks = learned_masks(run)
    largest = max(1, int(np.ceil(max(100 * mask.largest for mask in masks))))
    chart = _side_by_side([layer_called(mask.title) for mask in masks], 460, 0.12)
    for column, mask in enumerate(masks, 1):
        assert mask.layer is not None
        cells = _cells(mask.in_order, "share %{z} % of the branches", largest)
        chart.add_trace(cells, 1, column)
        _name_axes(chart, column, _said(run, mask.layer.inputs), _said(run, mask.layer.outputs))
        if mask.layer.outputs == run.structure.class_set.name:
            chart.add_trace(_classes(run, mask), 1, column)
    chart.data[0].update(showscale=True, colorbar={"title_text": "%", "thickness": 12})
    return Figure(f"masks-{number}", chart, LEARNED_NOTE, run.name if named else "")


def _side_by_side(titles: Sequence[str], height: int, gap: float) -> go.Figure:
    shown = [plain(title) for title in titles]
    chart = make_subplots(1, len(titles), subplot_titles=shown, horizontal_spacing=gap)
    chart.update_annotations(font_size=13)
    return chart.update_layout(height=height, margin={"t": 30, "b": 50})


def _name_axes(chart: go.Figure, column: int, inputs: str, outputs: str) -> None:
    """Frames without numbers; the first row of a mask is the top one."""
    look = {"showticklabels": False, "ticks": "", "showgrid": False, "zeroline": False}
    frame = {"showline": True, "linecolor": LINE, "mirror": True}
    for update, text in ((chart.update_xaxes, inputs), (chart.update_yaxes, outputs)):
        update(title={"text": plain(text), "font_size": 11}, **look, **frame, col=column)
    chart.update_yaxes(autorange="reversed", col=column)


def _said(run: Run, name: str) -> str:
    assert run.structure is not None
    what = "classes" if name == run.structure.class_set.name else "nodes"
    return f"{name}: {len(run.memberships[name]):,} {what}"


def _cells(share: np.ndarray, hover: str, largest: int) -> go.Heatmap:
    z, template = (100 * share).round().astype(np.uint8), f"{hover}<extra></extra>"
    look = {"zmin": 0, "zmax": largest, "colorscale": EVEN, "showscale": False}
    return go.Heatmap(z=z, hovertemplate=template, **look)


def _classes(run: Run, mask: Mask) -> go.Scatter:
    """A point per class, left of its row."""
    assert run.class_memberships is not None
    order = order_by_code(run.class_memberships).tolist()
    rows, columns = mask.in_order.shape
    y = [i * rows // len(order) for i in range(len(order))]
    x = [-0.5 - 0.015 * columns] * len(order)
    return class_points(run, order, x=x, y=y, marker={"size": 3, "color": LINE})
