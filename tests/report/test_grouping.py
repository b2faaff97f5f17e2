from blockout.report.grouping import groups_to_show, known_groups, learned_groups

from .made import made_run

MIXED = [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_learned_groups_are_those_of_the_structure():
    run = made_run(MIXED)
    found = learned_groups(run)
    by_name = dict(zip(found.names, map(sorted, found.members), strict=True))
    assert by_name == {g.name: list(g.members) for g in run.structure.class_groups}
    assert found.learned and sorted(found.order) == [0, 1, 2, 3]
    assert found.of_class[0] == found.of_class[2] != found.of_class[1] == found.of_class[3]


def test_known_groups_are_those_of_the_data():
    found = known_groups(made_run(groups=(1, 0, 1, 1)))
    assert found.names == ("known 0", "known 1")
    assert found.members == ((1,), (0, 2, 3))
    assert found.starts == [0, 1, 4]
    assert known_groups(made_run()) is None


def test_without_blockout_the_known_groups_are_shown_and_without_these_all_in_one():
    assert groups_to_show(made_run(MIXED, groups=(0, 0, 1, 1))).learned
    assert groups_to_show(made_run(None, groups=(0, 0, 1, 1))).members == ((0, 1), (2, 3))
    assert groups_to_show(made_run(None)).members == ((0, 1, 2, 3),)
