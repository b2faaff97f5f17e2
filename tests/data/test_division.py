import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockout.data import DataConfig, DataError
from blockout.data.division import OPEN, check, divide
from blockout.data.tables import HOLDOUT, TEST, TRAIN, Catalogue


def catalogue_of(counts: list[int], parts: list[int] | None = None) -> Catalogue:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    classes = tuple("abcdefgh"[: len(counts)])
    return Catalogue(
        classes, None, None, labels, np.array(parts or [TRAIN] * len(labels), dtype=np.int64)
    )


def groups_of(catalogue: Catalogue, sizes: int, seed: int) -> np.ndarray:
    """Random groups within classes, of about this size."""
    numbers = np.random.default_rng(seed).integers(0, 1 + len(catalogue.labels) // sizes, 10**4)
    return catalogue.labels * 10**5 + numbers[: len(catalogue.labels)]


@given(
    counts=st.lists(st.integers(2, 40), min_size=2, max_size=6),
    test_share=st.floats(0.05, 0.95),
    holdout=st.floats(0.0, 0.95),
    seed=st.integers(0, 5),
)
def test_every_class_is_trained_on_and_tested_and_every_image_has_one_place(
    counts: list[int], test_share: float, holdout: float, seed: int
) -> None:
    catalogue = catalogue_of(counts)
    division = divide(catalogue, DataConfig(test_share=test_share, holdout=holdout, data_seed=seed))
    together = np.concatenate([division.train, division.holdout, division.test])
    assert sorted(together.tolist()) == list(range(len(catalogue.labels)))
    for label in range(len(counts)):
        train, held, test = (
            int((catalogue.labels[i] == label).sum())
            for i in (division.train, division.holdout, division.test)
        )
        assert train >= 1 and test >= 1
        assert held >= 1 if holdout and train + held >= 4 else held >= 0
    assert holdout or not len(division.holdout)


def test_shares_are_kept_on_average() -> None:
    catalogue = catalogue_of([5000, 5000])
    division = divide(catalogue, DataConfig(test_share=0.3, holdout=0.1))
    # seven standard deviations of a binomial each: false alarms below 1e-10
    assert abs(len(division.test) - 3000) < 7 * (10**4 * 0.3 * 0.7) ** 0.5
    assert abs(len(division.holdout) - 700) < 7 * (7000 * 0.1 * 0.9) ** 0.5


@given(st.lists(st.integers(2, 30), min_size=2, max_size=4), st.integers(2, 5), st.integers(0, 9))
def test_no_group_is_parted(counts: list[int], sizes: int, seed: int) -> None:
    catalogue = catalogue_of(counts)
    groups = groups_of(catalogue, sizes, seed)
    for label in range(len(counts)):  # two groups at least, or there is no test set to draw
        groups[np.flatnonzero(catalogue.labels == label)[:2]] = [-label - 1, -label - 100]
    division = divide(catalogue, DataConfig(holdout=0.3, data_seed=seed), groups)
    sides = [set(groups[part]) for part in (division.train, division.holdout, division.test)]
    assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
    for part in (division.train, division.test):
        assert set(catalogue.labels[part]) == set(range(len(counts)))


def drawn(sizes: list[int], share: float, part: str = "test", seeds: int = 100) -> np.ndarray:
    """How many images of a class with such groups go to a part, for many seeds."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.r_[np.zeros(len(groups), np.int64), np.ones(10, np.int64)]
    catalogue = Catalogue(("a", "b"), None, None, labels, np.zeros_like(labels))
    groups = np.r_[groups, len(sizes) + np.arange(10)]
    own = len(labels) - 10
    counts = []
    for seed in range(seeds):
        shares = {"test": (share, 0.0), "holdout": (0.01, share)}[part]
        config = DataConfig(test_share=shares[0], holdout=shares[1], data_seed=seed)
        counts.append((getattr(divide(catalogue, config, groups), part) < own).sum())
    return np.array(counts)


@pytest.mark.parametrize("size", [3, 4])
def test_a_group_larger_than_the_share_of_its_class_is_trained_on(size: int) -> None:
    """Of 10 images 2 are asked for: a burst of 3 would be the whole test of the class."""
    catalogue = catalogue_of([10, 10])
    groups = np.arange(20)
    burst = np.flatnonzero(catalogue.labels == 0)[:size]
    groups[burst] = burst[0]
    for seed in range(200):
        division = divide(catalogue, DataConfig(data_seed=seed, holdout=0.0), groups)
        assert set(burst) <= set(division.train)


def test_a_class_of_bursts_is_tested_by_its_smallest() -> None:
    assert set(drawn([4, 3, 3], 0.2)) == {3}
    assert set(drawn([8, 2], 0.2)) == {2}
    assert set(drawn([5, 5], 0.2)) == {5}  # nothing else can be


def test_groups_bring_a_class_closer_to_its_share_and_no_further() -> None:
    """40 images in bursts of four, of which 8 are asked for."""
    counts = drawn([4] * 10, 0.2, seeds=300)
    assert set(counts) == {8}
    assert set(drawn([3] * 4 + [2], 0.2)) == {3, 2}  # 2.8 are asked for
    bursts, alone = drawn([4] * 5 + [1] * 20, 0.2, seeds=300), drawn([1] * 40, 0.2, seeds=300)
    assert np.abs(bursts - 8).mean() <= np.abs(alone - 8).mean()


def test_which_bursts_are_drawn_does_not_hang_on_the_order_of_images() -> None:
    catalogue = catalogue_of([40, 40])
    contents = np.random.default_rng(0).integers(0, 256, (80, 16), np.uint8)
    catalogue = dataclasses.replace(catalogue, contents=contents)
    groups = groups_of(catalogue, 8, seed=1)
    for seed in range(20):
        config = DataConfig(data_seed=seed, holdout=0.0)
        order = np.random.default_rng(seed).permutation(80)
        numbers = np.random.default_rng(seed).permutation(10**6)[groups]  # other names of groups
        again = divide(catalogue.at(order), config, numbers[order])
        expected = divide(catalogue, config, groups)
        assert set(order[again.test].tolist()) == set(expected.test.tolist())


def test_a_small_holdout_costs_no_class_a_large_group() -> None:
    assert set(drawn([10, 10, 10, 10], 0.05, "holdout")) == {0}
    assert drawn([10, 10, 3, 3, 4, 4], 0.05, "holdout").max() <= 7
    assert drawn([10, 10, 3, 3, 4, 4], 0.05, "holdout").min() >= 3


@given(seed=st.integers(0, 1000), added=st.integers(1, 8))
def test_added_images_move_no_image_into_the_test_set_or_the_holdout(seed: int, added: int) -> None:
    """Wherever they stand among the others."""
    rng = np.random.default_rng(seed)
    contents = rng.integers(0, 256, (60 + added, 16), np.uint8)
    labels = rng.integers(0, 3, len(contents))
    labels[:12] = np.repeat(range(3), 4)
    config = DataConfig(holdout=0.2, data_seed=seed)
    here = np.sort(rng.permutation(np.arange(12, len(contents)))[:48])
    here = np.concatenate([np.arange(12), here])
    places = {"few": here, "all": np.arange(len(contents))}
    trained = {}
    for name, chosen in places.items():
        known = Catalogue(tuple("abc"), None, None, labels[chosen], np.zeros(len(chosen), np.int64))
        division = divide(dataclasses.replace(known, contents=contents[chosen]), config)
        trained[name] = set(chosen[division.train].tolist())
    assert trained["few"] <= trained["all"]


def test_equal_images_stay_on_one_side_and_names_do_not_matter() -> None:
    labels = np.repeat([0, 1], 40)
    contents = np.random.default_rng(0).integers(0, 256, (80, 16), np.uint8)
    contents[20:40] = contents[:20]
    known = Catalogue(("a", "b"), None, None, labels, np.zeros(80, np.int64), (), contents)
    config = DataConfig(holdout=0.3)
    division = divide(known, config)
    for part in (division.train, division.holdout, division.test):
        first = part[part < 40] % 20
        assert (np.unique(first, return_counts=True)[1] == 2).all()
    order = np.random.default_rng(1).permutation(80)
    again = divide(known.at(order), config)
    assert set(order[again.test].tolist()) == set(division.test.tolist())


def test_images_keep_the_part_they_had_and_their_groups_follow() -> None:
    catalogue = catalogue_of([30, 30])
    before = np.full(60, OPEN)
    before[:20], before[20:30], before[30:40] = TRAIN, TEST, HOLDOUT
    groups = np.arange(60)
    groups[50:60] = groups[20:30]  # new images that are nearly those of the test
    division = divide(catalogue, DataConfig(holdout=0.2), groups, before)
    assert set(range(20)) <= set(division.train.tolist())
    assert {*range(20, 30), *range(50, 60)} <= set(division.test.tolist())
    assert set(range(30, 40)) <= set(division.holdout.tolist())


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
    unasked = divide(catalogue, DataConfig())
    assert unasked.holdout.tolist() == [2] and unasked.own_holdout and unasked.own_test
    assert not divide(catalogue_of([4, 4]), DataConfig()).own_test
    assert not any("--holdout" in note for note in unasked.notes)


def test_without_a_holdout_nothing_is_held_out() -> None:
    division = divide(catalogue_of([10, 10]), DataConfig(holdout=0.0))
    assert len(division.holdout) == 0 and len(division.test) > 0


def test_per_class_limits_the_training_images_only() -> None:
    catalogue = catalogue_of([20, 3])
    division = divide(catalogue, DataConfig(per_class=5, holdout=0.0))
    assert np.bincount(catalogue.labels[division.train]).tolist() == [5, 2]
    whole = divide(catalogue, DataConfig(holdout=0.0))
    assert division.test.tolist() == whole.test.tolist()
    assert set(division.train.tolist()) < set(whole.train.tolist())


def test_unequal_classes_are_noted_with_the_remedy() -> None:
    catalogue = catalogue_of([30, 10, 20])
    (_, note) = divide(catalogue, DataConfig(holdout=0.0)).notes
    assert (
        note
        == "class sizes range from 9 (b) to 22 (a) training images; use --balance to weight them"
    )
    (_, note) = divide(catalogue, DataConfig(balance=True, holdout=0.0)).notes
    assert note.endswith("classes are weighted")
    assert len(divide(catalogue_of([300, 280]), DataConfig(holdout=0.0)).notes) == 1


@pytest.mark.parametrize(
    ("catalogue", "message"),
    [
        (catalogue_of([5]), "it has only one class, 'a'; training needs two or more"),
        (catalogue_of([3, 0, 2]), "the train split of it has no image of 'b'"),
        (
            Catalogue(("a", "b"), None, None, np.array([0, 1, 0]), np.array([TRAIN, TEST, TRAIN])),
            "the train split of it has no image of 'b'",
        ),
    ],
)
def test_a_class_without_training_images_is_refused(catalogue: Catalogue, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check(catalogue, "it")
    check(catalogue_of([2, 1], [TRAIN, TRAIN, TEST]), "it")  # a test set may lack a class


def test_a_class_of_one_image_is_trained_on_and_said_not_to_be_tested() -> None:
    catalogue = catalogue_of([5, 1])
    found = divide(catalogue, DataConfig(holdout=0.0))
    assert 5 in found.train and set(catalogue.labels[found.test].tolist()) == {0}
    assert "only one image of 'b': it is trained on" in found.notes[0]


def test_classes_of_one_image_alone_cannot_be_divided() -> None:
    with pytest.raises(DataError, match="cannot split off a test set: only one image of 'a', 'b'"):
        divide(catalogue_of([1, 1]), DataConfig(holdout=0.0))
