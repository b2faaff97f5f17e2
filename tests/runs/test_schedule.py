"""How long and how fast to train, by the number of images."""

import pytest

from blockout.runs.schedule import SHAPES, Schedule, fitting_schedule


@pytest.mark.parametrize(
    ("images", "schedule"),
    [
        (1000, Schedule(60, 64, 0.1)),  # never more than 60 passes
        (5000, Schedule(30, 128, 0.2)),  # 150,000 images in all
        (60_000, Schedule(10, 256, 0.4)),  # never fewer than 10
        (None, Schedule(10, 256, 0.4)),
    ],
)
def test_a_new_trunk_sees_about_as_many_images_whatever_the_set(images, schedule):
    assert fitting_schedule(images, "new") == schedule


@pytest.mark.parametrize(
    ("images", "schedule"),
    [
        (100, Schedule(320, 32, 0.05)),  # a thousand steps
        (2500, Schedule(30, 64, 0.1)),
        (100_000, Schedule(8, 64, 0.1)),  # twelve thousand
    ],
)
def test_a_head_on_features_takes_a_thousand_to_twelve_thousand_steps(images, schedule):
    assert fitting_schedule(images, "frozen") == schedule


@pytest.mark.parametrize("images", [1, 3, 31])
def test_a_set_smaller_than_its_batch_takes_a_thousand_steps_of_one_epoch_each(images):
    assert fitting_schedule(images, "frozen") == Schedule(1000, 32, 0.05)
    assert fitting_schedule(images, "frozen", batch_size=512).epochs == 1000


def test_the_rate_follows_a_batch_that_you_choose():
    assert fitting_schedule(2000, "new", batch_size=32).lr == pytest.approx(0.05)
    assert fitting_schedule(2000, "new", batch_size=512).lr == pytest.approx(0.4), "and no further"
    assert fitting_schedule(2500, "frozen", batch_size=128).lr == pytest.approx(0.2)
    assert fitting_schedule(2500, "frozen", batch_size=1024).lr == pytest.approx(0.4)
    assert fitting_schedule(9, "new", batch_size=64, known=SHAPES) == Schedule(5, 64, 0.2)


def test_a_tuned_trunk_learns_a_twentieth_as_fast_for_ten_epochs():
    assert fitting_schedule(1000, "tuned") == pytest.approx(Schedule(10, 64, 0.1 / 20))
