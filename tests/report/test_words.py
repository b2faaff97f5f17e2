"""The summary in words: every number in it is the run's."""

import dataclasses
import html
import json
import re
import shlex
from itertools import pairwise

import numpy as np
import pytest

from blockout.report import page, repetition, words
from blockout.report.view import RunView
from blockout.training import TrainConfig
from blockout.training.compaction import ABOUT, CompactionPoint, write_curve


def plainly(section) -> str:
    """As a reader sees it."""
    return html.unescape(re.sub(r"<[^>]*>", "", section.body))


@pytest.fixture
def view(run) -> RunView:
    return RunView.load(run)


def changed(view: RunView, **config) -> RunView:
    return dataclasses.replace(view, config=view.config | config)


def test_a_finished_run_is_told(view):
    told = plainly(words.section([view]))
    test, structure = view.result["test"], view.structure
    assert "Trained on tinted noise, 6 classes, with Blockout" in told
    assert "two layers of 24 nodes in 3 clusters (branches). 3 epochs (15 steps) took" in told
    assert f"{test['accuracy']:.2f} % of the test images are correct (guessing: 17 %)" in told
    assert f"fall into {len(structure.class_groups)} group" in told
    first, second = (100 * cost.left for cost in structure.costs)
    assert f"{first:.0f} % of those of FC2 and {second:.0f} % of those of the classifier" in told
    assert "branches were guided" in told and "as in the paper" in plainly(
        words.section([changed(view, paper=True)])
    )


def test_what_is_left_is_that_of_all_connections_together(view):
    p = [p >= 0.5 for p in view.memberships.values()]
    pairs = [(b.astype(int) @ a.astype(int).T) > 0 for a, b in pairwise(p)]
    left = sum(m.sum() for m in pairs) / sum(m.size for m in pairs)
    assert f"<dd>{100 * left:.0f} %</dd>" in words.section([view]).body


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"auc": 0.73, "auc_p_value": 0.001, "adjusted_rand": 0.1}, "73 % of cases (guessing: 50 "
         "%): more often than by chance."),
        ({"auc": 0.52, "auc_p_value": 0.3, "adjusted_rand": 0.0}, "no more than chance would give"),
        ({"auc": 1.0, "auc_p_value": 0.001, "adjusted_rand": 1.0}, "groups, they are the same"),
    ],
)  # fmt: skip
def test_agreement_is_said_with_its_weight(view, groups, expected):
    known = dataclasses.replace(view, result=view.result | {"groups": groups})
    assert expected in plainly(words.section([known]))
    unknown = dataclasses.replace(view, result=view.result | {"groups": None})
    assert "Meaning" not in plainly(words.section([unknown]))


def test_an_unfinished_run_is_told_as_far_as_it_has_come(unfinished, begun):
    told = plainly(words.section([RunView.load(unfinished)]))
    assert "3 epochs are planned" in told and "Accuracy so far, after epoch 1" in told
    assert "Structure" not in told and "compact" not in told
    told = plainly(words.section([RunView.load(begun)]))
    assert "it has come to step 0" in told and "No epoch is finished yet" in told


def test_a_run_without_blockout_is_told_without_branches(baseline):
    section = words.section([RunView.load(baseline)])
    assert "without Blockout" in section.lead and "branch" not in plainly(section)


def test_branches_that_are_all_the_same_are_said_to_be_one(view):
    alike = {name: np.repeat(p[:, :1], 3, axis=1) for name, p in view.memberships.items()}
    soft = dataclasses.replace(view, memberships=alike, config=view.config | {"hard": False})
    told = plainly(words.section([soft]))
    assert "same P for all 3 branches" in told and "never drawn (soft)" in told
    assert "groups of classes" not in told and "Meaning" not in told
    nearly = alike | {"P_1": alike["P_1"] + np.array([0, 0, 0.01], np.float32)}
    told = plainly(words.section([dataclasses.replace(view, memberships=nearly)]))
    assert "same P for all" not in told and "groups of classes" in told


def test_fixed_p_are_not_shown_as_learned(fixed):
    view = RunView.load(fixed)
    assert view.groups is not None and view.result["groups"] is None
    told = plainly(words.section([view]))
    assert "which draws anew how the network branches" in told and "were not learned" in told
    assert "Structure" not in told and "Meaning" not in told and "compact" not in told
    shown = [module.__name__ for module in page.SECTIONS if module.section([view])]
    about_branches = {
        "distributions",
        "nodes",
        "classes",
        "hierarchy",
        "flow",
        "masks",
        "compaction",
    }
    assert about_branches.isdisjoint(name.rpartition(".")[2] for name in shown)


@pytest.mark.parametrize(("found", "explained"), [(2, True), (3, False)])
def test_the_number_of_groups_is_explained_where_it_is_that_of_the_known_ones(
    view, found, explained
):
    known = tuple("ab"[i % 2] for i in range(len(view.classes)))
    structure = dataclasses.replace(view.structure, taxonomy=known, group_count=found)
    told = plainly(words.section([dataclasses.replace(view, structure=structure)]))
    assert f"the classes fall into {found} groups" in told
    assert ("(as many as the known groups of the data)" in told) == explained


def test_several_runs_are_a_table_with_each_story_to_unfold(view, baseline, unfinished):
    others = [RunView.load(baseline), RunView.load(unfinished)]
    body = words.section([view, *others]).body
    rows = re.findall(r"<tr>(.*?)</tr>", body)[1:]
    cells = [[html.unescape(c) for c in re.findall(r"<bdi>(.*?)</bdi>", row)] for row in rows]
    assert [row[:6] for row in cells] == [
        ["run", "tinted noise", "blockout", "24", "3", "3 epochs"],
        ["base", "tinted noise", "baseline", "–", "–", "3 epochs"],
        ["half", "tinted noise", "blockout", "24", "3", "1 of 3 epochs so far"],
    ]
    assert cells[1][7] == f"{others[0].result['test']['accuracy']:.2f} %"
    assert body.count("<details>") == 3
    soft = dataclasses.replace(view, config=view.config | {"hard": False})
    assert "<bdi>blockout (soft)</bdi>" in words.section([view, soft]).body


def test_what_compaction_gives_is_measured_rather_than_expected(view, tmp_path):
    here = dataclasses.replace(view, folder=tmp_path)
    expected = plainly(words.section([here]))
    before = sum(cost.multiply_adds_before for cost in view.structure.costs)
    assert f"of {before:,} multiply-adds" in expected
    points = [CompactionPoint(t, 1, 1 - t, 4.0, 4 - 4 * t, 90 - t) for t in (0.0, 0.5)]
    write_curve(tmp_path, points, batch_size=64, images="hold-out")
    told = plainly(words.section([here]))
    assert "out 50 % of their multiplications, and take 2.00 ms in place of 4.00 ms" in told
    assert "89.50 % of the hold-out images are correct then, 90.00 % before" in told
    done = {"multiply_adds": [200, 50], "milliseconds": [3.0, 1.0], "batch_size": 256,
            "test": [80.0, 79.0]}  # fmt: skip
    (tmp_path / ABOUT).write_text(json.dumps({"compaction": done}))
    section = words.section([here])
    assert "25 % of their multiplications, and take 1.00 ms in place" in plainly(section)
    assert "<dd>3.0 ×</dd>" in section.body


def test_warnings_of_the_run_are_repeated(view):
    line = {"step": 3, "warning": "nearly all of P_0 is near one"}
    warned = dataclasses.replace(view, steps=[*view.steps, line])
    assert "<li><bdi>nearly all of P_0 is near one</bdi></li>" in words.section([warned]).body
    assert "warnings" not in words.section([view]).body


def test_a_command_repeats_as_it_was_typed_but_into_another_folder(view):
    made = {"command": "cli.py train --data cifar100 --run runs/a --nodes 64 --restart"}
    typed = dataclasses.replace(view, environment=made)
    assert repetition.command(typed) == "blockout train --data cifar100 --nodes 64"
    made = {"command": "blockout train --data 'my own photos' --seed 1"}
    quoted = dataclasses.replace(view, environment=made)
    assert repetition.command(quoted) == "blockout train --data 'my own photos' --seed 1"


def test_the_command_of_a_run_from_python_repeats_its_config(view, said):
    command = shlex.split(repetition.command(changed(view, tensorboard=False, paper=True)))
    assert command[:2] == ["blockout", "train"] and "--run" not in command
    code, out, _ = said("train", *command[2:], "--print_config=skip_default")
    assert code == 0 and "tensorboard: false" in out
    values = dict(line.split(": ", 1) for line in out.splitlines())
    expected = changed(view, tensorboard=False, paper=True).config
    defaults = TrainConfig().flat()
    assert set(values) == {k for k, v in expected.items() if v != defaults[k]} - {"run"}


def test_names_stay_text_in_the_summary(nasty):
    section = words.section([RunView.load(nasty)])
    assert "<img" not in section.body and "&lt;img" in section.body
    assert "<b>bold" not in section.body


def test_numbers_of_a_damaged_structure_are_never_nan(view):
    empty = {name: np.zeros_like(p) for name, p in view.memberships.items()}
    rows = tuple((name, p.tolist()) for name, p in empty.items())
    none = dataclasses.replace(view.structure, memberships=rows)
    told = plainly(words.section([dataclasses.replace(view, structure=none)]))
    assert "0 % of those of FC2" in told and "nan" not in told
