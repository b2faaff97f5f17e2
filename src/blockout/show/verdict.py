"""What a reader should know before relying on a run: bad news in words, each with what to do."""

import math

from blockout.runs import Run
from blockout.runs.documents import Checks, Result

SURE_ERRORS = 4.0
"""Standard errors; a difference of two splits that is smaller may be chance."""
MUCH = 5.0
"""Points by which a hold-out must be easier than the test before it is said."""
LEARNED, BEHIND = 90.0, 15.0
"""Per cent of the training images that are known by heart, and points that the test is behind."""


def bad_news(run: Run) -> list[str]:
    """The warnings of the run, what its numbers say against it, then notes on its data.

    Each is a sentence in plain text. Empty where nothing stands out, and while a run trains except
    for its warnings.
    """
    said = [entry.warning for entry in run.warnings]
    if run.result is not None:
        found = (_copied(run), easy_holdout(run), _by_heart(run, run.result))
        said += [text for text in found if text]
        said += run.result.notes
    return [text[:1].upper() + text[1:].rstrip(".") + "." for text in dict.fromkeys(said)]


def copies_in_words(checks: Checks) -> str:
    """How many test images have a copy in training; empty if none has.

    >>> copies_in_words(Checks(copies_found=3))
    '3 test images have a copy in training'
    """
    if not checks.copies_found:
        return ""
    exact = sum(copy.exact for copy in checks.copies)
    differ = sum(copy.test_label != copy.train_label for copy in checks.copies)
    of_all = checks.copies_found == len(checks.copies)
    near = "near " if of_all and not exact else ""
    counted = [f"{exact} exact"] if of_all and exact else []
    counted += [f"{differ} with another label"] if of_all and differ else []
    have = "image has a" if checks.copies_found == 1 else "images have a"
    details = f" ({', '.join(counted)})" if counted else ""
    return f"{checks.copies_found:,} test {have} {near}copy in training{details}"


def _copied(run: Run) -> str:
    if run.checks is None or not (said := copies_in_words(run.checks)):
        return ""
    return (
        f"{said}, so the test is easier than new photographs: remove one of each, or put both on "
        "one side"
    )


def margin(accuracy: float, count: int) -> float:
    """Points by which an accuracy on so many images may be off (95 %), by Wilson's interval.

    >>> round(margin(50.0, 100), 1), round(margin(100.0, 20), 1)
    (9.6, 8.1)
    """
    p, n, z = accuracy / 100, max(count, 1), 1.96
    return 100 * z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))


def easy_holdout(run: Run) -> str:
    """That the hold-out is easier than the test, and so no good judge; empty if it is not, or if a
    warning of the run has said so."""
    result = run.result
    if result is None or any(_distrusts(entry.warning) for entry in run.warnings):
        return ""
    holdout, test, counts = result.holdout, result.test, result.images
    if holdout is None or counts is None or not counts.holdout or not counts.test:
        return ""
    ahead = holdout.accuracy - test.accuracy
    error = math.hypot(_error(holdout.accuracy, counts.holdout), _error(test.accuracy, counts.test))
    if ahead < max(MUCH, SURE_ERRORS * error):
        return ""
    return (
        f"do not trust the hold-out: {holdout.accuracy:.0f} % of its images are right, but only "
        f"{test.accuracy:.0f} % of the test images. Its images are probably too much like the "
        "training images (taken together, or near-duplicates). Judge by the test images, and hold "
        "out photographs from another occasion"
    )


def _distrusts(warning: str) -> bool:
    return "hold-out" in warning and "trust" in warning


def _error(accuracy: float, count: int) -> float:
    """Standard error in points; never zero, as if one image more of each kind had been seen."""
    p = (accuracy / 100 * count + 1) / (count + 2)
    return 100 * math.sqrt(p * (1 - p) / (count + 2))


def _by_heart(run: Run, result: Result) -> str:
    """That training images are known much better than others; empty if they are not."""
    if not run.epochs:
        return ""
    known, test = run.epochs[-1].train_accuracy, result.test.accuracy
    if known < LEARNED or known - test < BEHIND:
        return ""
    return (
        f"it knows its training images ({known:.0f} % right) much better than new ones "
        f"({test:.0f} %): training longer will not help. More photographs that differ as much as "
        "those it will meet (light, background, angle) will"
    )


def guessing(result: Result, classes: int) -> float | None:
    """Per cent that are right without looking: any class, or always the most frequent one.

    The most frequent class of training may be rare in the test; guessing at random is better then.
    """
    found = [100 / classes] if classes else []
    return max([*found, *([] if result.chance is None else [result.chance])], default=None)
