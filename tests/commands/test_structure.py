"""`blockout structure` as a user meets it."""

import json

import pytest
import torch

from blockout import Structure
from blockout.runs import Run
from blockout.runs import folder as files

NAMES = ("cat", "dog", "oak", "fir", "elm", "ash")
P = ((0.9, 0.1), (0.8, 0.2), (0.1, 0.7), (0.2, 0.9), (0.1, 0.9), (0.3, 0.8))


@pytest.fixture
def make_run(folder_of_a_run):
    """A folder as a finished run on six classes leaves it."""

    def make(folder, *, method="blockout", names=NAMES, p=P):
        sets = {name: torch.tensor(p) for name in ("P_0", "P_1", "P_2")}
        return folder_of_a_run(folder, names, sets, method=method, groups=[0, 0, 1, 1, 1, 1])

    return make


@pytest.fixture
def run(make_run, tmp_path):
    return make_run(tmp_path / "run")


def test_help_names_every_flag_with_dashes(said):
    code, out, _ = said("structure", "--help")
    flags = ("threshold", "groups", "taxonomy", "nearest", "top", "against", "format", "out")
    assert code == 0 and all(f"--{flag}" in out for flag in flags) and "_" not in out


def test_a_run_is_described(said, run):
    code, out, err = said("structure", run)
    assert (code, err) == (0, "")
    assert out == str(Run.open(run).structure) + "\n"
    assert "oak, fir, elm, ash" in out and "AUC of co-membership" in out


def test_json_is_a_structure_that_the_command_reads_again(said, run, tmp_path):
    path = tmp_path / "s.json"
    arguments = ("--threshold", 0.75, "--groups", 3, "--format", "json")
    assert said("structure", run, *arguments, "--out", path) == (0, f"written to {path}\n", "")
    structure = Structure.load(path)
    assert (structure.threshold, structure.group_count) == (0.75, 3)
    assert said("structure", path, "--format", "json")[1] == path.read_text()
    assert "at least 0.75" in said("structure", path)[1]
    assert "at least 0.2" in said("structure", path, "--threshold", 0.2)[1]


@pytest.mark.parametrize("form", ["dot", "mermaid"])
def test_diagrams_are_printed(said, run, form):
    expected = getattr(Run.open(run).structure, f"to_{form}")()
    assert said("structure", run, "--format", form) == (0, expected, "")


def test_the_nearest_classes_are_named(said, run):
    code, out, _ = said("structure", run, "--nearest", "cat", "--top", 2)
    near = Run.open(run).structure.nearest("cat", 2)
    assert code == 0 and len(out.splitlines()) == 3
    assert out.splitlines()[1] == f"  {near[0].similarity:6.2f}  dog"
    found = json.loads(
        said("structure", run, "--nearest", "cat", "--top", 2, "--format", "json")[1]
    )
    assert found["derived"]["nearest"]["cat"] == [near[0]._asdict(), near[1]._asdict()]


def test_a_taxonomy_takes_the_place_of_the_datas_own(said, run, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("class,group\n" + "".join(f"{n},{n == 'cat'}\n" for n in NAMES))
    assert said("structure", run, "--taxonomy", path)[1] != said("structure", run)[1]
    document = json.loads(said("structure", run, "--taxonomy", path, "--format", "json")[1])
    assert document["taxonomy"] == ["True", *["False"] * 5]
    assert document["derived"]["agreement"]["auc"] < 1


def test_another_run_is_compared(make_run, said, run, tmp_path):
    other = make_run(tmp_path / "other", p=[row[::-1] for row in P])
    code, out, _ = said("structure", run, "--against", other)
    assert code == 0 and "with correlation 1.00" in out
    document = json.loads(said("structure", run, "--against", other, "--format", "json")[1])
    assert document["derived"]["against"]["correlation"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: RUN"),
        ("R --threshold 2", "--threshold must be a number from 0 to 1, got 2"),
        ("R --threshold nan", "--threshold must be a number from 0 to 1, got nan"),
        ("R --threshold x", "--threshold must be a number from 0 to 1, got x"),
        ("R --groups 0", "--groups must be a whole number of at least 1, got 0"),
        ("R --taxonmy x", "no flag --taxonmy; did you mean --taxonomy?"),
        ("R --format dot --nearest cat", "--nearest and --against are no part of a dot diagram; "
         "say --format text or json"),
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_2(said, arguments, complaint):
    code, out, err = said("structure", *arguments.split())
    assert (code, out) == (2, "")
    assert err == f"blockout structure: {complaint}\nblockout structure --help explains the flags\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("{tmp}/missing", "there is no run folder or structure file"),
        ("{tmp}", "is not the folder of a run"),
        ("{tmp}/unfinished", "is not finished; the same `blockout train` continues it"),
        ("{tmp}/baseline", "was trained with --method baseline, which has no memberships"),
        ("{run} --nearest cta", "there is no class 'cta'; did you mean 'cat'?"),
        ("{run} --groups 7", "--groups must be at most the number of classes, 6, got 7"),
        ("{run} --taxonomy {tmp}/short.csv", "no group for 'dog', 'oak', 'fir', 'elm', 'ash'"),
        ("{run} --taxonomy {tmp}/none.csv", "No such file"),
        ("{run} --against {tmp}/others", "different classes"),
        ("{run} --against {tmp}/missing", "there is no run folder"),
        ("{run} --out {tmp}/no/where.txt", "cannot write"),
        ("{tmp}/short.csv", "is not JSON, or damaged"),
    ],
)
def test_what_a_user_can_mend_is_exit_1_and_one_line(
    make_run, said, run, tmp_path, arguments, complaint
):
    make_run(tmp_path / "baseline", method="baseline")
    make_run(tmp_path / "others", names=("a", "b", "c", "d", "e", "f"))
    (make_run(tmp_path / "unfinished") / files.RESULT).unlink()
    (tmp_path / "short.csv").write_text("cat,pet\n")
    code, out, err = said("structure", *arguments.format(tmp=tmp_path, run=run).split())
    assert (code, out) == (1, "")
    assert err.startswith("blockout structure: ") and err.count("\n") == 1
    assert complaint in err
