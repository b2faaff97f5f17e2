"""What is said of a class: its accuracy, its branches, its neighbours, its mistakes."""

import numpy as np

from blockout.runs import Run
from blockout.show.page.search import NEAREST, _nearest, class_facts


def test_the_nearest_classes_are_those_of_the_structure(run):
    view = Run.open(run)
    (facts,) = class_facts([view])["runs"]
    for c, name in enumerate(view.classes):
        expected = [e for e in view.structure.nearest(name, NEAREST) if e.similarity > 5e-5]
        assert [view.classes[n] for n in facts["near"][c]["classes"]] == [e.name for e in expected]
        np.testing.assert_allclose(
            facts["near"][c]["alike"], [e.similarity for e in expected], atol=5e-5
        )  # rounded to four decimals


def test_classes_as_near_as_the_last_one_are_counted():
    p = np.array([[1.0, 0.0]] * 12 + [[0.0, 1.0]] * 3)
    found = _nearest(p)
    assert found[0] == {"classes": list(range(1, 9)), "alike": [1.0] * 8, "more": 3}
    assert found[14] == {"classes": [12, 13], "alike": [1.0] * 2, "more": 0}


def test_a_class_is_most_often_taken_for_where_most_of_its_images_went(run):
    view = Run.open(run)
    (facts,) = class_facts([view])["runs"]
    for c, said in enumerate(facts["taken_for"]):
        wrong = {o: int(n) for o, n in enumerate(view.confusion[c]) if o != c and n}
        best = sorted(wrong, key=lambda o: (-wrong[o], o))[:3]
        assert said == [[o, round(100 * wrong[o] / 8, 1)] for o in best]
        assert facts["accuracy"][c] == round(100 * view.confusion[c, c] / 8, 1)


def test_branches_are_those_of_one_half_and_more(run):
    view = Run.open(run)
    (facts,) = class_facts([view])["runs"]
    assert facts["branches"] == [list(code) for code in view.structure.class_set.codes]
    assert facts["clusters"] == 3


def test_runs_without_classes_or_with_others_have_nothing_to_say(run, baseline, unfinished, pair):
    views = [Run.open(folder) for folder in (unfinished, run, baseline, pair)]
    facts = class_facts(views)
    assert facts["names"] == views[1].classes
    assert [one["name"] for one in facts["runs"]] == ["run", "base"]
    assert facts["runs"][1]["near"] is None and facts["runs"][1]["branches"] is None
    assert class_facts(views[:1]) is None
