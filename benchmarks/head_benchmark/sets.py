"""The sets of the benchmark as data. To add one, add a line to SETS.

The runs of a set are those of `blockout reproduce`: a record each, below results/reproduce.
"""

from pathlib import Path
from typing import Literal, NamedTuple

from blockout.reproduce import Condition, Row, table_of

Kind = Literal["digits", "features", "shapes", "nothing"]
"""What a set shows: small networks in a plain loop, heads on frozen features, and whole networks
from nothing, where the groups are known or not."""

DEFAULT = "pays"
"""The row of what people's own data get without a flag."""
FIRST = ("baseline", DEFAULT)
ROWS = (
    *FIRST, "dropout-tuned", "fc", "small", "guided-tuned", "alone", "dropout-beside",
    "fixed-beside", "fixed", "learned", "soft",
)  # fmt: skip
"""The rows that matter, the most informative first."""
WHOLE_ROWS = (*FIRST, "dropout-tuned", "fc", "learned", "soft")
"""Of whole networks, whose runs take minutes to hours."""
FROM_NOTHING = (("weight_decay", 1e-4),)
SMALL_PHOTOGRAPHS = (("epochs", 12), ("image_size", 48), ("trunk", "inception-small"))
DIGITS = "digits"
"""Beside SETS: its runs have a loop of their own."""


class BenchmarkSet(NamedTuple):
    """One set of images, and how many seeds it wants."""

    name: str
    kind: Kind
    condition: Condition
    seeds: int
    """Of the default and the baseline."""
    other_seeds: int
    """Of the other rows."""
    rows: tuple[str, ...] = ROWS
    threads: int | None = None
    """Run with so many; None: as many as there are."""

    def wanted(self, row: str) -> int:
        return self.seeds if row in FIRST else self.other_seeds

    def records_in(self, out: Path) -> Path:
        """The folder of its records.

        A set that asks for several threads repeats seeds of another, so it has a folder of its own.
        """
        apart = self.threads is not None and self.threads > 1
        return out.with_name(f"{out.name}-{self.threads}-threads") if apart else out

    def chosen_rows(self, names: tuple[str, ...]) -> list[Row]:
        """Those of the named rows that it has, in the order of the names."""
        known = {row.name: row for row in table_of(self.condition.data).rows}
        return [known[name] for name in names if name in self.rows]


def _features(name: str, data: str, seeds: int, per_class: int | None = None) -> BenchmarkSet:
    return BenchmarkSet(name, "features", Condition(data, per_class=per_class), seeds, seeds)


_SHAPES = Condition("shapes", "cpu", changes=(("epochs", 5), *FROM_NOTHING))
_GROCERY_48 = Condition(
    "grocery", "cpu", changes=tuple(sorted((*SMALL_PHOTOGRAPHS, *FROM_NOTHING)))
)
_CIFAR100_10 = Condition("cifar100", "cpu", changes=(("epochs", 10), *FROM_NOTHING))
SETS = (
    _features("grocery", "grocery", 10),
    _features("cifar10-50", "cifar10", 10, per_class=50),
    _features("cifar100-50", "cifar100", 10, per_class=50),
    BenchmarkSet("shapes", "shapes", _SHAPES, 10, 3, WHOLE_ROWS, threads=1),
    _features("cifar10", "cifar10", 5),
    _features("cifar100", "cifar100", 5),
    BenchmarkSet("grocery-from-nothing", "nothing", _GROCERY_48, 2, 2, WHOLE_ROWS),
    BenchmarkSet("shapes-two-threads", "shapes", _SHAPES, 10, 0, (DEFAULT,), threads=2),
    BenchmarkSet("cifar100-from-nothing", "nothing", _CIFAR100_10, 2, 2, WHOLE_ROWS),
)
"""The cheapest answers first."""
STAGES = (
    FIRST,
    ("dropout-tuned",),
    tuple(row for row in ROWS if row not in (*FIRST, "dropout-tuned")),
)
"""All sets do the rows of one stage before any does those of the next."""


def sets_named(names: list[str]) -> list[BenchmarkSet]:
    """
    Raises:
        ValueError: there is no such set.
    """
    known = [DIGITS, *(s.name for s in SETS)]
    for name in names:
        if name not in known:
            raise ValueError(f"the sets are {', '.join(known)}, got {name}")
    return [s for s in SETS if not names or s.name in names]
