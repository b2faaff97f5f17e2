"""blockout.show.verdict: bad news is said where the numbers say so, and only there."""

from dataclasses import replace

import pytest

from blockout.runs.documents import EpochEntry, ImageCounts, Scores, WarningEntry
from blockout.show.verdict import bad_news, guessing

from .made import bare_run, result


def told(test=70.0, *, train=80.0, holdout=None, counts=(2000, 200, 1000), warnings=(), **more):
    scores = None if holdout is None else Scores(holdout, 99.0, 1.0)
    found = result(test, holdout=scores, images=ImageCounts(*counts), **more)
    run = replace(
        bare_run(),
        result=found,
        epochs=(EpochEntry(step=100, epoch=1, epoch_loss=1.0, train_accuracy=train),),
        warnings=tuple(WarningEntry(1, text) for text in warnings),
    )
    return bad_news(run)


def test_where_nothing_is_wrong_nothing_is_said():
    assert told() == []
    assert told(95.0, train=99.0, holdout=96.0) == []


def test_a_hold_out_that_is_much_easier_than_the_test_is_not_to_be_trusted():
    (said,) = told(74.0, holdout=98.0)
    assert said.startswith("Do not trust the hold-out: 98 % of its images are right, but only 74 %")
    assert "near-duplicates" in said and said.endswith(".")


@pytest.mark.parametrize(
    ("holdout", "count"),
    [(80.0, 10), (73.0, 100_000), (60.0, 200)],
    ids=["few images may be lucky", "three points are little", "harder is no danger"],
)
def test_a_hold_out_that_may_be_lucky_is_not_blamed(holdout, count):
    assert told(70.0, holdout=holdout, counts=(2000, count, 1000)) == []


def test_training_that_has_said_so_already_is_not_repeated():
    warning = "the hold-out cannot be trusted"
    assert told(74.0, holdout=98.0, warnings=[warning]) == ["The hold-out cannot be trusted."]


def test_knowing_training_images_by_heart_asks_for_other_photographs():
    (said,) = told(74.0, train=100.0)
    assert "training images (100 % right) much better than new ones (74 %)" in said
    assert told(74.0, train=85.0) == [] and told(90.0, train=100.0) == []


def test_warnings_come_first_and_notes_on_the_data_last_each_once():
    said = told(74.0, train=100.0, warnings=["it is bad", "it is bad"], notes=("few images",))
    assert said[0] == "It is bad." and said[-1] == "Few images." and len(said) == 3


def test_a_run_that_still_trains_has_its_warnings():
    run = replace(bare_run(finished=False), warnings=(WarningEntry(1, "too slow"),))
    assert bad_news(run) == ["Too slow."]


def test_guessing_is_never_worse_than_one_of_all_classes():
    assert guessing(result(chance=8.3), 4) == 25 and guessing(result(chance=40.0), 4) == 40
    assert guessing(result(), 4) == 25 and guessing(result(), 0) is None
