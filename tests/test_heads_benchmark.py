"""benchmarks/heads.py: what it makes of records, which bars are reached, what pages quote."""

import json
from itertools import product
from pathlib import Path

import heads
import pytest
from head_benchmark import digits, figure, pages
from head_benchmark.bars import Measured, each, judged, on_average, small_enough
from head_benchmark.sets import FIRST, ROWS, SETS, STAGES, sets_named
from head_benchmark.summary import Point, adjusted_rand, as_record, summaries

from blockout.data import shapes
from blockout.reproduce import Records, cell_of, table_of
from blockout.reproduce.statistics import Difference

from .reproduce.test_records import made

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/heads.md")
BY_NAME = {its.name: its for its in SETS}
CODES = " ".join(f"{1 if c % 2 else 9}{9 if c % 2 else 1}" for c in range(10))
HEAD = {
    "trunk": "efficientnet-lite0", "nodes": 100, "budget": 2.0, "paper": False, "draw_on": 0.5,
    "with_linear": True,
}  # fmt: skip


def add(out: Path, name: str, row: str, tests, *, threads: int = 1, config=HEAD, **more) -> None:
    its = BY_NAME[name]
    settings = {r.name: r for r in table_of(its.condition.data).rows}[row].settings
    cell = cell_of(settings, its.condition.scale).name
    environment = {"machine": {"threads": threads}}
    for seed, test in enumerate(tests):
        Records(out).add(its.condition, cell, made(seed, test, **more), dict(config), environment)


def of(out: Path, name: str):
    found = summaries(out, out / "heads.json")
    return next(its for its in found if its.name == name)


def bar(out: Path, about: str, text: str):
    bars = judged(summaries(out, out / "heads.json"))
    return next(b for b in bars if b.about.startswith(about) and text in b.text)


# --- what is run ----------------------------------------------------------------------------------


def test_every_row_of_a_set_is_a_row_of_its_table_and_of_one_stage():
    for its in SETS:
        assert [row.name for row in its.chosen_rows(ROWS)] == [r for r in ROWS if r in its.rows]
    assert [row for stage in STAGES for row in stage] == list(ROWS)


def test_conditions_are_those_of_the_records_that_exist():
    has_baseline = ("grocery", "cifar10-50", "cifar100-50", "shapes", "grocery-from-nothing")
    for name in has_baseline:
        folder = ROOT / "results" / "reproduce" / BY_NAME[name].condition.name
        assert (folder / "baseline.json").is_file()


def test_seeds_are_those_that_the_issue_asks_for():
    wanted = {its.name: (its.wanted("pays"), its.wanted("fc")) for its in SETS}
    for name in ("grocery", "cifar10-50", "cifar100-50"):
        assert wanted[name] == (10, 10)
    assert wanted["cifar10"] == wanted["cifar100"] == (5, 5) and wanted["shapes"] == (10, 3)
    assert wanted["cifar100-from-nothing"] == wanted["grocery-from-nothing"] == (2, 2)


def test_sets_are_chosen_by_name_and_unknown_ones_are_refused():
    assert sets_named([]) == list(SETS) and sets_named(["digits"]) == []
    assert [its.name for its in sets_named(["shapes", "grocery"])] == ["grocery", "shapes"]
    with pytest.raises(ValueError, match=r"the sets are digits, .*, got grocer$"):
        sets_named(["grocer"])


def test_two_threads_are_recorded_apart(tmp_path):
    one, two = (
        BY_NAME[name].records_in(tmp_path / "r") for name in ("shapes", "shapes-two-threads")
    )
    assert (one, two) == (tmp_path / "r", tmp_path / "r-2-threads")


def test_missing_runs_of_digits_are_those_without_a_record():
    done = [job.key for job in digits.missing([], 2)]
    assert len(done) == 2 * len(digits.OPTIMISERS) * (1 + len(digits.GUIDED))
    left = list(digits.missing(done[1:], 2))
    assert [job.key for job in left] == done[:1]


def test_rows_go_to_the_worker_stage_by_stage_until_time_is_over(tmp_path, monkeypatch):
    asked, threads = [], []

    class Worker:
        total = 1

        def __init__(self, condition, rows, seeds, *, out, work, hours, say):
            asked.append((condition.name, [row.name for row in rows], seeds, out.name, hours))

        def run(self):
            pass

    monkeypatch.setattr(heads, "Worker", Worker)
    monkeypatch.setattr(heads.torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(heads.torch, "set_num_threads", threads.append)
    options = heads.argparse.Namespace(seeds=None, records=tmp_path / "r", work=tmp_path / "w")
    its = sets_named(["grocery", "shapes"])
    heads.do_missing(its, options, heads.Deadline(None))
    names = [(name.split("-")[0], rows, seeds) for name, rows, seeds, *_ in asked]
    assert names[:3] == [
        ("grocery", list(FIRST), 10),
        ("shapes", list(FIRST), 10),
        ("grocery", ["dropout-tuned"], 10),
    ]
    assert names[3] == ("shapes", ["dropout-tuned"], 3) and len(names) == 6
    assert threads[:4] == [7, 7, 1, 7]  # grocery as before, shapes with one, and back each time
    asked.clear()
    heads.do_missing(its, options, heads.Deadline(0))
    assert asked == []


# --- what the records say -------------------------------------------------------------------------


def test_a_set_is_summed_up_with_what_runs_it_has(tmp_path):
    add(tmp_path, "grocery", "baseline", (60.0, 62.0))
    add(
        tmp_path,
        "grocery",
        "pays",
        (63.0, 64.0, 70.0),
        left=40.0,
        compact=62.5,
        codes=CODES,
        auc=0.7,
    )
    found = of(tmp_path, "grocery")
    default = found.methods["pays"]
    assert (default.n, default.wanted, found.methods["baseline"].mean) == (3, 10, 61.0)
    assert default.against_baseline is not None and default.against_baseline[0] == 2.5
    assert default.against_baseline.seeds == 2 and default.against_dropout is None
    assert default.lost == pytest.approx(7.5) and found.auc == pytest.approx(0.7)
    assert set(found.methods) == {"baseline", "pays"} and found.difference("fc") is None
    assert of(tmp_path, "cifar10").methods == {}


def test_the_linear_classifier_beside_counts_against_fc2_and_the_classifier(tmp_path):
    add(tmp_path, "grocery", "baseline", (60.0, 62.0))
    add(tmp_path, "grocery", "pays", (63.0, 64.0), left=40.0, codes=CODES)
    alone = {**HEAD, "with_linear": False}
    add(tmp_path, "grocery", "alone", (63.0, 64.0), left=40.0, codes=CODES, config=alone)
    found = of(tmp_path, "grocery").methods
    dense = 100 * 100 + 100 * 10
    assert found["pays"].left == found["alone"].left == found["alone"].with_linear == 40
    assert found["pays"].with_linear == pytest.approx(40 + 100 * 1280 * 10 / dense)
    beside, without = of(tmp_path, "grocery").frontier[::-1]
    assert (without.connections, beside.connections) == (0.4 * dense, 0.4 * dense + 12_800)
    assert (without.linear, beside.linear) == (False, True)


def test_the_frontier_leaves_out_what_is_not_guided_or_never_drawn(tmp_path):
    add(tmp_path, "grocery", "baseline", (60.0, 62.0))
    shown = {"left": 40.0, "codes": CODES}
    add(tmp_path, "grocery", "learned", (60.0,), config={**HEAD, "paper": True}, **shown)
    add(tmp_path, "grocery", "guided", (60.0,), config={**HEAD, "draw_on": 1.0}, **shown)
    add(tmp_path, "grocery", "confusion", (60.0,), left=30.0)
    assert of(tmp_path, "grocery").frontier == ()


def test_known_groups_give_a_rand_of_one_and_others_less():
    right = " ".join("".join("9" if k == g else "0" for k in range(6)) for g in shapes.GROUPS)
    assert adjusted_rand(right, shapes.GROUPS) == 1
    words = right.split()
    words[0], words[-1] = words[-1], words[0]
    assert 0.5 < adjusted_rand(" ".join(words), shapes.GROUPS) < 0.9


def test_groups_of_shapes_are_told_apart_by_threads(tmp_path):
    right = " ".join("".join("9" if k == g else "0" for k in range(6)) for g in shapes.GROUPS)
    small = {**HEAD, "trunk": "inception-small", "width": 0.5, "early_downsampling": True}
    one, two = tmp_path / "r", tmp_path / "r-2-threads"
    add(one, "shapes", "pays", (99.0,) * 10, codes=right, left=50.0, config=small)
    add(two, "shapes-two-threads", "pays", (99.0,) * 9, codes=right, threads=2, config=small)
    found = {its.name: its for its in summaries(one, one / "heads.json")}
    assert found["shapes"].rand == {1: [1.0] * 10}
    assert found["shapes-two-threads"].rand == {2: [1.0] * 9}
    said = {b.text: b.verdict for b in judged(list(found.values())) if "shapes" in b.about}
    assert [v for text, v in said.items() if "one thread" in text] == ["reached"] * 2
    assert [v for text, v in said.items() if "two threads" in text] == ["not measured"] * 2
    assert found["shapes"].methods["pays"].with_linear == pytest.approx(
        50 + 100 * 168 * 20 / (100 * 120)
    )


def test_digits_are_paired_with_dense_layers_by_seed(tmp_path):
    runs = [
        {"set": f"digits, {optimiser}", "method": method, "seed": seed, "test": 90 + seed + more}
        for optimiser, (method, more), seed in product(
            digits.OPTIMISERS,
            {"dense": 0, "guided, converted": 1.5, "guided, fresh": -2}.items(),
            range(10),
        )
    ]
    (tmp_path / "heads.json").write_text(json.dumps({"environments": [], "runs": runs}))
    assert of(tmp_path, "digits SGD converted").difference() == Difference(1.5, 1.5, 1.5, 10)
    assert of(tmp_path, "digits AdamW fresh").difference() == Difference(-2, -2, -2, 10)
    found = bar(tmp_path, "digits", "400 steps")
    assert found.verdict == "missed" and found.numbers.startswith("-2.00 (digits AdamW fresh)")
    mean = bar(tmp_path, "against the baseline", "over all sets").numbers
    assert mean.startswith("-0.25 over 1 of 9 sets")  # its four lines count as one set


def test_a_record_is_rounded_and_leaves_out_what_is_not_known():
    assert as_record({"a": 1.23456, "b": None, "c": Difference(0.5, None, None, 1), "d": ()}) == {
        "a": 1.235,
        "c": {"mean": 0.5, "seeds": 1},
    }


# --- bars -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([(0.1, True), (-0.3, True)], "reached"),
        ([(0.1, True), (-0.31, True)], "missed"),
        ([(0.1, False), (-0.31, False)], "missed"),
        ([(None, False), (-0.31, True)], "missed"),
        ([(0.1, True), (0.2, False)], "not measured"),
        ([(0.1, True), (None, False)], "not measured"),
        ([], "not measured"),
    ],
)
def test_a_bar_for_each_set_is_missed_by_one_and_reached_by_all(values, verdict):
    found = each("", "", [Measured("s", *value) for value in values], -0.3)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([(1.1, True), (-0.1, True)], "reached"),
        ([(1.0, True), (-0.1, True)], "missed"),
        ([(1.0, True), (-0.1, False)], "missed"),
        ([(1.1, True), (-0.1, False)], "not measured"),
        ([(-9.0, True), (None, False)], "not measured"),
        ([], "not measured"),
    ],
)
def test_a_bar_for_the_mean_needs_every_set(values, verdict):
    found = on_average("", "", [Measured("s", *value) for value in values], 0.5)
    assert found.verdict == verdict


def point(share: float, mean: float = 1.0, low: float = 0.0, dropout: float = 0.0, n: int = 10):
    plain, against = Difference(mean, low, 2.0, n), Difference(dropout, None, None, n)
    return Point("s", 512, 2.0, True, n, 10, 30.0, share, 1000, plain, against, 0.0)


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ([point(50.0), point(80.0)], "reached"),
        ([point(50.1)], "not measured"),
        ([point(40.0, n=2)], "not measured"),
        ([point(40.0, mean=-0.4)], "missed"),
        ([point(40.0, low=-1.1)], "missed"),
        ([point(40.0, dropout=-0.6)], "missed"),
        ([point(40.0, dropout=-0.6), point(30.0, n=2)], "not measured"),
        ([point(40.0, dropout=-0.6), point(30.0)], "reached"),
    ],
)
def test_a_small_setting_must_be_within_the_bounds_of_a_set(points, verdict):
    assert small_enough(points)[0] == verdict


def test_what_compaction_loses_is_a_bar_of_its_own(tmp_path):
    add(tmp_path, "cifar10", "baseline", (60.0,) * 5)
    add(tmp_path, "cifar10", "pays", (60.0,) * 5, left=40.0, compact=59.6, codes=CODES)
    found = bar(tmp_path, "structure", "compaction")
    assert found.verdict == "missed" and found.numbers.startswith("-0.40 (cifar10)")


# --- what is shown --------------------------------------------------------------------------------


def test_every_line_of_the_table_has_all_columns_and_says_where_runs_are_missing(tmp_path):
    add(tmp_path, "grocery", "baseline", (60.0, 62.0))
    add(tmp_path, "grocery", "pays", (63.0, 64.0), left=40.0, codes=CODES, auc=0.75)
    lines = list(pages.table(summaries(tmp_path, tmp_path / "heads.json")))
    cells = [line.strip("|").split(" | ") for line in lines if not line.startswith("|---")]
    assert len(lines) == 2 + 4 + len(SETS) and {len(row) for row in cells} == {len(cells[0])}
    grocery = dict(zip(cells[0], next(r for r in cells if r[0].strip() == "grocery"), strict=True))
    assert grocery["default against it"] == "+2.5 (-3.9 to +8.9), n = 2"
    assert grocery["plain layers against it"] == "n = 0"
    assert grocery["connections left by the default, %"] == "40 (n = 2)"
    assert grocery["known groups"] == "AUC 0.75 (n = 2)"
    of_digits = dict(zip(cells[0], cells[1], strict=True))
    assert of_digits["default against it"] == "n = 0" and of_digits["soft against it"] == ""


def test_a_page_of_one_set_has_no_line_for_a_method_without_runs(tmp_path):
    add(tmp_path, "grocery", "baseline", (60.0, 62.0))
    add(tmp_path, "grocery", "fc", (63.0, 64.0))
    (its,) = (s for s in summaries(tmp_path, tmp_path / "heads.json") if s.name == "grocery")
    lines = list(pages.one_set(its))
    assert len(lines) == 4 and "60" not in lines[3] and "63.5 ± 0.7 (2)" in lines[3]


def test_a_page_keeps_what_is_not_between_its_markers():
    begin, end = pages.BEGIN.format("bars"), pages.END.format("bars")
    page = f"mine\n{begin}\nstale\n{end}\nalso mine\n"
    parts = {"bars": "new", "sets": "elsewhere"}
    assert pages.renewed(page, parts) == f"mine\n{begin}\n\nnew\n\n{end}\nalso mine\n"
    assert pages.renewed(pages.renewed(page, parts), parts) == pages.renewed(page, parts)
    with pytest.raises(ValueError, match="none of the markers"):
        pages.renewed("mine", parts)
    with pytest.raises(ValueError, match="must have the lines"):
        pages.renewed(f"mine\n{begin}\n", parts)


def test_the_figure_is_drawn_with_and_without_runs(tmp_path):
    def texts() -> list[str]:
        drawn = figure.heads(summaries(tmp_path, tmp_path / "heads.json"))
        return [t.get_text().strip() for axes in drawn.axes for t in axes.texts]

    assert texts().count("n = 0") == 14  # every set, and the two panels of settings
    add(tmp_path, "grocery", "baseline", (60.0, 62.0))
    add(tmp_path, "grocery", "pays", (63.0, 64.0), left=40.0, codes=CODES)
    assert texts().count("n = 0") == 12 and {"n = 2", "2 (2)"} <= set(texts())


# --- what is committed ----------------------------------------------------------------------------


def committed():
    return summaries(ROOT / "results" / "reproduce", ROOT / "results" / "heads.json")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_the_committed_records_say(name):
    page, found = (ROOT / name).read_text(), committed()
    assert pages.renewed(page, pages.blocks(found, judged(found))) == page, (
        f"python benchmarks/heads.py --table --write {' '.join(PAGES)}"
    )


def test_the_record_says_what_the_committed_records_say():
    record, found = json.loads((ROOT / "results" / "heads.json").read_text()), committed()
    assert record["sets"] == as_record(found)
    assert record["bars"] == [b._asdict() for b in judged(found)]
    numbers = {run["environment"] for run in record["runs"]}
    assert numbers == set(range(len(record["environments"])))
    assert all(made_with["commit"] for made_with in record["environments"])
