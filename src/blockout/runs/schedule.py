"""How long and how fast to train by default: what fits the number of images."""

from typing import Literal, NamedTuple

TrunkState = Literal["new", "tuned", "frozen"]


class Schedule(NamedTuple):
    """Passes over the training images, images per step, and peak learning rate."""

    epochs: int
    batch_size: int
    lr: float


LARGE_SET = Schedule(10, 256, 0.4)
"""The paper's data sets, and any set whose size is not known."""
SHAPES = Schedule(5, 128, 0.4)
"""A couple of minutes must suffice for the generated set."""
SEEN_FROM_NOTHING = 150_000
"""A new trunk should see about so many images."""
FEATURE_STEPS = (1000, 12_000)
"""Fewest and most steps of a head on features."""


def fitting_schedule(
    images: int | None,
    trunk: TrunkState,
    *,
    batch_size: int | None = None,
    known: Schedule | None = None,
) -> Schedule:
    """The schedule for so many training images.

    Small sets get small batches: they need many steps more than they need smooth ones. The rate is
    proportional to the batch. A set that is smaller than its batch makes epochs of one step.

    >>> fitting_schedule(2500, "frozen")
    Schedule(epochs=30, batch_size=64, lr=0.1)
    >>> fitting_schedule(2000, "new")
    Schedule(epochs=60, batch_size=64, lr=0.1)
    >>> fitting_schedule(50_000, "new")
    Schedule(epochs=10, batch_size=256, lr=0.4)

    Args:
        images: how many there are; None if unknown.
        trunk: learns from nothing, is tuned, or is frozen below a head that learns.
        batch_size: one that the user has chosen.
        known: what is used instead for a new trunk on a data set that we know.
    """
    if trunk == "frozen":
        count = images or 50_000
        size = batch_size or (64 if count >= 640 else 32)
        steps = min(max(30 * count / size, FEATURE_STEPS[0]), FEATURE_STEPS[1])
        epochs = max(round(steps * size / max(count, size)), 1)
        return Schedule(epochs, size, 0.1 * min(size / 64, 4))
    if known is not None or images is None:
        base = known or LARGE_SET
        epochs, size = base.epochs, batch_size or base.batch_size
        rate, usual = base.lr, base.batch_size
    else:
        size = batch_size or next(b for n, b in SIZES if images >= n)
        epochs = min(max(round(SEEN_FROM_NOTHING / images), 10), 60)
        rate, usual = LARGE_SET.lr, LARGE_SET.batch_size
    if trunk == "tuned":
        epochs, rate = 10, rate / 20
    return Schedule(epochs, size, rate * min(size / usual, 1))


SIZES = ((16_000, 256), (4000, 128), (0, 64))
"""Batch sizes from so many images on."""
