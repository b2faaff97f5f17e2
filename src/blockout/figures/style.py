"""How every figure looks, and how it becomes a file. No pyplot: works headless and in threads."""

import functools
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure
from PIL import Image

Form = Literal["png", "svg"]
FORMS: tuple[Form, ...] = ("png", "svg")
PAGE = 6.5
"""Inches: the paper's text is as wide as this."""
DPI, DPI_INSIDE_SVG = 200, 110
LARGE = 250_000
"""Bytes of a PNG, above which it is saved with 256 colours."""
SMALL, NORMAL = 6.5, 7.5
"""Points."""
INK, QUIET, FAINT = "#1a1a1a", "#666666", "#e4e4e4"
HEAT = LinearSegmentedColormap.from_list(
    "heat", ["#ffffff", "#fbe6b8", "#E69F00", "#D55E00", "#5e1f00"]
)
"""From nothing to much; warm as in the paper, even in grey."""
SHADE = LinearSegmentedColormap.from_list("shade", ["#ffffff", "#b9d6ea", "#0072B2", "#00314d"])

STYLE: dict[Any, Any] = {
    # STIX comes with Matplotlib, so that a figure is set alike everywhere; a browser takes Times.
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "Times New Roman", "Times", "Liberation Serif"],
    "mathtext.fontset": "stix",
    "font.size": NORMAL,
    "axes.labelsize": NORMAL, "axes.titlesize": NORMAL, "legend.fontsize": NORMAL,
    "xtick.labelsize": SMALL, "ytick.labelsize": SMALL,
    "axes.linewidth": 0.6, "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlelocation": "left", "axes.titlepad": 4.0,
    "xtick.color": INK, "ytick.color": INK,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5,
    "lines.linewidth": 1.1, "lines.markersize": 2.5, "patch.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.frameon": False, "legend.handlelength": 1.6,
    "figure.facecolor": "white", "savefig.facecolor": "white", "figure.dpi": DPI,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "blockout",  # names inside the file are the same every time
}  # fmt: skip

_ONE_AT_A_TIME = threading.RLock()
_P = ParamSpec("_P")


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's settings belong to the process: they are ours for as long as this is held."""
    with _ONE_AT_A_TIME, matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A class name may have letters that the font lacks; an SVG shows them all the same.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        yield


def styled(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    """A function that draws a figure, in our style."""

    @functools.wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> Figure:
        with house_style():
            return draw(*args, **kwargs)

    return drawn


def new_figure(height: float, width: float = PAGE, *, constrained: bool = True) -> Figure:
    """A blank sheet; inches."""
    figure = Figure((width, height), layout="constrained" if constrained else None)
    if constrained:
        figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # pyright: ignore
    return figure


def stacked(figure: Figure, heights: Sequence[float]) -> list[SubFigure]:
    """Parts of a figure one below the other."""
    parts: Any = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)
    return list(parts[:, 0])


def encoded(figure: Figure, form: Form) -> bytes:
    """The file of a figure: the same bytes for the same figure, whenever it is drawn."""
    file = io.BytesIO()
    with house_style():
        if form == "svg":
            canvas = FigureCanvasSVG(figure)
            canvas.print_figure(file, format="svg", dpi=DPI_INSIDE_SVG, metadata={"Date": None})
        else:
            FigureCanvasAgg(figure).print_figure(file, format="png", dpi=DPI)
    return file.getvalue() if form == "svg" or file.tell() < LARGE else _in_few_colours(file)


def _in_few_colours(png: io.BytesIO) -> bytes:
    """Of a picture with thousands of dots: a third of the size, and hardly another picture."""
    file = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(256).save(file, "png", dpi=(DPI, DPI), optimize=True)
    return file.getvalue()


def letter(number: int) -> str:
    """(a), (b), ... before the title of a panel."""
    return f"({chr(ord('a') + number % 26)})"


def bare(axes: Axes) -> None:
    """Without ticks and frame, for diagrams."""
    axes.set_axis_off()


def framed(axes: Axes) -> None:
    """A thin frame without ticks, for pictures of matrices and maps of points."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)
        spine.set_color(QUIET)


def plain(text: str) -> str:
    """A name that cannot be read as mathematics."""
    return text.replace("$", r"\$")


def symbol(of: str) -> str:
    """Of a set of nodes.

    >>> symbol("P_10")
    '$P_{10}$'
    """
    letters, _, number = of.partition("_")
    return f"${letters}_{{{number}}}$"


def shortened(text: str, most: int) -> str:
    """
    >>> shortened("great white shark", 12)
    'great white…'
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
