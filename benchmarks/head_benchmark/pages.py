"""The benchmark in Markdown: one table, the bars, and the parts of pages that quote them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from blockout import files
from blockout.reproduce.claims import in_words
from blockout.reproduce.comparison import BASELINE, TUNED_DROPOUT
from blockout.reproduce.statistics import Difference
from head_benchmark.bars import Bar
from head_benchmark.sets import DEFAULT, ROWS
from head_benchmark.summary import Method, Point, SetSummary

BEGIN, END = "<!-- {}: made by `python benchmarks/heads.py --table` -->", "<!-- end of {} -->"
NOTHING = "n = 0"
LABELS = {
    BASELINE: "linear classifier (`--method baseline`)",
    "fc": "plain layers (`--method fc`)",
    TUNED_DROPOUT: "Dropout, its rate tuned on the hold-out",
    "dropout-beside": "the same with a linear classifier beside",
    "soft": "the paper's soft memberships",
    "learned": "the paper's learned memberships",
    "fixed": "the paper's fixed memberships",
    "fixed-beside": "fixed, P tuned, a linear classifier beside",
    "alone": "guided, without the linear classifier beside (`--with-linear false`)",
    DEFAULT: "**`blockout train`** (guided)",
    "small": "`--nodes 1024 --budget 1.5`",
    "guided-tuned": "guided, its budget tuned on the hold-out",
}
"""Of a row, where one set has a line for each."""
HEADINGS = {
    DEFAULT: "default", TUNED_DROPOUT: "tuned Dropout", "fc": "plain layers",
    "small": "1024 nodes, budget 1.5", "guided-tuned": "budget tuned",
    "alone": "without the linear classifier", "dropout-beside": "tuned Dropout, linear beside",
    "fixed-beside": "fixed tuned, linear beside", "fixed": "fixed", "learned": "learned",
    "soft": "soft",
}  # fmt: skip
"""Of a row as a column."""


def blocks(found: Sequence[SetSummary], bars: Sequence[Bar]) -> dict[str, str]:
    """The generated parts, by the name between their markers."""
    grocery = next(s for s in found if s.name == "grocery")
    return {
        "grocery": "\n".join(one_set(grocery)),
        "sets": "\n".join(table(found)),
        "bars": "\n".join(bars_table(bars)),
        "frontier": "\n".join(frontier_table(found)),
    }


def renewed(page: str, parts: Mapping[str, str]) -> str:
    """A page with the parts that it has made anew.

    Raises:
        ValueError: the page has no marker, or half of a pair.
    """
    had = 0
    for name, text in parts.items():
        begin, end = BEGIN.format(name), END.format(name)
        if (page.count(begin), page.count(end)) == (0, 0):
            continue
        if (page.count(begin), page.count(end)) != (1, 1):
            raise ValueError(f"the page must have the lines {begin} and {end}, once each")
        before, rest = page.split(begin)
        page = f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"
        had += 1
    if not had:
        raise ValueError(f"the page has none of the markers {', '.join(map(BEGIN.format, parts))}")
    return page


def renew(path: Path, parts: Mapping[str, str]) -> None:
    """Makes the generated parts of a page anew."""
    files.write_text(path, renewed(files.read_bytes(path).decode(), parts))


# --- tables ---------------------------------------------------------------------------------------


def table(found: Sequence[SetSummary]) -> Iterator[str]:
    """A line per set: the baseline's accuracy, and the paired difference to it of each method."""
    methods = [row for row in (DEFAULT, *ROWS) if row != BASELINE]
    methods = list(dict.fromkeys(methods))
    heads = (
        "set", "linear classifier, test %, mean ± std (n)",
        *(f"{HEADINGS[row]} against it" for row in methods),
        "default against tuned Dropout", "connections left by the default, %",
        "with the linear classifier", "lost by compaction at most", "known groups", "seeds agree",
        "seconds per run",
    )  # fmt: skip
    yield _line(heads)
    yield "|---" * len(heads) + "|"
    for its in found:
        yield _line((*_accuracy_cells(its, methods), *_default_cells(its)))


def _accuracy_cells(its: SetSummary, methods: Sequence[str]) -> Iterator[str]:
    yield its.name
    yield accuracy(its.methods.get(BASELINE))
    for row in methods:
        yield _against(its.difference(row)) if row in its.rows else ""
    default = its.methods.get(DEFAULT)
    has_dropout = TUNED_DROPOUT in its.rows
    yield _against(default and default.against_dropout) if has_dropout else ""


def _default_cells(its: SetSummary) -> Iterator[str]:
    default = its.methods.get(DEFAULT)
    for name, form in (("left", ".0f"), ("with_linear", ".0f"), ("lost", ".2f")):
        yield _of_runs(default and getattr(default, name), form, default)
    yield _known_groups(its)
    yield _of_runs(its.seeds_agree, ".2f", default)
    yield _of_runs(default and default.seconds, ".0f", default)


def _known_groups(its: SetSummary) -> str:
    found = [
        f"Rand {sum(runs) / len(runs):.2f}, at least {min(runs):.2f}, {_threads(threads)} "
        f"(n = {len(runs)})"
        for threads, runs in sorted(its.rand.items())
    ]
    if found:
        return "; ".join(found)
    auc = _of_runs(its.auc, ".2f", its.methods.get(DEFAULT))
    return f"AUC {auc}" if auc else ""


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"


def bars_table(bars: Sequence[Bar]) -> Iterator[str]:
    yield "| what must be reached | | | what the records say |"
    yield "|---|---|---|---|"
    for bar in bars:
        yield _line((bar.about, bar.text, f"**{bar.verdict}**", bar.numbers))


def one_set(its: SetSummary) -> Iterator[str]:
    """A line per method that has runs, for a page that speaks of one set."""
    yield (
        "| head on the same features | test %, mean ± std (n) | against the linear classifier, "
        "paired, 95 % interval | connections left, % | counting the linear classifier |"
    )
    yield "|---|---|---|---|---|"
    for row, label in LABELS.items():
        if (method := its.methods.get(row)) is None:
            continue
        difference = "" if row == BASELINE else _against(method.against_baseline)
        sizes = [_number(value, ".0f") for value in (method.left, method.with_linear)]
        yield _line((label, accuracy(method), difference, *sizes))


def frontier_table(found: Sequence[SetSummary]) -> Iterator[str]:
    yield (
        "| set | nodes | budget | linear classifier beside | connections left, % | counting the "
        "linear classifier | connections, thousands | against the linear classifier | against "
        "tuned Dropout | lost by compaction at most |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for its in found:
        if its.kind == "features":
            for point in its.frontier:
                yield _line((its.name, *_frontier_cells(point)))


def _frontier_cells(point: Point) -> Iterator[str]:
    yield from (str(point.nodes), f"{point.budget:g}", "yes" if point.linear else "no")
    yield from (f"{point.left:.0f}", f"{point.with_linear:.0f}", f"{point.connections / 1000:.0f}")
    yield _against(point.against_baseline)
    yield _against(point.against_dropout)
    yield _number(point.lost, ".2f")


# --- cells ----------------------------------------------------------------------------------------


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def accuracy(method: Method | None) -> str:
    """Mean, spread and number of runs."""
    if method is None:
        return NOTHING
    std = "" if method.std is None else f" ± {method.std:.1f}"
    return f"{method.mean:.1f}{std} ({method.n})"


def _against(difference: Difference | None) -> str:
    return NOTHING if difference is None else in_words(difference)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _of_runs(value: float | None, form: str, of: Method | None) -> str:
    return "" if value is None or of is None else f"{value:{form}} (n = {of.n})"
