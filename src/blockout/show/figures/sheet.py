"""What diagrams are drawn on: a sheet measured in inches, with boxes, arrows and matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch, Rectangle
from matplotlib.path import Path

from blockout.show.colours import cluster_colour
from blockout.show.figures import style

ZERO = "#ededed"
"""A weight that a mask removes."""
MERGED = "#b5b5b5"
"""Nodes with different codes."""
NO_FILL = {"facecolor": "none", "linewidth": 0.6}
Codes = Float[np.ndarray, "nodes k"]
"""Zeros and ones: which node is in which cluster."""
Edge = tuple[float, float, float]
"""An upright edge: x, low, high."""


class Sheet:
    """The whole figure as one plane; positions are in inches from the lower left corner."""

    def __init__(self, height: float, width: float = style.PAGE) -> None:
        self.figure: Figure = style.new_figure(height, width, constrained=False)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(0, height))
        self.axes.set_axis_off()

    def words(self, x: float, y: float, text: str, **look: Any) -> None:
        """Centred, unless ``look`` says otherwise."""
        self.axes.text(x, y, text, **{"ha": "center", "va": "center", **look})

    def box(self, x: float, y: float, wide: float, high: float, **look: Any) -> None:
        """A rectangle by its lower left corner."""
        given = {"facecolor": "white", "edgecolor": style.INK, "linewidth": 0.7} | look
        self.axes.add_patch(Rectangle((x, y), wide, high, **given))

    def stripes(
        self, x: float, y: float, wide: float, high: float, clusters: Sequence[int]
    ) -> None:
        """A stripe per cluster, in its colour."""
        part = wide / max(len(clusters), 1)
        for i, cluster in enumerate(clusters):
            colour = cluster_colour(int(cluster))
            self.box(x + i * part, y, part, high, facecolor=colour, linewidth=0)

    def nodes(self, x: float, y: float, wide: float, high: float, code: Sequence[int]) -> None:
        """Nodes of one code, striped; hollow and dashed without a cluster."""
        if len(code) == 0:
            dashed = {"edgecolor": style.QUIET, "linestyle": (0, (2, 1.5))}
            self.box(x, y, wide, high, linewidth=0.6, **dashed)
            return
        self.stripes(x, y, wide, high, code)
        self.box(x, y, wide, high, facecolor="none", linewidth=0.5)

    def strip(self, x: float, y: float, cell: float, c: Codes, *, upright: bool) -> None:
        """Nodes one by one, from the top or from the left."""
        for i, row in enumerate(c):
            right, up = (0, len(c) - 1 - i) if upright else (i, 0)
            self.nodes(x + right * cell, y + up * cell, cell, cell, np.flatnonzero(row).tolist())

    def arrow(self, start: tuple[float, float], end: tuple[float, float], **look: Any) -> None:
        given: dict[str, Any] = {"color": style.INK, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
        given["arrowstyle"] = "-|>,head_width=1.6,head_length=3"
        self.axes.add_patch(FancyArrowPatch(start, end, **(given | look)))

    def ribbon(self, left: Edge, right: Edge, colour: str) -> None:
        """Between two upright edges, with a bend at both."""
        (x0, low0, high0), (x1, low1, high1) = left, right
        half = (x0 + x1) / 2
        below = [(x0, low0), (half, low0), (half, low1), (x1, low1)]
        above = [(x1, high1), (half, high1), (half, high0), (x0, high0)]
        curve = [Path.CURVE4] * 3
        codes = [Path.MOVETO, *curve, Path.LINETO, *curve, Path.CLOSEPOLY]
        path = Path([*below, *above, below[0]], codes)
        self.axes.add_patch(PathPatch(path, facecolor=colour, alpha=0.38, linewidth=0))

    def matrix(
        self,
        x: float,
        y: float,
        cell: float,
        values: Float[np.ndarray, "rows columns"],
        cmap: Colormap = style.SHADE,
        limits: tuple[float, float] = (0, 1),
    ) -> None:
        """Cells with thin lines between them, grey where they are zero."""
        rows, columns = values.shape
        across, up = x + cell * np.arange(columns + 1), y + cell * np.arange(rows + 1)
        shown = np.ma.masked_equal(values[::-1], 0)
        look = {"cmap": cmap.with_extremes(bad=ZERO), "edgecolors": "white", "linewidth": 0.4}
        self.axes.pcolormesh(across, up, shown, vmin=limits[0], vmax=limits[1], **look)
        self.box(x, y, cell * columns, cell * rows, **NO_FILL)

    def block_matrix(self, x: float, y: float, cell: float, c_out: Codes, c_in: Codes) -> None:
        """Weights in the colours of the clusters that their two nodes share; grey without any."""
        shared = (c_out[:, None] * c_in[None]) > 0
        self._cells(x, y, cell, [[np.flatnonzero(both) for both in row] for row in shared])
        high, wide = cell * len(c_out), cell * len(c_in)
        self.box(x, y, wide, high, facecolor="none", linestyle=(0, (3, 2)))

    def clusters(self, x: float, y: float, cell: float, c: Codes) -> None:
        """C itself: a row per node, a column per cluster in its colour."""
        self._cells(x, y, cell, [[[j] if bit else [] for j, bit in enumerate(row)] for row in c])
        self.box(x, y, cell * c.shape[1], cell * len(c), **NO_FILL)

    def _cells(self, x: float, y: float, cell: float, colours: Sequence[Sequence[Any]]) -> None:
        """Rows from the top, each cell striped in clusters; grey without any."""
        for i, row in enumerate(reversed(colours)):
            for j, clusters in enumerate(row):
                left, low = x + j * cell, y + i * cell
                self.stripes(left, low, cell, cell, clusters)
                fill = "none" if len(clusters) else ZERO
                self.box(left, low, cell, cell, linewidth=0.5, facecolor=fill, edgecolor="white")
