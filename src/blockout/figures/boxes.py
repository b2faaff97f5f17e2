"""What diagrams are drawn with: a sheet measured in inches, boxes, arrows, ribbons, matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch, Rectangle
from matplotlib.path import Path

from blockout.figures import style
from blockout.report.section import cluster_colour

Code = Sequence[int]
ZERO = "#ededed"
"""A weight that a mask takes away."""


def sheet(figure: Figure) -> Axes:
    """The whole figure as one plane in inches, from the lower left."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    style.bare(axes)
    return axes


def box(axes: Axes, x: float, y: float, wide: float, high: float, **look: Any) -> None:
    """A rectangle by its lower left corner."""
    given: dict[str, Any] = {"facecolor": "white", "edgecolor": style.INK, "linewidth": 0.7} | look
    axes.add_patch(Rectangle((x, y), wide, high, **given))


def node_box(axes: Axes, x: float, y: float, wide: float, high: float, code: Code) -> None:
    """Nodes of one code: a stripe in the colour of each cluster; without any, hollow and dashed."""
    for place, cluster in enumerate(code):
        stripe = wide / len(code)
        box(axes, x + place * stripe, y, stripe, high, facecolor=cluster_colour(cluster),
            linewidth=0)  # fmt: skip
    if code:
        box(axes, x, y, wide, high, facecolor="none", linewidth=0.5)
    else:
        box(axes, x, y, wide, high, edgecolor=style.QUIET, linestyle=(0, (2, 1.5)), linewidth=0.6)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **look: Any) -> None:
    given: dict[str, Any] = {
        "arrowstyle": "-|>,head_width=1.6,head_length=3", "color": style.INK, "linewidth": 0.8,
        "shrinkA": 0, "shrinkB": 0,
    } | look  # fmt: skip
    axes.add_patch(FancyArrowPatch(start, end, **given))


def ribbon(
    axes: Axes, left: tuple[float, float, float], right: tuple[float, float, float], colour: str
) -> None:
    """Between two upright edges, each (x, low, high), with a bend at both."""
    (x0, low0, high0), (x1, low1, high1) = left, right
    half = (x0 + x1) / 2
    points = [(x0, low0), (half, low0), (half, low1), (x1, low1), (x1, high1), (half, high1),
              (half, high0), (x0, high0), (x0, low0)]  # fmt: skip
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, alpha=0.38, linewidth=0))


def matrix(
    axes: Axes, x: float, y: float, cell: float, values: np.ndarray,
    cmap: Colormap = style.SHADE, limits: tuple[float, float] = (0, 1),
) -> None:  # fmt: skip
    """Cells with thin lines between them, grey where they are zero."""
    rows, columns = values.shape
    across, up = x + cell * np.arange(columns + 1), y + cell * np.arange(rows + 1)
    axes.pcolormesh(
        across, up, np.ma.masked_equal(values[::-1], 0), cmap=cmap.with_extremes(bad=ZERO),
        vmin=limits[0], vmax=limits[1], edgecolors="white", linewidth=0.4,
    )  # fmt: skip
    box(axes, x, y, cell * columns, cell * rows, facecolor="none", linewidth=0.6)


def block_matrix(
    axes: Axes, x: float, y: float, cell: float, c_out: np.ndarray, c_in: np.ndarray
) -> None:
    """Weights in the colours of the clusters that their two nodes share, grey where none is."""
    rows, columns = len(c_out), len(c_in)
    for i, j in np.ndindex(rows, columns):
        shared = np.flatnonzero((c_out[i] > 0) & (c_in[j] > 0))
        left, low = x + j * cell, y + (rows - 1 - i) * cell
        for place, cluster in enumerate(shared):
            part = cell / len(shared)
            box(axes, left + place * part, low, part, cell, facecolor=cluster_colour(int(cluster)),
                linewidth=0)  # fmt: skip
        look = {"facecolor": "none" if len(shared) else ZERO, "edgecolor": "white"}
        box(axes, left, low, cell, cell, linewidth=0.5, **look)
    box(axes, x, y, cell * columns, cell * rows, facecolor="none", linestyle=(0, (3, 2)))


def strip(
    axes: Axes, x: float, y: float, cell: float, c: np.ndarray, *, upright: bool, gap: float = 0.0
) -> None:
    """Nodes one by one, from above or from the left."""
    for i, row in enumerate(c):
        left = x if upright else x + i * (cell + gap)
        low = y + (len(c) - 1 - i) * (cell + gap) if upright else y
        node_box(axes, left, low, cell, cell, np.flatnonzero(row).tolist())


def words(axes: Axes, x: float, y: float, text: str, **look: Any) -> None:
    given: dict[str, Any] = {"ha": "center", "va": "center"} | look
    axes.text(x, y, text, **given)


def clusters(axes: Axes, x: float, y: float, cell: float, c: np.ndarray) -> None:
    """C itself: a row a node, a column a cluster in its colour."""
    for i, j in np.ndindex(*c.shape):
        look = {"facecolor": cluster_colour(j) if c[i, j] else ZERO, "edgecolor": "white"}
        box(axes, x + j * cell, y + (len(c) - 1 - i) * cell, cell, cell, linewidth=0.5, **look)
    box(axes, x, y, cell * c.shape[1], cell * len(c), facecolor="none", linewidth=0.6)
