"""Fig. 5: masks of weights, as they are drawn and with their nodes in order."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from blockout.runs import Run
from blockout.show.figures import style
from blockout.show.figures.selection import most_branched
from blockout.show.masks import Mask, example_masks, learned_masks


@style.styled
def masks(runs: Sequence[Run]) -> Figure:
    """Dropout, Blockout, DropConnect, and what a run has learned: the mean of its masks."""
    run = most_branched(runs)
    columns = [*example_masks(), *learned_masks(run)]
    figure = style.new_figure(2.8)
    rows = figure.subplots(2, len(columns))
    for number, (mask, pair) in enumerate(zip(columns, rows.T, strict=True)):
        darkest = mask.largest if mask.layer else 1
        inputs, outputs = _names(mask, run)
        for axes, matrix in zip(pair, (mask.as_it_is, mask.in_order), strict=True):
            axes.imshow(matrix, style.SHADE, vmin=0, vmax=darkest, interpolation="nearest")
            axes.set(aspect="auto", box_aspect=1)
            style.framed(axes)
            axes.set_ylabel(outputs, labelpad=2)
        pair[1].set_xlabel(inputs, labelpad=2)
        title = f"learned, {mask.title.rpartition('.')[2]}" if mask.layer else mask.title
        pair[0].set_title(f"{style.letter(number)} {title}")
    for row, words in zip(rows, ("as it is", "ordered by code"), strict=True):
        where = {"xycoords": "axes fraction", "ha": "right", "va": "center"}
        row[0].annotate(words, (-0.25, 0.5), rotation=90, color=style.QUIET, **where)
    return figure


def _names(mask: Mask, run: Run) -> tuple[str, str]:
    """Of the columns and the rows."""
    if mask.layer is None:
        return "inputs", "outputs"
    inputs, outputs = mask.layer.inputs, mask.layer.outputs
    return _named(inputs, run), _named(outputs, run)


def _named(of: str, run: Run) -> str:
    p = run.memberships[of]
    return f"{len(p)} {'classes' if p is run.class_memberships else f'nodes of {style.symbol(of)}'}"
