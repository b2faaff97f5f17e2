import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from blockout.data.images import normalise
from blockout.data.splits import MemorySplit, shifted_and_mirrored

MEAN, STD = (0.2, 0.5, 0.7), (0.1, 0.3, 0.25)


def split_of(count: int, size: int = 16, spare: int = 5) -> MemorySplit:
    """Random images; every other one from the end is the split's, so rows differ from places."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(
        0, 256, (2 * count + spare, size, size, 3), dtype=torch.uint8, generator=generator
    )
    rows = torch.arange(2 * count + spare).flip(0)[::2][:count]
    return MemorySplit(images, rows, torch.arange(count) * 3, MEAN, STD)


def joined(batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def same(one: list[tuple[Tensor, Tensor]], other: list[tuple[Tensor, Tensor]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, other, strict=True)
    )


def test_evaluation_gives_every_image_once_in_order_and_unchanged() -> None:
    split = split_of(23)
    images, labels = joined(list(split.batches(10, train=False)))
    assert torch.equal(images, normalise(split._images[split._rows], MEAN, STD))
    assert torch.equal(labels, split.labels)
    assert torch.equal(split.images_at([4, 2]), split._images[split._rows[[4, 2]]])


def test_batches_lie_in_channels_last_memory() -> None:
    split = split_of(12)
    for train in (True, False):
        images, labels = next(split.batches(4, train=train))
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert images.dtype == torch.float32 and labels.dtype == torch.int64


def test_training_gives_every_image_once_an_epoch_in_a_new_order_each_time() -> None:
    split = split_of(40)
    orders = [joined(list(split.batches(8, train=True, epoch=e)))[1].tolist() for e in range(3)]
    assert all(sorted(order) == split.labels.tolist() for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert orders[0] != split.labels.tolist()


def test_order_and_augmentation_depend_on_seed_and_epoch_and_nothing_else() -> None:
    split = split_of(20)
    first = list(split.batches(5, train=True, seed=1, epoch=2))
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002 (the global state is what is tested)
    state = torch.get_rng_state()
    assert same(list(split.batches(5, train=True, seed=1, epoch=2)), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not same(list(split.batches(5, train=True, seed=2, epoch=2)), first)
    assert not same(list(split.batches(5, train=True, seed=1, epoch=3)), first)


@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    start=st.integers(0, 6),
    world=st.integers(1, 4),
    train=st.booleans(),
    drop_last=st.sampled_from([None, True, False]),
)
def test_any_start_and_any_number_of_processes_see_what_one_whole_run_sees(
    count: int, batch_size: int, start: int, world: int, train: bool, drop_last: bool | None
) -> None:
    split = split_of(count, size=8)
    options = {"train": train, "seed": 3, "epoch": 1, "drop_last": drop_last}
    whole = list(split.batches(batch_size, **options))
    parts = [
        list(split.batches(batch_size, start=start, rank=r, world=world, **options))
        for r in range(world)
    ]
    assert same([joined(list(batch)) for batch in zip(*parts, strict=True)], whole[start:])
    assert len(whole) == split.batch_count(batch_size, train=train, drop_last=drop_last)
    sizes = [len(labels) for part in zip(*parts, strict=True) for _, labels in part]
    largest = [max(sizes[i : i + world]) for i in range(0, len(sizes), world)]
    smallest = [min(sizes[i : i + world]) for i in range(0, len(sizes), world)]
    assert all(a - b <= 1 for a, b in zip(largest, smallest, strict=True))


@pytest.mark.parametrize(
    ("count", "train", "drop_last", "sizes"),
    [
        (10, True, None, [4, 4]),
        (10, False, None, [4, 4, 2]),
        (10, True, False, [4, 4, 2]),
        (10, False, True, [4, 4]),
        (3, True, None, [3]),
        (0, True, None, []),
        (0, False, None, []),
    ],
)
def test_a_last_batch_that_is_not_full_is_left_out_in_training_only(
    count: int, train: bool, drop_last: bool | None, sizes: list[int]
) -> None:
    split = split_of(count)
    batches = list(split.batches(4, train=train, drop_last=drop_last))
    assert [len(labels) for _, labels in batches] == sizes
    assert split.batch_count(4, train=train, drop_last=drop_last) == len(sizes)


def test_the_augmentation_of_an_image_does_not_depend_on_the_batch_size() -> None:
    split = split_of(24)
    for a, b in itertools.pairwise(
        joined(list(split.batches(size, train=True))) for size in (3, 8, 24)
    ):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def test_a_window_is_a_slice_of_the_image_with_reflected_borders_then_mirrored() -> None:
    """Against numpy's padding and slicing, image by image, for every shift and both sides."""
    size, pad = 8, 1
    images = torch.randint(0, 256, (9, size, size, 3), dtype=torch.uint8)
    cases = list(itertools.product(range(-pad, pad + 1), range(-pad, pad + 1), (0, 1)))
    rows = torch.arange(len(cases)) % 9
    windows = shifted_and_mirrored(images, rows, torch.tensor(cases))
    padded = np.pad(images.numpy(), ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode="reflect")
    for window, row, (down, across, mirrored) in zip(windows, rows, cases, strict=True):
        top, left = pad + down, pad + across
        expected = padded[row, top : top + size, left : left + size]
        assert np.array_equal(window.numpy(), expected[:, ::-1] if mirrored else expected)


def test_training_shifts_by_up_to_an_eighth_and_mirrors_half() -> None:
    """One image whose pixels tell their place, seen 2,000 times."""
    size = 16
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    image = torch.stack([x, y, 0 * x], -1).to(torch.uint8)[None]
    rows = torch.zeros(2000, dtype=torch.int64)
    split = MemorySplit(image, rows, rows, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    images, _ = next(split.batches(2000, train=True))
    pixels = (images * 255).round().long()
    mirrored = pixels[:, 0, 8, 4] > pixels[:, 0, 8, 11]
    centre = torch.where(mirrored, 16 - 1 - 7, 7)
    across = pixels[:, 0, 8, 7] - centre
    down = pixels[:, 1, 8, 8] - 8
    for shift in (across, down):
        assert shift.unique().tolist() == [-2, -1, 0, 1, 2]
        # each of 5 shifts 400 times on average, deviation 17.9: 6 deviations
        assert shift.add(2).bincount().sub(400).abs().max() < 108
    assert abs(int(mirrored.sum()) - 1000) < 135  # deviation 22.4: 6 deviations
    assert abs(np.corrcoef(across, down)[0, 1]) < 0.134  # 6 / sqrt(2000)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"rank": 2, "world": 2}, {"rank": -1}])
def test_wrong_numbers_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1 and rank from 0"):
        split_of(4).batches(**{"batch_size": 2, "train": False, **wrong})
