"""Fig. 8: training cost, training accuracy and test accuracy through training, by method."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blockout.models.config import METHODS
from blockout.runs import Run
from blockout.show.convergence import Line, accuracy, cost_by_epoch, cost_by_step, over_seeds
from blockout.show.figures import style
from blockout.show.figures.selection import CannotDraw
from blockout.show.methods import SYMBOLS, Group, by_method

DASHES: dict[str, str] = dict(zip(SYMBOLS, ("-", "--", "-.", ":"), strict=True))
TITLES = "training cost", "training accuracy (%)", "test accuracy (%)"


@style.styled
def convergence(runs: Sequence[Run]) -> Figure:
    """A line per method, in the paper's order; several seeds are their mean and their range."""
    runs = [run for run in runs if run.steps or run.epochs]
    if not runs:
        raise CannotDraw("needs a run that has logged something, and none was given")
    groups = sorted(by_method(runs), key=lambda group: METHODS.index(group.runs[0].method))
    names = [_name(group) for group in groups]
    longest = max(map(len, names))
    columns = 3 if longest <= 38 else 2 if longest <= 60 else 1
    figure = style.new_figure(2.15 + 0.16 * -(-len(groups) // columns))
    panels = figure.subplots(1, 3)
    for number, (axes, title) in enumerate(zip(panels, TITLES, strict=True)):
        axes.set(title=f"{style.letter(number)} {title}", xlabel="epoch", axisbelow=True)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y", color=style.FAINT, linewidth=0.5)
    for group, name in zip(groups, names, strict=True):
        costs = [cost_by_step(run) if run.steps else cost_by_epoch(run) for run in group.runs]
        _draw(panels[0], group, costs, label=style.plain(name))
        _draw(panels[1], group, [accuracy(run, "train") for run in group.runs], marker="o")
        _draw(panels[2], group, [accuracy(run, "test") for run in group.runs], marker="o")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=columns)
    return figure


def _name(group: Group) -> str:
    seeds = len(group.runs)
    return f"{group.label}, {seeds} seeds" if seeds > 1 else group.label


def _draw(axes: Axes, group: Group, lines: Sequence[Line], **look: str) -> None:
    look |= {"color": group.colour, "linestyle": DASHES[group.symbol]}
    band = over_seeds(lines)
    if band is None:
        axes.plot([], [], **look)  # pyright: ignore
        return
    axes.plot(band.epochs, band.mean, **look)  # pyright: ignore
    if len(lines) > 1:
        spread = {"color": group.colour, "alpha": 0.2, "linewidth": 0}
        axes.fill_between(band.epochs, band.least, band.most, **spread)
