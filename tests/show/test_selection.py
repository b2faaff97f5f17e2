from blockout.show.page.section import in_detail
from blockout.show.selection import with_predictions, with_structure

from .made import made_run


def test_only_finished_runs_with_blockout_have_a_structure_to_show():
    run, base = made_run(), made_run(None)
    assert with_structure([base, run]) == [run]
    assert with_predictions([base, run]) == [base, run]


def test_runs_that_are_left_out_are_named(tmp_path):
    runs = [made_run(folder=tmp_path / f"seed {i}") for i in range(4)]
    shown, words = in_detail(runs, 2)
    assert shown == runs[:2]
    assert words == " Not shown here: seed 2, seed 3. To see a run, name it first."
    assert in_detail(runs, 4) == (runs, "")
