"""What issue 16 says must be reached by the settings that people's own data get without a flag.

A bar is reached when every set it speaks of has all the seeds that it wants, missed as soon as a
measured set misses it, and otherwise not measured.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from blockout.reproduce.statistics import Difference
from head_benchmark.sets import DEFAULT
from head_benchmark.summary import Method, Point, SetSummary

Verdict = Literal["reached", "missed", "not measured"]
MEAN, LOW, MEAN_FROM_NOTHING, MEAN_OF_ALL = -0.3, -1.0, -1.0, 0.5
"""Against the baseline: on a set, the lower end of its interval, from nothing, over all sets."""
DROPOUT_MEAN, DROPOUT_EACH = 0.5, -0.5
"""Against tuned Dropout."""
MOST_CONNECTIONS, MOST_LOST = 50.0, 0.3
RAND_MEAN, RAND_EACH, RAND_RUNS = 0.9, 0.75, 10
AUC, SEEDS_AGREE = 0.8, 0.7
DIGITS = -0.5
THREADS = {1: "one thread", 2: "two threads"}
WITH_BUDGETS = ("grocery", "cifar100-50", "cifar100")
"""Where a small setting is asked for."""
WITH_SUPERCLASSES = ("cifar100-50", "cifar100")
APART = ("shapes-two-threads",)
"""Asked about groups only."""


class Bar(NamedTuple):
    """A row of the issue's table, judged."""

    about: str
    text: str
    verdict: Verdict
    numbers: str


class Measured(NamedTuple):
    """A value of a set; None where it has not been measured."""

    name: str
    value: float | None
    complete: bool
    """Whether the set has all the seeds that it wants."""


def judged(found: Sequence[SetSummary]) -> list[Bar]:
    """All bars, in the issue's order."""
    return [*_against_baseline(found), *_against_dropout(found), *_structure(found),
            *_meaning(found), *_digits(found)]  # fmt: skip


# --- the rows -------------------------------------------------------------------------------------


def _against_baseline(found: Sequence[SetSummary]) -> Iterator[Bar]:
    about = "against the baseline"
    all_sets = [s for s in found if s.name not in APART]
    led = [s for s in all_sets if s.kind != "nothing"]
    text = f"on features, digits and shapes: mean at least {MEAN:+.1f} on every set"
    yield each(about, text, [_mean(s) for s in led], MEAN)
    text = f"there, lower end of the 95 % interval at least {LOW:+.1f}"
    yield each(about, text, [_low(s) for s in led], LOW)
    text = f"from nothing: mean at least {MEAN_FROM_NOTHING:+.1f}"
    nothing = [_mean(s) for s in all_sets if s.kind == "nothing"]
    yield each(about, text, nothing, MEAN_FROM_NOTHING)
    text = f"mean over all sets at least {MEAN_OF_ALL:+.1f} (digits count as one)"
    yield on_average(about, text, _one_of_digits(all_sets), MEAN_OF_ALL)


def _against_dropout(found: Sequence[SetSummary]) -> Iterator[Bar]:
    about = "against tuned Dropout, on features"
    values = [
        Measured(s.name, d and d.mean, _complete(d, s))
        for s in found
        if s.kind == "features"
        for d in [_default(s) and s.methods[DEFAULT].against_dropout]
    ]
    text = f"mean over the sets at least {DROPOUT_MEAN:+.1f}"
    yield on_average(about, text, values, DROPOUT_MEAN)
    yield each(about, f"on every set at least {DROPOUT_EACH:+.1f}", values, DROPOUT_EACH)


def _structure(found: Sequence[SetSummary]) -> Iterator[Bar]:
    named = [s for s in found if s.name in WITH_BUDGETS]
    text = (
        f"a setting with at most {MOST_CONNECTIONS:.0f} % of the connections (linear classifier "
        "counted) that is within the bounds of a set above"
    )
    verdicts = [small_enough(s.frontier) for s in named]
    numbers = "; ".join(f"{s.name}: {said}" for s, (_, said) in zip(named, verdicts, strict=True))
    yield Bar("structure", text, _all_of([verdict for verdict, _ in verdicts]), numbers)
    losses = [
        Measured(s.name, None if worst is None else 0.0 - worst, _is_complete(s))
        for s in found
        if s.kind == "features"
        for worst in [max((p.lost for p in s.frontier if p.lost is not None), default=None)]
    ]
    text = f"compaction loses at most {MOST_LOST} points, in every guided run"
    yield each("structure", text, losses, -MOST_LOST)


def _meaning(found: Sequence[SetSummary]) -> Iterator[Bar]:
    about = "meaning, shapes"
    for threads, said in THREADS.items():
        runs = [r for s in found if s.kind == "shapes" for r in s.rand.get(threads, [])]
        complete = len(runs) >= RAND_RUNS
        name = f"n = {len(runs)}" if runs else f"shapes, {said}"
        text = f"adjusted Rand, {said}: mean at least {RAND_MEAN}"
        mean = [Measured(name, fmean(runs) if runs else None, complete)]
        yield each(about, text, mean, RAND_MEAN, ".2f")
        text = f"adjusted Rand, {said}: each at least {RAND_EACH}"
        yield each(
            about, text, [Measured(name, min(runs, default=None), complete)], RAND_EACH, ".2f"
        )
    about = "meaning, CIFAR-100 features"
    named = [s for s in found if s.name in WITH_SUPERCLASSES]
    values = [Measured(s.name, s.auc, _is_complete(s)) for s in named]
    yield each(about, f"AUC against superclasses at least {AUC}", values, AUC, ".2f")
    values = [Measured(s.name, s.seeds_agree, _is_complete(s)) for s in named]
    text = f"correlation between seeds at least {SEEDS_AGREE}"
    yield each(about, text, values, SEEDS_AGREE, ".2f")


def _digits(found: Sequence[SetSummary]) -> Iterator[Bar]:
    text = f"400 steps: mean at least {DIGITS:+.1f} against dense"
    yield each("digits", text, [_mean(s) for s in found if s.kind == "digits"], DIGITS)


def small_enough(points: Sequence[Point]) -> tuple[Verdict, str]:
    """Whether a setting is small and still good; the best of those, or of what comes nearest."""
    small = [p for p in points if p.with_linear <= MOST_CONNECTIONS and p.against_baseline]
    good = [p for p in small if _is_good(p)]
    decided = [p for p in good if p.n >= p.wanted]
    if not small:
        return "not measured", f"no setting so small has runs ({len(points)} larger)"
    best = max(decided or good or small, key=lambda p: p.against_baseline.mean)  # pyright: ignore
    difference = best.against_baseline
    assert difference is not None
    said = (
        f"`{best.setting}` with {best.with_linear:.0f} %, {difference.mean:+.2f}, "
        f"n = {difference.seeds} of {best.wanted}"
    )
    if decided:
        return "reached", said
    open_still = [p for p in small if p.n < p.wanted or p.against_dropout is None]
    return ("not measured" if open_still else "missed"), said


def _is_good(point: Point) -> bool:
    """Within the bounds that hold for every single set."""
    plain, dropout = point.against_baseline, point.against_dropout
    if plain is None or plain.low is None or dropout is None:
        return False
    return plain.mean >= MEAN and plain.low >= LOW and dropout.mean >= DROPOUT_EACH


# --- verdicts -------------------------------------------------------------------------------------


def each(
    about: str, text: str, values: Sequence[Measured], least: float, form: str = "+.2f"
) -> Bar:
    """Whether every set has at least so much; the numbers begin with the lowest."""
    known = sorted((v.value, v.name) for v in values if v.value is not None)
    missed = any(value < least for value, _ in known)
    complete = bool(values) and all(v.complete and v.value is not None for v in values)
    verdict: Verdict = "missed" if missed else "reached" if complete else "not measured"
    said = [f"{value:{form}} ({name})" for value, name in known]
    return Bar(about, text, verdict, "; ".join([*said, *_still_open(values)]))


def on_average(about: str, text: str, values: Sequence[Measured], least: float) -> Bar:
    """Whether the mean over all sets is at least so much: no set may be without a value."""
    known = [v.value for v in values if v.value is not None]
    mean = fmean(known) if known else None
    everywhere = len(known) == len(values) > 0
    verdict: Verdict = "not measured"
    if everywhere and mean is not None:
        complete = all(v.complete for v in values)
        verdict = "missed" if mean < least else "reached" if complete else "not measured"
    said = [] if mean is None else [f"{mean:+.2f} over {len(known)} of {len(values)} sets"]
    return Bar(about, text, verdict, "; ".join([*said, *_still_open(values)]))


def _still_open(values: Sequence[Measured]) -> Iterator[str]:
    if nothing := [v.name for v in values if v.value is None]:
        yield f"no value yet: {', '.join(nothing)}"
    if fewer := [v.name for v in values if v.value is not None and not v.complete]:
        yield f"fewer seeds than wanted: {', '.join(fewer)}"


def _all_of(verdicts: Sequence[Verdict]) -> Verdict:
    if "missed" in verdicts:
        return "missed"
    return "reached" if verdicts and set(verdicts) == {"reached"} else "not measured"


# --- values ---------------------------------------------------------------------------------------


def _default(its: SetSummary) -> Method | None:
    return its.methods.get(DEFAULT)


def _is_complete(its: SetSummary) -> bool:
    default = _default(its)
    return default is not None and default.n >= default.wanted


def _complete(difference: Difference | None, its: SetSummary) -> bool:
    default = _default(its)
    return difference is not None and default is not None and difference.seeds >= default.wanted


def _mean(its: SetSummary) -> Measured:
    found = its.difference()
    return Measured(its.name, None if found is None else found.mean, _complete(found, its))


def _low(its: SetSummary) -> Measured:
    found = its.difference()
    return Measured(its.name, None if found is None else found.low, _complete(found, its))


def _one_of_digits(sets: Sequence[SetSummary]) -> list[Measured]:
    """Its four kinds would outweigh the others."""
    small = [_mean(s) for s in sets if s.kind == "digits"]
    known = [m.value for m in small if m.value is not None]
    value = fmean(known) if small and len(known) == len(small) else None
    one = Measured("digits", value, all(m.complete for m in small))
    return [one, *(_mean(s) for s in sets if s.kind != "digits")]
