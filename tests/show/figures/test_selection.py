"""Which runs a figure shows."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from blockout.show.figures import CATALOGUE, CannotDraw
from blockout.show.figures.classes import classes
from blockout.show.figures.distributions import distributions
from blockout.show.figures.selection import learning, most_branched

from .made import make_run, text_of


def test_runs_that_draw_come_first_and_fixed_p_are_not_shown(tmp_path, run):
    soft = make_run(tmp_path / "soft", hard=False)
    wider = make_run(tmp_path / "wider", width=16)
    fixed = make_run(tmp_path / "fixed", width=4, learned=False)
    shown = learning([fixed, soft, wider, run], finished=True)
    assert [run.name for run in shown] == ["wide", "wider", "soft"]
    with pytest.raises(CannotDraw, match=r"learns P, and there is only fixed \(blockout, P fixed"):
        distributions([fixed])
    assert text_of(CATALOGUE[1].draw([fixed], ())) == text_of(CATALOGUE[1].draw([], ()))


def test_runs_on_different_classes_are_not_compared(tmp_path, run):
    described = msgspec.structs.replace(run.description, classes=tuple("abcdef"), data="shapes")
    other = replace(run, description=described, name="other")
    with pytest.raises(CannotDraw, match="wide and other have different classes"):
        classes([run, other])


def test_the_most_branched_run_has_the_fewest_connections_and_several_branches(tmp_path, run):
    narrow = make_run(tmp_path / "narrow", width=6, seed=1)
    sparse = replace(narrow, memberships={n: p * (p > 0.9) for n, p in narrow.memberships.items()})
    assert most_branched([run, sparse]).name == "narrow"
    alike = {name: np.repeat(p[:, :1], 3, axis=1) for name, p in sparse.memberships.items()}
    assert most_branched([run, replace(sparse, memberships=alike)]) is run


def test_of_several_seeds_the_first_is_shown_wherever_they_ran(tmp_path):
    first = make_run(tmp_path / "first")
    second = make_run(tmp_path / "second", seed=1, strategy="ddp", devices="2")
    longer = make_run(tmp_path / "longer", epochs=9)
    shown = learning([first, second, longer], finished=True)
    assert [run.name for run in shown] == ["first", "longer"]


def test_too_many_rows_are_refused(tmp_path):
    runs = [make_run(tmp_path / f"{n}", width=n, finished=False) for n in range(4, 11)]
    with pytest.raises(CannotDraw, match="7 different Blockout runs are too many; give at most 6"):
        learning(runs, finished=False)
