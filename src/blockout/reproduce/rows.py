"""The rows of Tables 1 to 3 as data, with the published accuracy, and the rows beside them.

A row is a name and the settings in which it departs from its table's. Rows with equal settings are
one cell: "6 clusters" and "512 nodes" of Table 1 are its hard, learned row, and share its runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from blockout.models.config import ELSEWHERE, paper_defaults
from blockout.optimisation import MEMBERSHIP_SCALE
from blockout.runs.config import name_of

Settings = Mapping[str, Any]
"""Flags of `blockout train` by field, and ``probability`` (fixed P) and ``given`` (a hierarchy)."""

PARTS = {
    "methods": "the six methods of the paper",
    "clusters": "the paper's numbers of clusters",
    "nodes": "the paper's numbers of nodes",
    "cited": "what the paper cites: fixed hierarchies and DropConnect",
    "ours": "guided memberships, alone and in the default head of your own data",
    "tuned": "one setting per method, the best of five on the hold-out over two seeds",
    "wide": "the methods again with four times the nodes",
}
"""Parts of a table, in its order."""
TRIAL_SEEDS = 2
"""Every tuned method has its five trials with these first seeds."""


class Row(NamedTuple):
    """One line of a table."""

    name: str
    label: str
    part: str
    settings: Settings
    published: float | None = None
    trials: tuple[Settings, ...] = ()
    """Of a tuned row, what to choose from."""


class Table(NamedTuple):
    """A table of the paper, on one data set."""

    name: str
    data: str
    rows: tuple[Row, ...]

    def chosen(self, names: Sequence[str] | None) -> tuple[Row, ...]:
        """The named rows or parts; all but the wide ones by default.

        Raises:
            ValueError: there is no such row.
        """
        if not names:
            return tuple(row for row in self.rows if row.part != "wide")
        known = {*PARTS, *(row.name for row in self.rows)}
        for name in names:
            if name not in known:
                rows = ", ".join(row.name for row in self.rows)
                raise ValueError(
                    f"--rows must name rows of {self.name} ({rows}) or parts of it "
                    f"({', '.join(PARTS)}), got {name}"
                )
        return tuple(row for row in self.rows if row.name in names or row.part in names)


DATA = {"table1": "cifar100", "table2": "imagenet", "table3": "cifar10"}
PUBLISHED = {
    "table1": {
        "baseline": 61.56,
        "fc": 62.66,
        "dropout": 64.32,
        "soft": 63.57,
        "fixed": 65.62,
        "learned": 65.66,
        "clusters-2": 64.54,
        "clusters-4": 65.93,
        "clusters-6": 65.66,
        "nodes-512": 65.66,
        "nodes-1024": 66.69,
        "nodes-2048": 66.71,
    },
    "table2": {
        "baseline": 73.43,
        "fc": 68.06,
        "dropout": 73.88,
        "soft": 72.43,
        "fixed": 74.44,
        "learned": 74.83,
        "clusters-2": 73.78,
        "clusters-6": 74.83,
        "clusters-15": 74.19,
        "nodes-1024": 74.16,
        "nodes-2048": 74.47,
        "nodes-4096": 74.83,
        "nodes-8192": 74.95,
    },
    "table3": {
        "baseline": 93.65,
        "fc": 93.39,
        "dropout": 93.52,
        "soft": 94.41,
        "fixed": 93.67,
        "learned": 93.55,
    },
}
"""Test accuracy in per cent, as printed."""
METHODS: dict[str, tuple[str, Settings]] = {
    "baseline": ("Baseline", {"method": "baseline"}),
    "fc": ("Baseline + FC", {"method": "fc"}),
    "dropout": ("Baseline + FC + Dropout", {"method": "dropout"}),
    "soft": ("Blockout (soft, learned)", {"hard": False}),
    "fixed": ("Blockout (hard, fixed)", {"learned": False}),
    "learned": ("Blockout (hard, learned)", {}),
}
GIVEN: Settings = {"hard": False, "learned": False}
CITED: dict[str, tuple[str, Settings]] = {
    "confusion": ("Groups from a baseline's confusions, given", {**GIVEN, "given": "confusion"}),
    "random": ("Random groups of these sizes, given", {**GIVEN, "given": "random"}),
    "superclasses": ("Superclasses merged to k, given", {**GIVEN, "given": "superclasses"}),
    "dropconnect": ("DropConnect 50 %", {"method": "dropconnect", "dropout": 0.5}),
}
GUIDED: Settings = {"paper": False, "clusters": ELSEWHERE.clusters}
OURS: dict[str, tuple[str, Settings]] = {
    "guided": (
        "Guided, never drawn, no linear classifier beside",
        {**GUIDED, "draw_on": 1.0, "with_linear": False},
    ),
    "alone": (
        "Guided, drawn with 0.5, no linear classifier beside",
        {**GUIDED, "draw_on": 0.5, "with_linear": False},
    ),
    "pays": ("Guided, default of your own data", GUIDED),
    "small": (
        "The same, 1024 nodes with a budget of 1.5",
        {**GUIDED, "nodes": 1024, "budget": 1.5},
    ),
}
RATES = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Dropout."""
PROBABILITIES = (0.3, 0.4, 0.5, 0.65, 0.8)
"""Fixed P."""
SCALES_OF_LOGITS = (3.0, 10.0, 30.0, 100.0, MEMBERSHIP_SCALE)
"""How many times faster than weights learned memberships learn."""
BUDGETS = (1.0, 1.5, 2.0, 3.0, 4.0)
"""Clusters per guided hidden node."""
WIDER = 4


def table(name: str, data: str | None = None) -> Table:
    """A table of the paper; on other data its rows have no published accuracy.

    >>> [row.published for row in table("table1").rows[:3]]
    [61.56, 62.66, 64.32]
    >>> table("table1", "my/photographs").rows[0].published is None
    True
    """
    if name not in DATA:
        raise ValueError(f"the tables are {', '.join(DATA)}, got {name}")
    chosen = data or DATA[name]
    same = name_of(chosen).removesuffix("-1k") == DATA[name]
    published = PUBLISHED[name] if same else {}
    return Table(name, chosen, tuple(_rows(name, data or DATA[name], published)))


def table_of(data: str) -> Table:
    """The table that the paper has for a data set; Table 1 for others."""
    last = name_of(data).removesuffix("-1k")
    return table(next((name for name, its in DATA.items() if its == last), "table1"), data)


def _rows(name: str, data: str, published: Mapping[str, float]) -> Iterator[Row]:
    """On other data, nodes, clusters and rate are those that `blockout train` has for it."""
    usual = paper_defaults(data)
    base = {**usual._asdict(), "method": "blockout", "paper": True}

    def rows(part: str, entries: Mapping[str, tuple[str, Settings]]) -> Iterator[Row]:
        for key, (label, settings) in entries.items():
            whole = MappingProxyType({**base, **settings})
            yield Row(key, label, part, whole, published.get(key))

    methods = dict(METHODS)
    methods["dropout"] = (f"{METHODS['dropout'][0]} {usual.dropout:.0%}", METHODS["dropout"][1])
    yield from rows("methods", methods)
    for part in ("clusters", "nodes"):
        printed = [key for key in PUBLISHED[name] if key.startswith(f"{part}-")]
        numbers = {key: int(key.rpartition("-")[2]) for key in printed}
        yield from rows(part, {k: (f"{n} {part}", {part: n}) for k, n in numbers.items()})
    yield from rows("cited", CITED)
    yield from rows("ours", OURS)
    yield from _tuned(base)
    wide = [entry for entry in {**methods, "pays": OURS["pays"]}.items() if entry[0] != "baseline"]
    nodes = WIDER * usual.nodes
    yield from rows(
        "wide",
        {f"{k}-{nodes}": (f"{a}, {nodes} nodes", {**b, "nodes": nodes}) for k, (a, b) in wide},
    )


def _tuned(base: Settings) -> Iterator[Row]:
    fixed = {**METHODS["fixed"][1]}
    trials: dict[str, tuple[str, list[Settings]]] = {
        "dropout-tuned": ("Dropout", [{"method": "dropout", "dropout": x} for x in RATES]),
        "fixed-tuned": (
            "Blockout (hard, fixed)",
            [{**fixed, "probability": x} for x in PROBABILITIES],
        ),
        "learned-tuned": (
            "Blockout (hard, learned)",
            [{"membership_scale": x} for x in SCALES_OF_LOGITS],
        ),
        "guided-tuned": ("Guided", [{**GUIDED, "budget": x} for x in BUDGETS]),
        "dropout-beside": (
            "Dropout, a linear classifier beside",
            [{"method": "dropout", "dropout": x, "with_linear": True} for x in RATES],
        ),
        "fixed-beside": (
            "Blockout (hard, fixed), a linear classifier beside",
            [
                {**fixed, "clusters": ELSEWHERE.clusters, "probability": x, "with_linear": True}
                for x in PROBABILITIES
            ],
        ),
    }
    for name, (label, settings) in trials.items():
        ready = tuple(MappingProxyType({**base, **changes}) for changes in settings)
        yield Row(name, f"{label}, tuned", "tuned", MappingProxyType({}), trials=ready)
