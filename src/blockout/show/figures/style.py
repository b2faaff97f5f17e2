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
"""Inches: the width of the paper's text."""
DPI, DPI_INSIDE_SVG = 200, 110
LARGE = 250_000
"""Bytes: a larger PNG is saved with 256 colours."""
TINY, SMALL, NORMAL = 5.5, 6.5, 7.5
"""Points."""
INK, QUIET, FAINT = "#1a1a1a", "#666666", "#e4e4e4"
HEAT = LinearSegmentedColormap.from_list(
    "heat", ["#ffffff", "#fbe6b8", "#E69F00", "#D55E00", "#5e1f00"]
)
"""From nothing to much: warm as in the paper, and ordered in greyscale too."""
SHADE = LinearSegmentedColormap.from_list("shade", ["#ffffff", "#b9d6ea", "#0072B2", "#00314d"])

STYLE: dict[Any, Any] = {
    # STIX comes with Matplotlib, so figures look the same everywhere; a browser takes Times.
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "Times New Roman", "Times", "Liberation Serif"],
    "mathtext.fontset": "stix",
    **dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize", "legend.fontsize"), NORMAL),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), SMALL),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.titlelocation": "left",
    "axes.titlepad": 4.0,
    "lines.linewidth": 1.1,
    "lines.markersize": 2.5,
    "patch.linewidth": 0.6,
    "legend.handlelength": 1.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.dpi": DPI,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "blockout",  # the same names inside the file every time
}

_ONE_AT_A_TIME = threading.RLock()
_P = ParamSpec("_P")


@contextmanager
def house_style() -> Iterator[None]:
    """Our settings for Matplotlib; they are global, so only one thread draws at a time."""
    with _ONE_AT_A_TIME, matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The font may lack letters of a class name; an SVG shows them all the same.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        yield


def styled(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    """A function that draws a figure in our style."""

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


def rows(figure: Figure, heights: Sequence[float], titles: Sequence[str] = ()) -> list[SubFigure]:
    """Parts of a figure one below the other, the first of them with a letter and a title."""
    parts: Any = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)
    for number, title in enumerate(titles):
        text = f"{letter(number)} {plain(title)}"
        parts[number, 0].suptitle(text, x=0.01, ha="left", fontsize=NORMAL)
    return list(parts[:, 0])


def encoded(figure: Figure, form: Form) -> bytes:
    """The file of a figure: equal figures give equal bytes."""
    file = io.BytesIO()
    with house_style():
        if form == "svg":
            canvas = FigureCanvasSVG(figure)
            canvas.print_figure(file, format="svg", dpi=DPI_INSIDE_SVG, metadata={"Date": None})
        else:
            FigureCanvasAgg(figure).print_figure(file, format="png", dpi=DPI)
    return file.getvalue() if form == "svg" or file.tell() < LARGE else _in_few_colours(file)


def _in_few_colours(png: io.BytesIO) -> bytes:
    """A third of the size for a picture with thousands of dots, and hardly a visible difference."""
    file = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(256).save(file, "png", dpi=(DPI, DPI), optimize=True)
    return file.getvalue()


def letter(number: int) -> str:
    """(a), (b), ... before the title of a panel."""
    return f"({chr(ord('a') + number % 26)})"


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
