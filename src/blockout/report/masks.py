"""Which weights there are: masks of Dropout, Blockout and DropConnect, and those that were learned
(the paper's Fig. 5)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from blockout.masking import block_mask, draw_assignments
from blockout.nodesets import Layer
from blockout.report.naming import layer_called
from blockout.report.numbers import expected_mask, order_by_code, shrunk
from blockout.report.panels import EVEN, LINE, axis, axis_key, side_by_side
from blockout.report.search import shows_classes
from blockout.report.section import Figure, Section, plain
from blockout.report.selection import in_detail, with_structure
from blockout.report.view import RunView

EXAMPLE_NODES, EXAMPLE_CLUSTERS = 48, 6
MOST_CELLS = 256

LEAD = (
    "A layer multiplies its inputs with a table of weights: a row for each output node, a column "
    "for each input node. A mask says which of these weights there are (blue) and which are zero. "
    "Blockout draws masks made of blocks, one a branch, and learns which nodes belong to which."
)
EXAMPLES_NOTE = (
    "One draw of each method, for 48 nodes; rows and columns are sorted so that nodes of the same "
    "branches stand together. Dropout leaves one block, Blockout a block for each branch, "
    "DropConnect no blocks at all."
)
LEARNED_NOTE = (
    "The mask of the trained network, P_j P_(j-1)ᵀ / k, the mean of those that training draws: per "
    "cent of the branches that an output and an input node have in common. Sorted by branches: the "
    "clearer the blocks, the further the network has divided itself."
)


def section(runs: Sequence[RunView]) -> Section | None:
    """Examples of masks, and the expected masks of each run's layers."""
    shown, left_out = in_detail(with_structure(runs))
    if not shown:
        return None
    figures = (_examples(), *(_learned(run, i, len(shown) > 1) for i, run in enumerate(shown)))
    return Section("masks", "Masks: which weights there are", LEAD + left_out, "", figures)


def example_masks() -> dict[str, Float[np.ndarray, "nodes nodes"]]:
    """One drawn mask for each method at P = 0.5, with nodes in the order of their codes; 0 to 1."""
    chance = torch.Generator().manual_seed(0)

    def drawn(clusters: int) -> torch.Tensor:
        c = draw_assignments(torch.full((EXAMPLE_NODES, clusters), 0.5), chance)
        return c[order_by_code(c.numpy())]

    one_branch = block_mask(drawn(1), drawn(1))
    some = torch.full((EXAMPLE_NODES, EXAMPLE_CLUSTERS), 1.5 / EXAMPLE_CLUSTERS)
    c_out, c_in = (draw_assignments(some, chance) for _ in range(2))
    c_out, c_in = (c[order_by_code(c.numpy())] for c in (c_out, c_in))
    branches = block_mask(c_out, c_in)
    single = draw_assignments(torch.full((EXAMPLE_NODES, EXAMPLE_NODES), 0.5), chance)
    every_weight = EXAMPLE_NODES * block_mask(single, torch.eye(EXAMPLE_NODES))
    return {
        "Dropout": one_branch.numpy(),
        f"Blockout, {EXAMPLE_CLUSTERS} branches": (branches / branches.max()).numpy(),
        "DropConnect": every_weight.numpy(),
    }


def _examples() -> Figure:
    masks = example_masks()
    layout = side_by_side(list(masks), 300, gap=0.05)
    data = []
    for panel, mask in enumerate(masks.values()):
        data.append(_cells(100 * mask, panel, "%{z} %<extra></extra>", 100))
        layout[axis_key("x", panel)] |= _bare("input nodes")
        layout[axis_key("y", panel)] |= _bare(
            "output nodes" if panel == 0 else "", upside_down=True
        )
    layout["margin"] = {"t": 30, "b": 40}
    return Figure("masks-examples", data, layout, EXAMPLES_NOTE)


def _learned(run: RunView, number: int, named: bool) -> Figure:
    """The expected mask of each Blockout layer, all on one scale."""
    assert run.structure is not None
    layers = run.structure.layers
    masks = [learned_mask(run, layer) for layer in layers]
    largest = max(1, int(np.ceil(max(100 * mask.max() for mask in masks))))
    layout = side_by_side([layer_called(layer.name) for layer in layers], 460, gap=0.12)
    data: list[dict[str, Any]] = []
    for panel, (layer, mask) in enumerate(zip(layers, masks, strict=True)):
        data.append(
            _cells(100 * mask, panel, "share %{z} % of the branches<extra></extra>", largest)
        )
        layout[axis_key("x", panel)] |= _bare(_said(run, layer.inputs))
        layout[axis_key("y", panel)] |= _bare(_said(run, layer.outputs), upside_down=True)
        if layer.outputs == run.structure.class_set.name:
            data.append(_classes(run, len(mask), len(mask.T), panel))
    data[0] |= {"showscale": True, "colorbar": {"title": {"text": "%"}, "thickness": 12}}
    layout["margin"] = {"t": 30, "b": 50}
    return Figure(f"masks-{number}", data, layout, LEARNED_NOTE, run.name if named else "")


def learned_mask(run: RunView, layer: Layer) -> Float[np.ndarray, "rows columns"]:
    """P_j P_{j-1}^T / k with nodes in the order of their codes, averaged to few cells.

    Means of P give the means of the product, as it is linear in each of them.
    """
    p_out, p_in = (
        run.memberships[name][order_by_code(run.memberships[name])]
        for name in (layer.outputs, layer.inputs)
    )
    return expected_mask(_few_rows(p_out), _few_rows(p_in))


def _few_rows(p: Float[np.ndarray, "nodes clusters"]) -> Float[np.ndarray, "rows clusters"]:
    return shrunk(p, MOST_CELLS) if p.shape[1] <= MOST_CELLS else p


def _said(run: RunView, name: str) -> str:
    assert run.structure is not None
    what = "classes" if name == run.structure.class_set.name else "nodes"
    return f"{name}: {len(run.memberships[name]):,} {what}"


def _cells(percent: np.ndarray, panel: int, hover: str, largest: int) -> dict[str, Any]:
    return {
        "type": "heatmap", "z": percent.round().astype(np.uint8), "zmin": 0, "zmax": largest,
        "colorscale": EVEN, "showscale": False, "hovertemplate": hover,
        "xaxis": axis("x", panel), "yaxis": axis("y", panel),
    }  # fmt: skip


def _bare(title: str, upside_down: bool = False) -> dict[str, Any]:
    """An axis without numbers; the first row of a matrix is its upmost."""
    return {
        "title": {"text": plain(title), "font": {"size": 11}}, "showticklabels": False,
        "ticks": "",
        "showgrid": False, "zeroline": False, "showline": True, "linecolor": LINE, "mirror": True,
        **({"autorange": "reversed"} if upside_down else {}),
    }  # fmt: skip


def _classes(run: RunView, rows: int, columns: int, panel: int) -> dict[str, Any]:
    """A point a class, left of its row."""
    p = run.class_memberships
    assert p is not None
    order = order_by_code(p).tolist()
    place = [i * rows // len(order) for i in range(len(order))]
    beside = -0.5 - 0.015 * columns
    return {
        "type": "scatter", "mode": "markers", "x": [beside] * len(order), "y": place,
        "text": [plain(run.classes[c]) for c in order], "showlegend": False,
        "hovertemplate": "<b>%{text}</b><extra></extra>", "marker": {"size": 3, "color": LINE},
        "xaxis": axis("x", panel), "yaxis": axis("y", panel),
        "meta": shows_classes(run), "customdata": [[c] for c in order],
    }  # fmt: skip
