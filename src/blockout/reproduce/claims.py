"""Every claim of the paper's abstract and Section 7 that a record can decide, and how it does."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple

from blockout.reproduce.comparison import DROPOUT, TUNED_DROPOUT, Comparison, Line
from blockout.reproduce.statistics import Difference

Verdict = Literal["holds", "does not hold", "undecided"]
FEWEST_SEEDS = 3
"""With fewer, nothing is decided."""
MARGIN = 0.5
"""Points that a row may be worse by and still be called as good."""
HALF = 0.6
"""Up to this share of the steps is about half."""
DECIDED = 0.1
"""At least this share of P on either side is a hierarchy that emerged."""
CONSISTENT = 0.5
"""Correlation of class similarities above which two runs group alike."""
SIMILARITY = 0.75
"""Area under the curve above which clusters follow the superclasses."""
LIKE_PRINT = (1.2, 1.8)
"""Around the printed median of 1.5 clusters per class."""


class Finding(NamedTuple):
    """What the records of one condition say about a claim."""

    verdict: Verdict
    numbers: str
    condition: str
    rows: tuple[str, ...]
    """Names of the rows it rests on."""


Check = Callable[[Comparison], tuple[Verdict, str] | None]


class Claim(NamedTuple):
    """A sentence of the paper, and the runs that can say whether it holds here."""

    text: str
    where: str
    check: Check
    rows: tuple[str, ...]
    only: str | None = None
    """The data set that it is about; None for any."""

    def findings(self, comparisons: Sequence[Comparison]) -> list[Finding]:
        found = []
        for comparison in comparisons:
            if self.only is not None and comparison.condition.data != self.only:
                continue
            said = self.check(comparison)
            if said is not None:
                found.append(Finding(*said, comparison.name, self.rows))
        return found


def in_words(difference: Difference) -> str:
    """
    >>> in_words(Difference(1.25, 0.5, 2.0, 5))
    '+1.2 (+0.5 to +2.0), n = 5'
    """
    between = (
        "" if difference.low is None else f" ({difference.low:+.1f} to {difference.high:+.1f})"
    )
    return f"{difference.mean:+.1f}{between}, n = {difference.seeds}"


def _verdict(found: Sequence[Difference]) -> Verdict:
    """Whether all of these differences are gains."""
    if any(d.seeds < FEWEST_SEEDS for d in found):
        return "undecided"
    worst = min(d.sign for d in found)
    return "holds" if worst > 0 else "does not hold" if worst < 0 else "undecided"


def better(one: str, other: str) -> Check:
    """The first row is more accurate than the second, seed by seed."""

    def check(c: Comparison) -> tuple[Verdict, str] | None:
        found = c.against(one, other)
        return None if found is None else (_verdict([found]), in_words(found))

    return check


def not_worse(*rows: str) -> Check:
    """No row is less accurate than the one before it, but for a margin."""

    def check(c: Comparison) -> tuple[Verdict, str] | None:
        found = [c.against(after, before) for before, after in pairwise(rows)]
        known = [d for d in found if d is not None]
        if len(known) < len(found):
            return None
        said = "; ".join(map(in_words, known))
        if _verdict(known) == "does not hold":
            return "does not hold", said
        few = any(d.seeds < FEWEST_SEEDS for d in known)
        sure = all(d.low is not None and d.low >= -MARGIN for d in known)
        return ("holds" if sure and not few else "undecided"), said

    return check


def all_better(rows: Sequence[str], other: str) -> Check:
    """Each of the rows that a table has is more accurate than another row."""

    def check(c: Comparison) -> tuple[Verdict, str] | None:
        there = [row for row in rows if row in c.lines]
        known = [d for row in there if (d := c.against(row, other)) is not None]
        if len(known) < len(there) or len(there) < len(rows) / 2:
            return None
        least = min(known, key=lambda d: d.mean)
        return _verdict(known), f"at least {in_words(least)}"

    return check


def best_of_six(row: str) -> Check:
    def check(c: Comparison) -> tuple[Verdict, str] | None:
        six = {n: line.mean for n, line in c.lines.items() if line.row.part == "methods"}
        means = {name: mean for name, mean in six.items() if mean is not None}
        if len(means) < len(six) or len(c.line(row).runs) < FEWEST_SEEDS:
            return None
        first = max(means, key=lambda name: means[name])
        said = f"best is {first} with {means[first]:.1f}, {row} has {means[row]:.1f}"
        return ("holds" if first == row else "does not hold"), said

    return check


def sooner(row: str, other: str) -> Check:
    """A row has another's final accuracy after about half the steps."""

    def check(c: Comparison) -> tuple[Verdict, str] | None:
        shares = c.share_until(c.line(row), c.as_good_as(other))
        if len(shares) < FEWEST_SEEDS:
            return None
        there = [share for share in shares if share is not None]
        if len(there) < len(shares):
            return "does not hold", f"{len(there)} of {len(shares)} runs get there at all"
        mean = fmean(there)
        return ("holds" if mean <= HALF else "does not hold"), f"after {mean:.0%} of the steps"

    return check


def _shares(line: Line, name: str) -> tuple[float, float] | None:
    """Of P below 0.1 and above 0.9, mean over the seeds."""
    found = [run.p[name] for run in line.runs if name in run.p]
    if len(found) < FEWEST_SEEDS:
        return None
    return fmean(s.below for s in found), fmean(s.above for s in found)


def diverges(c: Comparison) -> tuple[Verdict, str] | None:
    shares = _shares(c.line("learned"), "P_2")
    if shares is None:
        return None
    said = f"P_2: {shares[0]:.0%} below 0.1, {shares[1]:.0%} above 0.9"
    return ("holds" if min(shares) >= DECIDED else "does not hold"), said


def towards_one(c: Comparison) -> tuple[Verdict, str] | None:
    """Of soft memberships."""
    runs = [run for run in c.line("soft").runs if run.p]
    if len(runs) < FEWEST_SEEDS:
        return None
    medians = {k: fmean(run.p[k].quartiles[1] for run in runs) for k in runs[0].p}
    lows = [fmean(run.p[k].quartiles[0] for run in runs) for k in runs[0].p]
    said = "medians " + ", ".join(f"{k} {v:.2f}" for k, v in medians.items())
    return ("holds" if min(lows) > 0.5 else "does not hold"), said


def more_above(c: Comparison) -> tuple[Verdict, str] | None:
    """Higher layers are more decided, and towards both sides."""
    found = [_shares(c.line("learned"), name) for name in ("P_0", "P_1", "P_2")]
    if any(shares is None for shares in found):
        return None
    decided = [sum(shares) for shares in found if shares is not None]
    said = "below 0.1 or above 0.9: " + ", ".join(f"{share:.0%}" for share in decided)
    apart = found[2] is not None and min(found[2]) >= DECIDED
    holds = apart and decided[0] < decided[1] < decided[2]
    return ("holds" if holds else "does not hold"), said


def clusters_per_class(c: Comparison) -> tuple[Verdict, str] | None:
    runs = [r.clusters_per_class for r in c.line("learned").runs if r.clusters_per_class]
    if len(runs) < FEWEST_SEEDS:
        return None
    median, most = fmean(r[2] for r in runs), fmean(r[4] for r in runs)
    holds = LIKE_PRINT[0] <= median <= LIKE_PRINT[1]
    return ("holds" if holds else "does not hold"), f"median {median:.1f}, largest {most:.1f}"


def consistent(c: Comparison) -> tuple[Verdict, str] | None:
    """Over seeds, and over widths where these were run."""
    line = c.line("learned")
    between = c.agreement_of_seeds(line)
    if between is None:
        return None
    widths = [
        found
        for name, other in c.lines.items()
        if name.startswith("nodes-") and other.setting != line.setting
        for found in [c.agreement_between(line, other)]
        if found is not None
    ]
    said = f"correlation between seeds {between:.2f}"
    if widths:
        said += f", between widths {fmean(widths):.2f}"
    return ("holds" if min([between, *widths]) >= CONSISTENT else "does not hold"), said


def less_interpretable(c: Comparison) -> tuple[Verdict, str] | None:
    """Similar classes need not share clusters."""
    found = [run.auc for run in c.line("learned").runs if run.auc is not None]
    if len(found) < FEWEST_SEEDS:
        return None
    mean = fmean(found)
    said = f"superclasses recognised with probability {mean:.2f} (chance 0.5)"
    return ("holds" if mean < SIMILARITY else "does not hold"), said


VARIANTS = ("clusters-2", "clusters-4", "learned", "nodes-1024", "nodes-2048")
FIGURE_8 = "Section 7.1, Fig. 8"
CLAIMS = (
    Claim(
        "improved classification accuracy",
        "abstract",
        better("learned", "baseline"),
        ("learned", "baseline"),
    ),
    Claim(
        "better regularization performance (than Dropout at the paper's rate)",
        "abstract",
        better("learned", DROPOUT),
        ("learned", DROPOUT),
    ),
    Claim(
        "the same against Dropout at a tuned rate",
        "beside it",
        better("learned", TUNED_DROPOUT),
        ("learned", TUNED_DROPOUT),
    ),
    Claim(
        "the same with both tuned",
        "beside it",
        better("learned-tuned", TUNED_DROPOUT),
        ("learned-tuned", TUNED_DROPOUT),
    ),
    Claim("faster training", "abstract", sooner("learned", DROPOUT), ("learned", DROPOUT)),
    Claim("clear emergence of hierarchical structures", "abstract", diverges, ("learned",)),
    Claim(
        "added naively, fully-connected layers overfit and reduce performance",
        "Section 7",
        better("baseline", "fc"),
        ("baseline", "fc"),
    ),
    Claim(
        "Blockout prevents this overfitting",
        "Section 7",
        better("learned", "fc"),
        ("learned", "fc"),
    ),
    Claim(
        "substantial improvements with a wide range of hyper-parameters (over the baseline)",
        "Section 7",
        all_better(VARIANTS, "baseline"),
        (*VARIANTS, "baseline"),
    ),
    Claim(
        "soft clustering still improves on fully-connected layers",
        "Section 7",
        better("soft", "fc"),
        ("soft", "fc"),
    ),
    Claim(
        "random hierarchies regularise better than Dropout (hard, fixed)",
        "Section 7",
        better("fixed", DROPOUT),
        ("fixed", DROPOUT),
    ),
    Claim(
        "the same against Dropout at a tuned rate",
        "beside it",
        better("fixed", TUNED_DROPOUT),
        ("fixed", TUNED_DROPOUT),
    ),
    Claim(
        "learned probabilities are at least as good as fixed ones",
        "Tables 1 and 2",
        not_worse("fixed", "learned"),
        ("learned", "fixed"),
    ),
    Claim(
        "converges in about half the time as Dropout",
        FIGURE_8,
        sooner("learned", DROPOUT),
        ("learned", DROPOUT),
    ),
    Claim(
        "adding more nodes never reduces accuracy",
        "Section 7.1",
        not_worse("nodes-512", "nodes-1024", "nodes-2048"),
        ("nodes-512", "nodes-1024", "nodes-2048"),
    ),
    Claim(
        "Dropout can still overfit if there are too many parameters",
        "Section 7.1",
        better(DROPOUT, f"{DROPOUT}-2048"),
        (DROPOUT, f"{DROPOUT}-2048"),
    ),
    Claim(
        "soft clustering: all probabilities increase towards one",
        "Section 7.2, Fig. 9",
        towards_one,
        ("soft",),
    ),
    Claim(
        "hard clustering: diverging probabilities, some near zero and some near one",
        "Section 7.2, Fig. 9",
        diverges,
        ("learned",),
    ),
    Claim("more so in higher layers", "Section 7.2, Fig. 9", more_above, ("learned",)),
    Claim(
        "clusters are less interpretable than those by similarity",
        "Section 7.2, Fig. 10",
        less_interpretable,
        ("learned",),
    ),
    Claim(
        "probabilities are fairly consistent across hyper-parameters",
        "Section 7.2, Figs. 10 and 11",
        consistent,
        ("learned",),
    ),
    Claim(
        "a median of about 1.5 clusters per class",
        "Section 7.2, Fig. 11",
        clusters_per_class,
        ("learned",),
    ),
    Claim(
        "CIFAR-10: soft clustering is the best of the six",
        "Section 7.3",
        best_of_six("soft"),
        ("soft",),
        only="cifar10",
    ),
    Claim(
        "CIFAR-10: stochastic regularisation still better than Dropout",
        "Section 7.3",
        better("learned", DROPOUT),
        ("learned", DROPOUT),
        only="cifar10",
    ),
)
