import numpy as np

from blockout.show.groups import groups_to_show
from blockout.show.mistakes import nearness
from blockout.show.page import comparison, flow, hierarchy
from blockout.show.page.taxonomy import section

from ..made import made_run, texts, traces


def test_without_mistakes_there_is_no_distance():
    assert nearness(np.eye(3, dtype=int), np.array([0, 0, 1])) is None
    body = section([made_run(confusion=np.eye(4, dtype=int), groups=(0, 0, 1, 1))]).body
    assert "no mistakes" in body


def test_equal_groups_are_said_to_be_equal():
    found = section([made_run(groups=(1, 1, 0, 0))])
    assert (
        "as many groups as the data knows, the learned groups are exactly the known ones."
        in found.body
    )
    table = traces(found.figures[0])[0]
    assert table["z"].tolist() == [[2, 0], [0, 2]]
    assert [name.rstrip("\u200b") for name in table["x"]] == ["known 1", "known 0"]


def test_unrelated_groups_are_said_to_be_so():
    found = section([made_run(groups=(0, 1, 0, 1))])
    assert "no clear relation to the known ones" in found.body


def test_groups_that_training_was_told_are_said_so():
    told = made_run(groups=(0, 1, 0, 1), affinity_from="groups")
    untold = made_run(groups=(0, 1, 0, 1))
    assert "that training was told about" in section([told]).lead
    assert "that training was not told about" in section([untold]).lead


def test_branches_that_are_one_make_no_learned_groups():
    one = made_run([[0.9, 0.9], [0.8, 0.8], [0.2, 0.2], [0.1, 0.1]], groups=(0, 0, 1, 1))
    found = section([one])
    assert found.title == "Mistakes and known groups" and "learned" not in found.body
    assert hierarchy.section([one]) is None and flow.section([one]) is None
    assert comparison.same_classes([one, one]) == []
    assert not groups_to_show(one).learned


def test_related_groups_are_told_from_chance():
    p = np.repeat(np.eye(5), 4, axis=0)
    groups = np.repeat(np.arange(5), 4)
    groups[[0, 4]] = groups[[4, 0]]
    run = made_run(
        p,
        classes=list(map(str, range(20))),
        confusion=np.ones((20, 20), int),
        groups=groups.tolist(),
    )
    assert "more alike in their branches than chance" in section([run]).body


def test_distances_are_given_for_known_and_learned_groups():
    body = section([made_run(groups=(0, 1, 0, 1))]).body
    known, learned = 4 / 11, 7 / 11  # cat for oak, dog for fir and back; see CONFUSION
    assert f"<td>known groups</td><td>{known:.0%}</td><td>33%</td>" in body
    assert f"<td>learned groups</td><td>{learned:.0%}</td><td>33%</td>" in body
    assert f"<td>{2 - known:.2f} (by chance 1.67)</td>" in body


def test_runs_without_blockout_are_measured_by_the_known_groups(tmp_path):
    base = made_run(None, groups=(0, 0, 1, 1), folder=tmp_path / "a" / "run")
    other = made_run(groups=(0, 0, 1, 1), folder=tmp_path / "b" / "run")
    found = section([base])
    assert found.title == "Mistakes and known groups" and len(found.figures) == 1
    both = section([base, other])
    assert len(set(traces(both.figures[-1])[0]["y"])) == 3  # though both are called "run"


def test_data_without_groups_and_groups_that_say_nothing_have_no_section():
    assert section([made_run()]) is None
    assert section([made_run(groups=(0, 0, 0, 0))]) is None
    assert section([made_run(groups=(0, 1, 2, 3))]) is None


def test_names_are_text(tmp_path):
    run = made_run(groups=(0, 0, 1, 1), folder=tmp_path / "<i>")
    found = section([run, run])
    assert "<i>" not in found.body
    assert all("<i>" not in texts(figure) for figure in found.figures)
