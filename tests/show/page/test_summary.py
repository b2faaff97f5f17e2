"""The summary in words: every number in it is the run's."""

import html
import re
import shlex
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace as changed

from blockout.runs import Run
from blockout.runs import folder as files
from blockout.runs.documents import (
    Compaction,
    CompactionCurve,
    CompactionPoint,
    Environment,
    GroupsFound,
    Machine,
    WarningEntry,
    as_json,
)
from blockout.show.page import page, summary
from blockout.show.verdict import margin
from blockout.training import TrainConfig


def plainly(section) -> str:
    """As a reader sees it."""
    return html.unescape(re.sub(r"<[^>]*>", "", section.body))


@pytest.fixture
def view(run) -> Run:
    return Run.open(run)


def configured(run: Run, **flags) -> Run:
    return replace(run, config=TrainConfig.from_flat(run.config.flat() | flags))


def test_a_finished_run_is_told(view):
    told = plainly(summary.section([view]))
    test, structure = view.result.test, view.structure
    assert "Trained on tinted noise, 6 classes, 120 training images, with Blockout" in told
    assert (
        "two layers of 24 nodes in 3 branches (clusters); beside them a linear classifier" in told
    )
    assert "the answer is the mean of both. 3 epochs (15 steps) took" in told
    off = margin(test.accuracy, 48)
    assert (
        f"{test.accuracy:.2f} % of the 48 test images are correct (give or take {off:.1f} p" in told
    )
    linear = view.result.linear.accuracy
    beside = "The linear classifier beside the layers, alone, gets"
    assert f"{beside} {linear:.2f} % (" in told
    assert "%, guessing gets 16.7 %." in told
    assert f"fall into {len(structure.class_groups)} group" in told
    first, second = (100 * cost.left for cost in structure.costs)
    assert f"{first:.0f} % of those of FC2 and {second:.0f} % of those of the classifier" in told
    assert "Training was guided" in told and "as in the paper" in plainly(
        summary.section([configured(view, paper=True)])
    )


def test_what_is_left_is_that_of_all_connections_together(view):
    p = [p >= 0.5 for p in view.memberships.values()]
    pairs = [(b.astype(int) @ a.astype(int).T) > 0 for a, b in pairwise(p)]
    left = sum(m.sum() for m in pairs) / sum(m.size for m in pairs)
    assert f"<dd>{100 * left:.0f} %</dd>" in summary.section([view]).body


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((0.1, 0.73, 0.001), "73 % of cases (guessing: 50 %): more often than by chance."),
        ((0.0, 0.52, 0.3), "no more often than chance would give"),
        ((1.0, 1.0, 0.001), "groups, they are the same"),
    ],
)
def test_agreement_is_said_with_its_weight(view, groups, expected):
    rand, auc, p_value = groups
    found = GroupsFound(3, (0,) * 6, rand, 0.5, 0.5, 0.5, auc, p_value)
    known = replace(view, result=changed(view.result, groups=found))
    assert expected in plainly(summary.section([known]))
    unknown = replace(view, result=changed(view.result, groups=None))
    assert "Meaning" not in plainly(summary.section([unknown]))


def test_an_unfinished_run_is_told_as_far_as_it_has_come(unfinished, begun):
    told = plainly(summary.section([Run.open(unfinished)]))
    assert "3 epochs are planned" in told and "Accuracy so far, after epoch 1" in told
    assert "Structure" not in told and "compact" not in told
    told = plainly(summary.section([Run.open(begun)]))
    assert "it has reached step 0" in told and "No epoch is finished yet" in told


def test_a_run_without_blockout_is_told_without_branches(baseline):
    section = summary.section([Run.open(baseline)])
    assert "without Blockout" in section.lead and "branch" not in plainly(section)


def test_branches_that_are_all_the_same_are_said_to_be_one(view):
    alike = {name: np.repeat(p[:, :1], 3, axis=1) for name, p in view.memberships.items()}
    soft = configured(replace(view, memberships=alike), hard=False)
    told = plainly(summary.section([soft]))
    assert "same P for all 3 branches" in told and "never drawn (soft)" in told
    assert "groups of classes" not in told and "Meaning" not in told
    nearly = alike | {"P_1": alike["P_1"] * np.array([1, 1, 0.99], np.float32)}
    told = plainly(summary.section([replace(view, memberships=nearly)]))
    assert "same P for all" not in told and "groups of classes" in told


def test_fixed_p_are_not_shown_as_learned(fixed):
    view = Run.open(fixed)
    assert view.description.groups is not None and view.result.groups is None
    told = plainly(summary.section([view]))
    assert "which draws new branches in every step" in told and "was not learned" in told
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
    run = replace(view)
    run.__dict__["structure"] = replace(view.structure, taxonomy=known, group_count=found)
    told = plainly(summary.section([run]))
    assert f"the classes fall into {found} groups" in told
    assert ("(as many as the known groups of the data)" in told) == explained


def test_several_runs_are_a_table_with_each_story_to_unfold(view, baseline, unfinished):
    others = [Run.open(baseline), Run.open(unfinished)]
    body = summary.section([view, *others]).body
    rows = re.findall(r"<tr>(.*?)</tr>", body)[1:]
    cells = [re.findall(r"<t[hd].*?>(?:<bdi>)?(.*?)(?:</bdi>)?</t[hd]>", row) for row in rows]
    assert [row[:6] for row in cells] == [
        ["run", "tinted noise", "blockout", "24", "3", "3 epochs"],
        ["base", "tinted noise", "baseline", "–", "–", "3 epochs"],
        ["half", "tinted noise", "blockout", "24", "3", "1 of 3 epochs so far"],
    ]
    assert cells[1][7] == f"{others[0].result.test.accuracy:.2f} %"
    assert body.count("<details>") == 3
    soft = configured(view, hard=False)
    assert "<td>blockout (soft)</td>" in summary.section([view, soft]).body


def test_what_compaction_gives_is_measured_rather_than_expected(view, tmp_path):
    here = replace(view, folder=tmp_path)
    expected = plainly(summary.section([here]))
    before = sum(cost.multiply_adds_before for cost in view.structure.costs)
    assert f"of {before:,} multiply-adds" in expected
    points = tuple(CompactionPoint(t, 1, 1 - t, 4.0, 4 - 4 * t, 90 - t) for t in (0.0, 0.5))
    curve = CompactionCurve(points, images="hold-out", count=24, batch_size=64)
    files.write_json(tmp_path / files.COMPACTION, as_json(curve))
    here = replace(here)  # as it is read again
    told = plainly(summary.section([here]))
    assert "out 50 % of its multiplications, and takes 2.00 ms instead of 4.00 ms" in told
    assert "89.50 % of the hold-out images are correct then, 90.00 % before" in told
    done = Compaction(0.5, (200, 50), (3.0, 1.0), 256, None, (80.0, 79.0), 0)
    about = changed(view.description, compaction=done)
    files.write_json(tmp_path / files.COMPACT_MODEL, as_json(about))
    section = summary.section([replace(here)])
    assert "25 % of its multiplications, and takes 1.00 ms instead" in plainly(section)
    assert "<dd>3.0 ×</dd>" in section.body


def test_bad_news_comes_before_anything_else_is_told(view):
    """Underfitting, with the flag to use; and the notes on the data that the run has kept."""
    assert view.result.notes == (
        "only 24 images are held out, so the choice of best.safetensors is partly chance; "
        "--holdout 0.2 holds out more",
        "only 48 images are in the test, so one image more or less is 2 points of accuracy; "
        "add photographs, or test a larger share with --test-share",
    )
    body = summary.section([view]).body
    assert body.index("Know before you use it") < body.index("<b>Accuracy</b>")
    assert "It has not learned its own training images" in body
    assert "train longer with <code>--epochs</code>" in body
    assert "<code>--holdout 0.2</code> holds out more." in body
    fine = replace(view, warnings=(), result=changed(view.result, notes=(), holdout=None))
    assert "Know before you use it" not in summary.section([fine]).body
    warned = replace(fine, warnings=(WarningEntry(3, "nearly all of <P_0> is near one"),))
    told = summary.section([warned]).body
    assert "<li><bdi>Nearly all of &lt;P_0&gt; is near one.</bdi></li>" in told


def test_weak_classes_are_named_and_lead_to_themselves(view):
    counts = np.array([[0, 3, 1, 0, 0, 0], *(9 * np.eye(6, dtype=int)[1:])])
    run = replace(view)
    run.__dict__["confusion"] = counts
    section = summary.section([run])
    told = re.sub(r"\s+", " ", plainly(section))
    assert "It is more often wrong than right about: red: 0 % of 4 right, mostly taken for" in told
    assert '<button type="button" class="named" data-class="0"><bdi>red</bdi></button>' in (
        section.body
    )
    run = replace(view)
    run.__dict__["confusion"] = counts + 5 * np.eye(6, dtype=int)
    told = re.sub(r"\s+", " ", plainly(summary.section([run])))
    assert "Its weakest classes: red: 56 % of 9 right, mostly taken for green" in told


def test_the_accuracy_stands_beside_that_of_a_linear_classifier(view):
    for accuracy, than in ((20.0, "less"), (99.0, "more")):
        linear = changed(view.result.test, accuracy=accuracy)
        told = plainly(summary.section([replace(view, result=changed(view.result, linear=linear))]))
        points = abs(view.result.test.accuracy - accuracy)
        alone = f"the layers without it get {view.result.layers.accuracy:.2f} %"
        said = f"{accuracy:.2f} % ({points:.1f} points {than}), {alone}, guessing"
        assert f"beside the layers, alone, gets {said}" in told


def test_guessing_is_what_the_terminal_says(view):
    often = replace(view, result=changed(view.result, chance=40.0, linear=None, layers=None))
    assert "Guessing gets 40.0 %." in plainly(summary.section([often]))


def test_what_to_do_next_can_be_typed(view, said):
    steps = dict(summary._next_steps(view))
    assert len(steps) == 4
    for command in steps.values():
        name, *words = shlex.split(command)[1:]
        assert words[0] == str(view.folder)
        code, out, _ = said(name, "--help")
        flags = [word for word in words if word.startswith("--")]
        assert code == 0 and all(flag in out for flag in flags)
    assert summary._next_steps(replace(view, result=None)) == []


def test_a_command_repeats_as_it_was_typed_but_into_another_folder(view):
    made = Environment(command="cli.py train --data cifar100 --run runs/a --nodes 64 --restart")
    typed = replace(view, environment=made)
    assert summary.command(typed) == "blockout train --data cifar100 --nodes 64"
    made = Environment(command="blockout train --data 'my own photos' --seed 1")
    quoted = replace(view, environment=made)
    assert summary.command(quoted) == "blockout train --data 'my own photos' --seed 1"


def test_the_command_of_a_run_from_python_repeats_its_config(view, said):
    chosen = configured(view, tensorboard=False, paper=True, nodes=24)
    command = shlex.split(summary.command(chosen))
    assert command[:2] == ["blockout", "train"] and "--run" not in command
    assert "None" not in command
    code, out, _ = said("train", *command[2:], "--print_config=skip_default")
    assert code == 0 and "tensorboard: false" in out
    values = dict(line.split(": ", 1) for line in out.splitlines())
    typed = TrainConfig.from_flat(TrainConfig().flat() | {k: _read(v) for k, v in values.items()})
    same = typed.resolved(
        image_size=16, steps=view.result.steps, stream=view.config.data.stream
    ).flat()
    expected = chosen.config.flat()
    assert {k: v for k, v in same.items() if k != "run"} == {
        k: v for k, v in expected.items() if k != "run"
    }


def _read(text: str) -> object:
    """A value as YAML writes it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "null": None}.get(text, text.strip("'"))


def test_names_stay_text_in_the_summary(nasty):
    section = summary.section([Run.open(nasty)])
    assert "<img" not in section.body and "&lt;img" in section.body
    assert "<b>bold" not in section.body


def test_no_number_is_nan_where_no_connection_is_left(view):
    empty = {name: np.zeros_like(p) for name, p in view.memberships.items()}
    empty["P_2"][0, 0] = 0.4  # so that clusters differ
    told = plainly(summary.section([replace(view, memberships=empty)]))
    assert "0 % of those of FC2" in told and "nan" not in told


def test_numbers_and_words_of_the_machine_are_text(view):
    made = Environment(commit="<i>", versions={"torch": "<u>"}, machine=Machine(processor="<s>"))
    body = summary.section([replace(view, environment=made)]).body
    assert "torch &lt;u&gt;, commit &lt;i&gt;, &lt;s&gt;" in body
    assert not re.search("<(i|u|s)>", body.replace("<i><bdi>", ""))
