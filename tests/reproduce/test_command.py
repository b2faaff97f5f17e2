"""`blockout reproduce` for real, on a few small photographs."""

import json

import pytest

from blockout.reproduce import Records
from blockout.reproduce.rows import PROBABILITIES
from blockout.reproduce.work import threads_per
from blockout.runs import Run


def runs_of(tmp_path) -> dict[str, list]:
    (cells,) = Records(tmp_path / "out").conditions().values()
    return {name: cell.runs for name, cell in cells.items()}


def test_missing_runs_are_done_once_and_recorded(reproduce, tmp_path):
    words = ("--rows", "baseline", "learned", "confusion", "superclasses", "pays", "--seeds", 1)
    code, out, complaint = reproduce(*words)
    assert code == 0 and "5 runs are missing" in out and "5 runs done." in out, complaint
    found = runs_of(tmp_path)
    assert {name: runs[0].test > 45 for name, runs in found.items()} == dict.fromkeys(found, True)
    learned = found["learned300-k6-n512"][0]
    assert list(learned.p) == ["P_0", "P_1", "P_2"]
    assert [len(word) for word in learned.codes.split()] == [6] * 4
    assert learned.curve_steps[-1] == learned.steps == 60
    assert learned.curve_test[-1] == pytest.approx(learned.test, abs=0.06)
    assert sorted(found["superclasses-k6-n512"][0].groups) == [0, 0, 1, 1]
    (path,) = (tmp_path / "out").glob("*/learned*.json")
    config = json.loads(path.read_text())["configs"][0]
    assert config["data"] == "photos" and config["membership_scale"] == 300 and config["paper"]
    assert str(tmp_path) not in path.read_text()
    before = path.read_bytes()
    code, out, _ = reproduce(*words)
    assert code == 0 and "nothing is missing" in out and path.read_bytes() == before


def test_the_same_seed_gives_the_same_numbers_and_another_seed_other_images(reproduce, tmp_path):
    def codes_of(folder) -> list:
        words = ("--rows", "learned", "--seeds", 2, "--per-class", 6, "--out", folder)
        assert reproduce(*words)[0] == 0
        (cell,) = next(iter(Records(folder).conditions().values())).values()
        return [(run.test, run.curve_loss, run.codes, run.images) for run in cell.runs]

    one, again = codes_of(tmp_path / "one"), codes_of(tmp_path / "again")
    assert one == again and one[0][1] != one[1][1] and one[0][3] == 24


def test_trials_differ_and_the_chosen_one_goes_on(reproduce, tmp_path):
    code, out, complaint = reproduce("--rows", "fixed", "fixed-tuned", "--seeds", 3)
    assert code == 0, complaint
    assert "11 runs are missing" in out and "1 more follow when the trials" in out
    found = runs_of(tmp_path)
    assert len(found) == 5 and len({tuple(runs[0].curve_loss) for runs in found.values()}) == 5
    held = {name: sum(run.holdout for run in runs[:2]) for name, runs in found.items()}
    best = next(name for name in CELLS if held[name] == max(held.values()))
    with_three = {name for name, runs in found.items() if len(runs) == 3}
    assert with_three == {best, "fixed0.5-k6-n512"}


CELLS = [f"fixed{p:g}-k6-n512" for p in PROBABILITIES]


def test_a_list_says_what_is_done_and_missing_and_runs_nothing(reproduce, tmp_path):
    assert reproduce("--rows", "baseline", "--seeds", 1)[0] == 0
    code, out, _ = reproduce("--rows", "baseline", "fc", "dropout-tuned", "--seeds", 2, "--list")
    lines = {line.split()[1]: line for line in out.splitlines() if line.startswith("  ")}
    assert code == 0
    assert "1 of 2 seeds" in lines["baseline"] and "0 of 2 seeds" in lines["fc"]
    assert "not chosen yet" in lines["dropout-tuned"] and "13 runs are missing" in out
    assert list(runs_of(tmp_path)) == ["baseline"]


def test_no_run_starts_that_would_end_too_late(reproduce, tmp_path):
    code, out, _ = reproduce("--rows", "baseline", "fc", "--seeds", 2, "--hours", 0)
    assert code == 0 and "0 runs done; 4 are left: the same command continues" in out
    assert not list((tmp_path / "out").glob("*/*.json"))


def test_what_another_process_does_is_left_to_it(reproduce, tmp_path):
    assert reproduce("--rows", "baseline", "--seeds", 1)[0] == 0
    records = Records(tmp_path / "out")
    (condition,) = records.conditions()
    with records.claimed(condition, "fc-n512", 0):
        code, out, _ = reproduce("--rows", "fc", "--seeds", 2)
    assert code == 0 and "fc-n512 seed 0 is left out: another process does it" in out
    assert [run.seed for run in runs_of(tmp_path)["fc-n512"]] == [1]


def test_several_processes_share_the_runs(reproduce, tmp_path):
    code, out, complaint = reproduce("--rows", "baseline", "fc", "--seeds", 1, "--jobs", 2)
    assert code == 0 and "2 runs done" in out and "in 2 jobs" in out, complaint
    assert set(runs_of(tmp_path)) == {"baseline", "fc-n512"}
    (cells,) = Records(tmp_path / "out").conditions().values()
    threads = {c.environments[0]["machine"]["threads"] for c in cells.values()}
    assert threads == {threads_per(2)}


WHOLE = ("image_size=28", "epochs=2", "batch_size=16", "width=0.25", "accelerator=cpu")


def test_whole_networks_have_run_folders_and_go_on_where_they_stopped(reproduce, tmp_path):
    words = ("--scale", "cpu", "--rows", "learned", "confusion", "--seeds", 1, "--per-class", 12)
    code, out, complaint = reproduce(*words, changes=WHOLE)
    assert code == 0 and "1 runs done" in out, complaint
    (run,) = runs_of(tmp_path)["learned300-k6-n512"]
    (folder,) = (tmp_path / "work").glob("*/learned300-k6-n512-0")
    result = Run.open(folder).result
    assert result is not None and run.test == round(result.test.accuracy, 2)
    assert run.curve_steps == [3, 6] and run.images == 48 and set(run.p) == {"P_0", "P_1", "P_2"}
    # the run is finished: only its record is missing, and nothing is trained again
    (record,) = (tmp_path / "out").glob("*/learned300-k6-n512.json")
    record.unlink()
    assert reproduce(*words, changes=WHOLE)[0] == 0
    again = runs_of(tmp_path)["learned300-k6-n512"][0]
    assert (again.test, again.seconds) == (run.test, run.seconds)


def test_the_full_model_trains_on_a_small_folder(reproduce, tmp_path):
    words = ("--scale", "paper", "--rows", "fixed", "--seeds", 1, "--per-class", 4)
    changes = ("image_size=28", "epochs=1", "batch_size=16", "accelerator=cpu")
    assert reproduce(*words, changes=changes)[0] == 0
    (run,) = runs_of(tmp_path)["fixed0.5-k6-n512"]
    assert run.steps == 1 and run.images == 16


def test_table2_without_imagenet_says_what_it_needs(said):
    code, _, complaint = said("reproduce", "table2")
    assert code == 1 and "ImageNet (ILSVRC 2012)" in complaint and "--data" in complaint
    code, out, _ = said("reproduce", "table2", "--list", "--seeds", 1)
    assert code == 0 and "15 clusters" in out and "8192 nodes" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--rows", "droput"], "got droput"),
        (["--with", "epochs"], "FLAG=VALUE"),
        (["--with", "nodes=3"], "cannot change nodes"),
        (["--with", "epochs=no"], "--epochs must be a whole number"),
        (["--jobs", "0"], "--jobs must be a whole number of at least 1"),
        (["--scale", "large"], "invalid choice: 'large'"),
    ],
)
def test_wrong_words_are_refused_in_one_line(said, words, complaint):
    code, _, told = said("reproduce", "table1", *words)
    assert code == 2 and complaint in told


def test_the_command_explains_itself(said):
    code, out, _ = said("reproduce", "--help")
    assert code == 0 and "--per-class N" in out and "reproduce tables" in " ".join(out.split())
