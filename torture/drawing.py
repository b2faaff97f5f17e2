"""What is drawn by chance: changes of a file, documents that fit a file's type, values of flags."""

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from msgspec import inspect as types

from torture.damage import SPECIAL, Change

RAW_VALUES = (
    {"raw": "NaN"}, {"raw": "-Infinity"}, {"raw": "1e999"}, {"raw": "-1e308"}, {"raw": "1e-320"},
    {"raw": "1", "end": "0" * 400}, {"raw": "9", "times": 5000}, {"raw": "[", "times": 100_000},
    {"raw": '{"a":', "times": 5000}, {"raw": "[", "times": 600, "end": "]" * 600},
    {"raw": '"\\ud800"'}, {"raw": '"\\u0000"'}, {"raw": '"\\u001b]0;x\\u0007\\u001b[31m"'},
    {"raw": '"\\u202e\\u2066"'}, {"raw": '"a\\nb\\rc"'}, {"raw": '"', "end": "x" * 100_000 + '"'},
    {"raw": '"</script><script>alert(1)</script>"'}, {"raw": '"\\"\'><b torture onerror=x>"'},
    {"raw": '"<meta http-equiv=refresh content=0>"'},
    {"raw": '"../../../../tmp/x"'}, {"raw": '"hf://owner/name"'}, {"raw": '"/dev/zero"'},
    {"raw": '""'}, {"raw": "{}"}, {"raw": "[]"}, {"raw": "-1"}, {"raw": "0"}, {"raw": "2"},
    {"raw": "9007199254740993"}, {"raw": "18446744073709551616"}, {"raw": "1e308"},
    {"raw": "true"}, {"raw": "null"}, {"raw": "0.5"}, {"raw": '"1"'}, {"raw": ""},
)  # fmt: skip
HARMFUL_BYTES = (
    "\0",
    "\xff",
    "\n",
    '"',
    "{",
    "[",
    "}",
    ",",
    "\x1b",
    "0",
    "\x80\x80\x80\x80\x10",
    "PK\x03\x04",
)
SHARE = st.floats(0, 1).map(lambda share: round(share, 4))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
BYTES = st.one_of(
    st.builds(lambda at, bit: {"change": "flip", "at": at, "bit": bit}, SHARE, st.integers(0, 7)),
    st.builds(lambda at: {"change": "cut", "at": at}, SHARE),
    st.builds(
        lambda at, remove, new, times: {
            "change": "splice", "at": at, "remove": remove, "bytes": new, "times": times
        },
        SHARE,
        st.integers(0, 64),
        st.sampled_from(HARMFUL_BYTES) | st.binary(max_size=8).map(lambda b: b.decode("latin-1")),
        st.sampled_from((0, 1, 1, 4, 1000)),
    ),
    st.builds(
        lambda at, copy, length, remove: {
            "change": "splice", "at": at, "copy": copy, "length": length, "remove": remove
        },
        SHARE,
        SHARE,
        st.integers(1, 4096),
        st.integers(0, 64),
    ),
)  # fmt: skip
WHOLE = st.sampled_from(
    (
        *({"change": "special", "kind": kind} for kind in SPECIAL),
        {"change": "whole", "bytes": ""},
        {"change": "whole", "bytes": "\0", "times": 4096},
        {"change": "whole", "bytes": "[", "times": 200_000},
        {"change": "whole", "bytes": "null"},
        {"change": "whole", "bytes": "\xef\xbb\xbf{}"},
        {"change": "delete"},
    )
)


def changes(
    document: Any, fitting: st.SearchStrategy[Any] | None = None
) -> st.SearchStrategy[list[Change]]:
    """Some changes of a file: of its bytes, of its document, or another document of its type."""
    kinds = [(BYTES, 2 if document is None else 1), (WHOLE, 1)]
    if document is not None:
        places = st.sampled_from(list(paths(document)))
        values = st.sampled_from(RAW_VALUES) | JSON.map(lambda value: {"value": value})
        put = st.builds(lambda path, v: {"change": "set", "path": path, **v}, places, values)
        gone = st.builds(lambda path: {"change": "unset", "path": path}, places.filter(bool))
        kinds += [(put, 3), (gone, 1)]
    if fitting is not None:
        kinds.append((fitting.map(lambda value: {"change": "set", "path": [], "value": value}), 2))
    return st.lists(weighted(*kinds), min_size=1, max_size=2)


def weighted(*choices: tuple[st.SearchStrategy[Any], int]) -> st.SearchStrategy[Any]:
    """One of several, each as often as its weight says; ``one_of`` ignores what it has twice."""
    turns = [strategy for strategy, weight in choices for _ in range(weight)]
    return st.integers(0, len(turns) - 1).flatmap(turns.__getitem__)


def paths(document: Any, before: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    """Every place in a document; of long lists the first and last."""
    yield list(before)
    if isinstance(document, dict):
        for key, value in document.items():
            yield from paths(value, (*before, key))
    elif isinstance(document, list):
        for place in sorted({0, 1, len(document) - 1} & set(range(len(document)))):
            yield from paths(document[place], (*before, place))


def strategy_of(kind: types.Type) -> st.SearchStrategy[Any]:
    """JSON values of a msgspec type, a dataclass or a union of them."""
    match kind:
        case types.BoolType():
            return st.booleans()
        case types.IntType(ge=least, le=most):
            return st.integers(least, most)
        case types.FloatType(ge=least, le=most):
            return st.floats(least, most, allow_nan=False, allow_infinity=False)
        case types.StrType():
            return st.text(max_size=30)
        case types.LiteralType(values=values):
            return st.sampled_from(values)
        case types.UnionType(types=members):
            return st.one_of([strategy_of(member) for member in members])
        case types.ListType(item_type=item) | types.VarTupleType(item_type=item):
            return st.lists(
                strategy_of(item), min_size=kind.min_length or 0, max_size=kind.max_length or 5
            )
        case types.TupleType(item_types=items):
            return st.tuples(*(strategy_of(item) for item in items))
        case types.DictType(key_type=key, value_type=value):
            return st.dictionaries(strategy_of(key), strategy_of(value), max_size=4)
        case types.StructType(fields=fields) | types.DataclassType(fields=fields):
            known = {field.encode_name: strategy_of(field.type) for field in fields}
            needed = {field.encode_name for field in fields if field.required}
            return st.fixed_dictionaries(
                {name: known[name] for name in needed},
                optional={name: known[name] for name in known if name not in needed},
            )
        case types.NoneType():
            return st.none()
        case _:  # anything, and paths
            return JSON if isinstance(kind, types.AnyType) else st.text(max_size=20)


def drawn(strategy: st.SearchStrategy[Any], count: int, seed: int) -> list[Any]:
    """So many examples, the same for the same seed."""
    found: list[Any] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],  # pyright: ignore
    )
    @given(strategy)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found


def documents() -> dict[str, st.SearchStrategy[Any]]:
    """Documents that fit the types of a run's files, by the name of the file."""
    from blockout.runs import documents as d
    from blockout.runs.config import PARTS

    def fitting(kind: Any) -> st.SearchStrategy[Any]:
        return strategy_of(types.type_info(kind))

    entries = st.lists(fitting(d.StepEntry) | fitting(d.EpochEntry) | fitting(d.WarningEntry))
    sets = st.dictionaries(st.sampled_from(("fc2.outputs", "x")), fitting(d.Distribution))
    config = st.tuples(*map(fitting, PARTS)).map(
        lambda parts: {k: v for p in parts for k, v in p.items()}
    )
    return {
        "config.json": config,
        "model.json": fitting(d.Description),
        "compact.json": fitting(d.Description),
        "result.json": fitting(d.Result),
        "environment.json": fitting(d.Environment),
        "compaction.json": fitting(d.CompactionCurve),
        "checks.json": fitting(d.Checks),
        "metrics.jsonl": entries,
        "memberships.jsonl": st.lists(
            st.builds(lambda step, p: {"step": step, **p}, st.integers(0, 9), sets)
        ),
    }
