"""What the guide sees of classes, and whether it believes it."""

import pytest
import torch

from blockout.guidance.class_codes import similarity_of
from blockout.guidance.similarity import SimilarityOfClasses


def filled(rows: list[torch.Tensor], steps: int = 100_000) -> SimilarityOfClasses:
    """One table of predictions per step; class c is predicted as row c."""
    seen = SimilarityOfClasses(len(rows[0]), steps)
    for table in rows:
        seen.add(table, torch.arange(len(table)))
    return seen


def test_the_table_is_that_of_the_mean_roots_of_predictions_per_class():
    torch.manual_seed(0)
    seen = SimilarityOfClasses(5, 100_000)  # so long that nothing is forgotten within these steps
    kept = []
    for _ in range(6):
        p, y = torch.rand(16, 5).softmax(1), torch.randint(5, (16,))
        kept.append((p, y))
        seen.add(p, y)
    p, y = (torch.cat(parts) for parts in zip(*kept, strict=True))
    means = torch.stack([p[y == c].sqrt().mean(0) for c in range(5)])
    torch.testing.assert_close(seen.table(), similarity_of(means), atol=1e-3, rtol=0)


def test_predictions_of_long_ago_are_forgotten():
    before, after = torch.eye(4), torch.eye(4)[[1, 0, 3, 2]]
    seen = filled([before] * 5 + [after] * 40, steps=40)
    assert seen.sums.sum(0).argmax(1).tolist() == [1, 0, 3, 2]


def test_chance_is_not_relied_on_and_what_repeats_is():
    torch.manual_seed(0)
    truth = torch.randn(12, 12)

    def noisy(noise: float) -> list[torch.Tensor]:
        return [(truth * (1 - noise) + 3 * noise * torch.randn(12, 12)).softmax(1) for _ in "12"]

    assert filled(noisy(0.0)).reliability() == pytest.approx(1)
    assert filled(noisy(0.05)).reliability() > 0.8
    assert filled(noisy(1.0)).reliability() < 0.5
    assert filled([truth.softmax(1)] * 1).reliability() == 0, "one half has seen nothing"


def test_reliability_is_the_correlation_of_both_halves_at_the_length_of_both():
    torch.manual_seed(1)
    one, two = torch.randn(6, 6).softmax(1), torch.randn(6, 6).softmax(1)
    beside = ~torch.eye(6, dtype=torch.bool)
    halves = torch.stack([similarity_of(p.sqrt())[beside] for p in (one, two)])
    r = float(torch.corrcoef(halves)[0, 1])
    assert filled([one, two]).reliability() == pytest.approx(max(2 * r / (1 + r), 0), abs=1e-4)


def test_fewer_than_four_classes_have_nothing_to_rely_on():
    assert filled([torch.rand(3, 3), torch.rand(3, 3)]).reliability() == 1


def test_classes_are_told_apart_if_most_of_their_images_are():
    p = torch.tensor([[0.6, 0.4, 0, 0], [0.9, 0.1, 0, 0], [0, 0, 0.8, 0.2], [0, 0, 0.4, 0.6]])
    assert filled([p]).told_apart() == 0.75


def test_a_state_that_is_loaded_goes_on_as_if_it_had_never_been_left():
    torch.manual_seed(0)
    tables = [torch.rand(4, 4) for _ in range(5)]
    whole, first, second = filled(tables, 50), filled(tables[:3], 50), SimilarityOfClasses(4, 50)
    second.load_state_dict(first.state_dict())
    for table in tables[3:]:
        second.add(table, torch.arange(4))
    assert torch.equal(whole.sums, second.sums) and torch.equal(whole.counts, second.counts)
