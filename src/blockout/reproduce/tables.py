"""Markdown and CSV from records: published and ours side by side, with what spread there is."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from blockout import files
from blockout.reproduce.claims import CLAIMS, Finding, in_words
from blockout.reproduce.comparison import BASELINE, DROPOUT, TUNED_DROPOUT, Comparison, Line
from blockout.reproduce.records import Records
from blockout.reproduce.rows import TRIAL_SEEDS
from blockout.reproduce.settings import SCALES

BEGIN, END = "<!-- {}: made by `blockout reproduce tables` -->", "<!-- end of {} -->"
NOTHING = "There are no records yet."
NOT_MEASURED = "not measured yet"
CSV_COLUMNS = (
    "condition", "row", "setting", "published", "mean", "std", "n", "difference",
    "baseline_difference", "baseline_low", "baseline_high",
    "dropout_difference", "dropout_low", "dropout_high", "seconds",
)  # fmt: skip


def comparisons(out: Path) -> list[Comparison]:
    """One for each condition that has records."""
    return [Comparison(name, cells) for name, cells in Records(out).conditions().items() if cells]


def markdown(found: Sequence[Comparison]) -> str:
    """All tables, one condition after another."""
    if not found:
        return NOTHING + "\n"
    return "\n".join(line for comparison in found for line in _section(comparison)) + "\n"


def _section(c: Comparison) -> Iterator[str]:
    made_with = sorted({m for cell in c.cells.values() for m in _machines(cell.environments)})
    runs = sum(len(cell.runs) for cell in c.cells.values())
    hours = sum(run.took for cell in c.cells.values() for run in cell.runs) / 3600
    yield f"### {c.condition.described()}\n"
    yield (
        f"Scale {c.condition.scale}: {SCALES[c.condition.scale]}. {runs} runs with those of the "
        f"trials, {hours:.1f} hours on {'; '.join(made_with)}.\n"
    )
    yield from main_table(c)
    for part in (_trials(c), _convergence(c), _emergence(c)):
        if len(rows := list(part)) > 2:
            yield ""
            yield from rows
    yield ""


def _machines(environments: Iterable[dict]) -> Iterator[str]:
    for environment in environments:
        machine, versions = environment["machine"], environment["versions"]
        where = machine["accelerator"] or machine["processor"]
        cores = f"{machine['threads']} of {machine['cores']} cores"
        yield f"{where}, {cores}, torch {versions['torch']}"


def main_table(c: Comparison) -> Iterator[str]:
    yield (
        "| row | published | ours, mean ± std (n) | difference | against the baseline | "
        "against tuned Dropout | seconds per run |"
    )
    yield "|---|---|---|---|---|---|---|"
    for line in c.shown:
        cells = (
            _label(line),
            _number(line.row.published, ".2f"),
            line.why_not or ours(line),
            _number(line.from_print, "+.1f"),
            _against(c, line, BASELINE),
            _against(c, line, TUNED_DROPOUT),
            _number(line.seconds, ".0f"),
        )
        yield f"| {' | '.join(cells)} |"


def _label(line: Line) -> str:
    return (
        f"{line.row.label}: `{line.setting}`"
        if line.row.trials and line.setting
        else line.row.label
    )


def ours(line: Line) -> str:
    """Mean, spread and number of runs."""
    if line.mean is None:
        return "(n = 0)"
    spread = "" if line.std is None else f" ± {line.std:.1f}"
    return f"{line.mean:.1f}{spread} ({len(line.runs)})"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _against(c: Comparison, line: Line, other: str) -> str:
    found = c.against(line.row.name, other)
    if found is None:
        return ""
    sure = "**" if found.sign else ""
    return f"{sure}{in_words(found)}{sure}"


def _trials(c: Comparison) -> Iterator[str]:
    yield (
        f"| tuned, over the first {TRIAL_SEEDS} seeds | trials: hold-out %, which chooses "
        "(test %, which does not) |"
    )
    yield "|---|---|"
    for name, trials in c.trials.items():
        line = c.lines[name]
        said = (f"`{t.setting}` {t.holdout:.1f} ({t.test:.1f})" for t in trials)
        marked = (f"**{x}**" if f"`{line.setting}`" in x else x for x in said)
        yield f"| {line.row.label} | {', '.join(marked)} |"


def _convergence(c: Comparison) -> Iterator[str]:
    """Steps and seconds until Dropout's final accuracy, as the paper's Fig. 8 asks."""
    yield (
        "| until the final test accuracy of Dropout of the same seed | share of the steps | "
        "seconds | runs that get there |"
    )
    yield "|---|---|---|---|"
    target = c.as_good_as(DROPOUT)
    for line in c.shown:
        shares = c.share_until(line, target)
        there = [share for share in shares if share is not None]
        if not shares or line.row.part not in ("methods", "ours"):
            continue
        mean = fmean(there) if there else None
        seconds = None if mean is None or line.seconds is None else mean * line.seconds
        said = "" if mean is None else f"{mean:.0%}", _number(seconds, ".1f")
        yield f"| {line.row.label} | {said[0]} | {said[1]} | {len(there)} of {len(shares)} |"


def _emergence(c: Comparison) -> Iterator[str]:
    yield (
        "| memberships in the end | P_0 below 0.1 / above 0.9 | P_1 | P_2 | clusters per class, "
        "median (largest) | seeds agree (0 is chance) | superclasses, AUC (0.5 is chance) | "
        "connections left |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for line in _once(c.shown):
        runs = [run for run in line.runs if run.p]
        if not runs:
            continue
        decided = [
            f"{fmean(r.p[k].below for r in runs):.0%} / {fmean(r.p[k].above for r in runs):.0%}"
            for k in ("P_0", "P_1", "P_2")
        ]
        clusters = [run.clusters_per_class for run in runs if run.clusters_per_class]
        auc = [run.auc for run in runs if run.auc is not None]
        left = [run.left for run in runs if run.left is not None]
        cells = (
            _label(line),
            *decided,
            f"{fmean(x[2] for x in clusters):.2f} ({fmean(x[4] for x in clusters):.2f})",
            _number(c.agreement_of_seeds(line), ".2f"),
            _number(fmean(auc), ".2f") if auc else "",
            f"{fmean(left):.0f} %" if left else "",
        )
        yield f"| {' | '.join(cells)} |"


def _once(lines: Iterable[Line]) -> list[Line]:
    """Without rows that show the same runs as one before them."""
    found: dict[str, Line] = {}
    for line in lines:
        found.setdefault(line.setting, line)
    return list(found.values())


# --- claims ---------------------------------------------------------------------------------------


def claims(found: Sequence[Comparison]) -> str:
    """Every claim with what each condition says about it, and where the records are."""
    lines = ["| the paper says | where | what the records say |", "|---|---|---|"]
    for claim in CLAIMS:
        said = [_said(finding) for finding in claim.findings(found)]
        lines.append(f"| {claim.text} | {claim.where} | {'<br>'.join(said) or NOT_MEASURED} |")
    return "\n".join(lines) + "\n"


def _said(finding: Finding) -> str:
    rows = ", ".join(finding.rows)
    return f"**{finding.verdict}**: {finding.numbers} (`{finding.condition}`: {rows})"


# --- files ----------------------------------------------------------------------------------------


def as_csv(found: Sequence[Comparison]) -> str:
    """One line per row and condition, in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for c in found:
        for line in c.shown:
            pairs = []
            for other in (BASELINE, TUNED_DROPOUT):
                difference = c.against(line.row.name, other)
                pairs += [None] * 3 if difference is None else difference[:3]
            own = line.row.published, line.mean, line.std, len(line.runs), line.from_print
            values = c.name, line.row.name, line.setting, *own, *pairs, line.seconds
            writer.writerow([round(v, 4) if isinstance(v, float) else v for v in values])
    return text.getvalue()


def sections(found: Sequence[Comparison]) -> dict[str, str]:
    """The parts of docs/reproduction.md that are made from records, by name."""
    return {"claims": claims(found), "tables": markdown(found)}


def renewed(page: str, found: Sequence[Comparison]) -> str:
    """A page with the parts between its markers made anew.

    Raises:
        ValueError: the page lacks a marker.
    """
    for name, text in sections(found).items():
        begin, end = BEGIN.format(name), END.format(name)
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page must have the lines {begin} and {end}, once each")
        head, rest = page.split(begin)
        page = f"{head}{begin}\n\n{text}\n{end}{rest.split(end)[1]}"
    return page


def renew(path: Path, found: Sequence[Comparison]) -> None:
    """Makes the generated parts of a page anew."""
    text = files.read_bytes(path).decode()
    files.write_text(path, renewed(text, found))
