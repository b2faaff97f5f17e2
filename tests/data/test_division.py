import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockout.data import DataConfig, DataError
from blockout.data.division import check, divide
from blockout.data.tables import HOLDOUT, TEST, TRAIN, Catalogue


def catalogue_of(counts: list[int], parts: list[int] | None = None) -> Catalogue:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    classes = tuple("abcdefgh"[: len(counts)])
    return Catalogue(
        classes, None, None, labels, np.array(parts or [TRAIN] * len(labels), dtype=np.int64)
    )


@given(
    counts=st.lists(st.integers(2, 40), min_size=2, max_size=6),
    test_share=st.floats(0.05, 0.95),
    holdout=st.floats(0.0, 0.95),
    seed=st.integers(0, 5),
)
def test_every_class_gives_its_share_and_every_image_has_one_place(
    counts: list[int], test_share: float, holdout: float, seed: int
) -> None:
    catalogue = catalogue_of(counts)
    division = divide(catalogue, DataConfig(test_share=test_share, holdout=holdout, data_seed=seed))
    together = np.concatenate([division.train, division.holdout, division.test])
    assert sorted(together.tolist()) == list(range(len(catalogue.labels)))
    for label, count in enumerate(counts):
        train, held, test = (
            int((catalogue.labels[i] == label).sum())
            for i in (division.train, division.holdout, division.test)
        )
        assert test == min(max(1, round(test_share * count)), count - 1)
        rest = count - test
        assert held == (min(max(1, round(holdout * rest)), rest - 1) if holdout else 0)
        assert train >= 1


def test_the_division_depends_on_the_data_seed_alone() -> None:
    catalogue = catalogue_of([50, 50])
    one = divide(catalogue, DataConfig(holdout=0.2))
    again = divide(catalogue, DataConfig(holdout=0.2, balance=True))
    other = divide(catalogue, DataConfig(holdout=0.2, data_seed=1))
    assert all(np.array_equal(getattr(one, p), getattr(again, p)) for p in ("train", "test"))
    assert not np.array_equal(one.test, other.test)
    assert not np.array_equal(one.holdout, other.holdout)


def test_splits_that_the_data_brings_are_kept() -> None:
    catalogue = catalogue_of([4, 4], [TRAIN, TEST, HOLDOUT, TRAIN, TRAIN, TEST, TRAIN, TRAIN])
    division = divide(catalogue, DataConfig(holdout=0.5))
    assert division.train.tolist() == [0, 3, 4, 6, 7]
    assert division.holdout.tolist() == [2] and division.test.tolist() == [1, 5]
    assert any("--holdout has no effect" in note for note in division.notes)


def test_without_a_holdout_nothing_is_held_out() -> None:
    division = divide(catalogue_of([10, 10]), DataConfig(holdout=0.0))
    assert len(division.holdout) == 0 and len(division.test) == 4


def test_per_class_limits_the_training_images_only() -> None:
    catalogue = catalogue_of([20, 3])
    division = divide(catalogue, DataConfig(per_class=5, holdout=0.0))
    assert np.bincount(catalogue.labels[division.train]).tolist() == [5, 2]
    assert np.bincount(catalogue.labels[division.test]).tolist() == [4, 1]


def test_unequal_classes_are_noted_with_the_remedy() -> None:
    catalogue = catalogue_of([30, 10, 20])
    (_, note) = divide(catalogue, DataConfig(holdout=0.0)).notes
    assert (
        note
        == "class sizes range from 8 (b) to 24 (a) training images; use --balance to weight them"
    )
    (_, note) = divide(catalogue, DataConfig(balance=True, holdout=0.0)).notes
    assert note.endswith("classes are weighted")
    assert len(divide(catalogue_of([30, 25]), DataConfig(holdout=0.0)).notes) == 1


@pytest.mark.parametrize(
    ("catalogue", "message"),
    [
        (catalogue_of([5]), "it has only one class, 'a'; training needs two or more"),
        (catalogue_of([3, 0, 2]), "the train split of it has no image of 'b'"),
        (
            Catalogue(("a", "b"), None, None, np.array([0, 1, 0]), np.array([TRAIN, TRAIN, TEST])),
            "the test split of it has no image of 'b'",
        ),
    ],
)
def test_a_class_without_images_in_a_split_is_refused(catalogue: Catalogue, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check(catalogue, "it")


def test_a_class_of_one_image_cannot_be_divided() -> None:
    with pytest.raises(DataError, match="cannot split off a test set: only one image of 'b'"):
        divide(catalogue_of([5, 1]), DataConfig(holdout=0.0))
