import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from blockout.data import DataError
from blockout.data.folders import list_folder
from blockout.data.images import centre_square, normalise
from blockout.data.streams import StreamSplit
from blockout.data.tables import Rows
from blockout.data.unreadable import unreadable

MEAN, STD = (0.2, 0.5, 0.7), (0.1, 0.3, 0.25)


@pytest.fixture
def rows(image_folder: Callable[..., Path]) -> Rows:
    return list_folder(image_folder({"a": 7, "b": 6}, width=50, height=40)).open().rows


def split_of(rows: Rows, workers: int = 0) -> StreamSplit:
    return StreamSplit(rows, torch.arange(len(rows)), 24, MEAN, STD, workers)


def test_evaluation_sees_the_centre_square_of_every_image_in_order(rows: Rows) -> None:
    split = split_of(rows)
    images, labels = zip(*split.batches(5, train=False), strict=True)
    squares = np.stack([centre_square(rows.image(i), 24) for i in range(13)])
    assert torch.equal(torch.cat(images), normalise(torch.from_numpy(squares), MEAN, STD))
    assert torch.equal(torch.cat(labels), torch.arange(13))
    assert np.array_equal(split.images_at([3, 1]), squares[[3, 1]])
    assert split.images_at([]).shape == (0, 24, 24, 3)
    assert images[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_may_start_anywhere_and_be_shared_by_processes(rows: Rows, workers: int) -> None:
    whole = list(split_of(rows).batches(4, train=True, seed=5, epoch=2))
    assert len(whole) == 3 and len(torch.cat([y for _, y in whole]).unique()) == 12
    split = split_of(rows, workers)
    parts = [
        list(split.batches(4, train=True, seed=5, epoch=2, start=1, rank=r, world=2))
        for r in range(2)
    ]
    for (images, labels), *halves in zip(whole[1:], *parts, strict=True):
        assert torch.equal(torch.cat([x for x, _ in halves]), images)
        assert torch.equal(torch.cat([y for _, y in halves]), labels)


def test_one_image_is_cropped_otherwise_at_every_place_and_in_every_epoch(rows: Rows) -> None:
    split = split_of(rows.take(np.zeros(13, np.int64)))
    crops = [
        x for e in (0, 1) for batch, _ in split.batches(13, train=True, epoch=e) for x in batch
    ]
    assert len({crop.numpy().tobytes() for crop in crops}) == 26


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_leaves_the_global_random_state_alone(rows: Rows, workers: int) -> None:
    state = torch.get_rng_state()
    assert len(list(split_of(rows, workers).batches(4, train=True))) == 3
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_named_without_a_traceback_of_the_worker(
    rows: Rows, tmp_path: Path, workers: int
) -> None:
    (tmp_path / "set" / "b" / "002.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(DataError) as caught:
        list(split_of(rows, workers).batches(4, train=False))
    assert "002.png" in str(caught.value) and "Traceback" not in str(caught.value)
    found = unreadable(rows, workers, chunk=4)
    assert [place for place, _ in found] == [9] and "002.png" in found[0][1]


def test_a_split_holds_where_its_images_are_and_not_what_they_show(
    image_folder: Callable[..., Path],
) -> None:
    folders = [image_folder({"a": 4, "b": 4}, f"set{side}", side, side) for side in (8, 400)]
    bytes_on_disk = [(folder / "a" / "000.png").stat().st_size for folder in folders]
    small, large = (len(pickle.dumps(split_of(list_folder(f).open().rows))) for f in folders)
    assert bytes_on_disk[1] > 100_000 + bytes_on_disk[0]
    assert abs(large - small) < 1000
