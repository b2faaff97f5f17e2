"""Tables and claims from records, and docs/reproduction.md."""

from pathlib import Path

import pytest

from blockout.reproduce import Condition, Records, cell_of, table, tables
from blockout.reproduce.claims import CLAIMS
from blockout.reproduce.records import Spread

from .test_records import made

ROOT = Path(__file__).resolve().parents[2]
CIFAR = Condition("cifar100", per_class=50)
ROWS = {row.name: row for row in table("table1").rows}
ENVIRONMENT = {
    "commit": "a",
    "versions": {"torch": "2"},
    "machine": {"accelerator": None, "processor": "P", "threads": 1, "cores": 2},
}

LEARNED = {
    "p": {name: Spread(0.3, 0.2, (0.1, 0.4, 0.8)) for name in ("P_0", "P_1", "P_2")},
    "clusters_per_class": (1.0, 1.2, 1.5, 2.0, 3.0),
}


def add(out: Path, row: str, tests, trial: int | None = None, **more) -> None:
    settings = ROWS[row].settings if trial is None else ROWS[row].trials[trial]
    cell = cell_of(settings, "transfer").name
    for seed, test in enumerate(tests):
        Records(out).add(CIFAR, cell, made(seed, test, **more), {}, ENVIRONMENT)


@pytest.fixture
def out(tmp_path):
    add(tmp_path, "baseline", (60.0, 62.0, 61.0), seconds=2.0)
    add(tmp_path, "fc", (61.0, 62.5))
    add(tmp_path, "learned", (64.0, 66.5, 64.7), **LEARNED)
    for trial in range(5):
        add(tmp_path, "dropout-tuned", (50.0 + trial, 51.0), trial, holdout=70.0 - abs(trial - 3))
    return tmp_path


def line(text: str, label: str) -> list[str]:
    return next(x for x in text.splitlines() if x.startswith(f"| {label}")).strip("| ").split(" | ")


def test_a_row_shows_print_and_ours_and_differences(out):
    text = tables.markdown(tables.comparisons(out))
    assert "### cifar100, 50 images per class, scale transfer" in text
    cells = line(text, "Blockout (hard, learned)")
    assert cells[1:4] == ["65.66", "65.1 ± 1.3 (3)", "-0.6"]
    # against the baseline: 4.0, 4.5, 3.7; t(2) = 4.303, std 0.404
    assert cells[4] == "**+4.1 (+3.1 to +5.1), n = 3**"
    assert line(text, "Baseline")[1:3] == ["61.56", "61.0 ± 1.0 (3)"]
    assert line(text, "Baseline + FC")[4] == "+0.8 (-2.4 to +3.9), n = 2"


def test_an_empty_cell_is_shown_as_empty(out):
    text = tables.markdown(tables.comparisons(out))
    assert line(text, "Blockout (soft, learned)")[1:3] == ["63.57", "(n = 0)"]
    assert tables.markdown([]) == "There are no records yet.\n"


def test_a_tuned_row_shows_what_the_holdout_chose_and_not_what_the_test_would(out):
    text = tables.markdown(tables.comparisons(out))
    cells = line(text, "Dropout, tuned")
    assert cells[0] == "Dropout, tuned: `dropout0.65-n512`" and cells[2] == "52.0 ± 1.4 (2)"
    assert "**`dropout0.65-n512` 70.0 (52.0)**, `dropout0.8-n512` 69.0 (52.5)" in text
    # 64 - 53, 66.5 - 51: paired with the chosen trial
    assert line(text, "Blockout (hard, learned)")[5].startswith("+13.2 (")


def test_csv_has_the_same_numbers(out):
    rows = tables.as_csv(tables.comparisons(out)).splitlines()
    found = dict(zip(rows[0].split(","), rows[6].split(","), strict=True))
    assert found["row"] == "learned" and found["n"] == "3" and found["published"] == "65.66"
    assert float(found["mean"]) == pytest.approx(65.0667, abs=1e-4)
    assert float(found["baseline_difference"]) == pytest.approx(4.0667, abs=1e-4)


def test_claims_have_verdicts_from_records_only(out):
    found = tables.comparisons(out)
    text = tables.claims(found)
    assert (
        "**holds**: +4.1 (+3.1 to +5.1), n = 3 (`cifar100-transfer-50`: learned, baseline)"
        in (line(text, "improved classification accuracy")[2])
    )
    assert line(text, "added naively")[2].startswith("**undecided**: -0.8 (-3.9 to +2.4), n = 2")
    add(out, "fixed", (60.0, 60.5, 60.1))
    add(out, "fc", (65.0, 65.5, 66.1))
    text = tables.claims(tables.comparisons(out))
    assert line(text, "Blockout prevents")[2].startswith("**undecided**: -0.5")
    assert line(text, "learned probabilities are")[2].startswith("**holds**: +4.9")
    assert line(text, "CIFAR-10: soft")[2] == "not measured yet"
    assert tables.claims([]).count("not measured yet") == len(CLAIMS)


def test_two_seeds_decide_nothing_however_much_they_agree(out):
    add(out, "soft", (63.0, 64.5))
    said = line(tables.claims(tables.comparisons(out)), "soft clustering still improves")[2]
    assert said.startswith("**undecided**: +2.0 (+2.0 to +2.0), n = 2")


def test_as_good_as_needs_more_than_a_wide_interval(out):
    add(out, "fixed", (66.0, 62.5, 66.7))
    said = line(tables.claims(tables.comparisons(out)), "learned probabilities are")[2]
    assert said.startswith("**undecided**: +0.0 (-8.6 to +8.6)")


def test_rows_that_share_runs_are_shown_once_among_memberships_and_wide_ones(out):
    add(out, "nodes-2048", (61.0, 63.5, 61.0), **LEARNED)
    text = tables.markdown(tables.comparisons(out))
    assert text.count("| Blockout (hard, learned) |") == 2 and "| 2048 nodes |" in text
    assert "(hard, learned), 2048 nodes" not in text
    assert "| 6 clusters" not in text.split("memberships in the end")[1]
    add(out, "fc-2048", (61.0, 63.5))
    text = tables.markdown(tables.comparisons(out))
    assert "| Baseline + FC, 2048 nodes |" in text and "(hard, learned), 2048 nodes" in text


def test_a_worse_row_refutes_its_claim(out):
    add(out, "nodes-1024", (60.0, 62.0, 60.9))
    add(out, "nodes-2048", (61.0, 63.5, 61.0))
    said = line(tables.claims(tables.comparisons(out)), "adding more nodes never")[2]
    assert said.startswith("**does not hold**: -4.1")


def test_how_soon_is_measured_on_the_curve(out):
    curve = {"curve_steps": [2, 4, 10], "curve_loss": [1.0, 1.0, 1.0]}
    add(out, "dropout", (60.0, 60.0), **curve, curve_test=[20.0, 30.0, 40.0])
    add(out, "fixed", (60.0, 60.0), **curve, curve_test=[20.0, 60.0, 70.0])
    text = tables.markdown(tables.comparisons(out)).split("until the final")[1]
    assert line(text, "Blockout (hard, fixed)")[1:] == ["30%", "0.3", "2 of 2"]
    assert line(text, "Baseline + FC + Dropout")[1:] == ["100%", "1.0", "2 of 2"]


def test_seeds_that_group_classes_alike_agree(out):
    one = "90 90 90 09 09 09"
    add(out, "pays", (60.0, 60.0), codes=one, **LEARNED)
    (found,) = tables.comparisons(out)
    assert found.agreement_of_seeds(found.line("pays")) == pytest.approx(1)
    add(out, "nodes-1024", (60.0, 60.0), codes="90 09 90 09 90 09")
    other = found = tables.comparisons(out)[0]
    between = other.agreement_between(found.line("pays"), found.line("nodes-1024"))
    assert between is not None and abs(between) < 0.4


def test_the_command_prints_and_renews_a_page(out, said):
    code, text, _ = said("reproduce", "tables", "--out", out)
    found = tables.comparisons(out)
    assert code == 0 and text == tables.markdown(found) + "\n" + tables.claims(found)
    page = out / "page.md"
    page.write_text(
        "\n".join(
            f"{tables.BEGIN.format(x)}\nstale\n{tables.END.format(x)}" for x in ("claims", "tables")
        )
        + "\nmine\n"
    )
    assert said("reproduce", "tables", "--out", out, "--write", page)[0] == 0
    renewed = page.read_text()
    assert (
        "stale" not in renewed and renewed.endswith("\nmine\n") and tables.claims(found) in renewed
    )
    page.write_text("no markers")
    code, _, complaint = said("reproduce", "tables", "--out", out, "--write", page)
    assert code == 1 and "must have the lines" in complaint and page.read_text() == "no markers"


def test_the_page_says_what_the_committed_records_say():
    page = (ROOT / "docs" / "reproduction.md").read_text()
    found = tables.comparisons(ROOT / "results" / "reproduce")
    assert tables.renewed(page, found) == page, (
        "blockout reproduce tables --write docs/reproduction.md"
    )
