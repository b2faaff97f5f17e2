"""The guide asks what narrowing costs on a hold-out, and widens where that is too much."""

import copy
import math

import pytest
import torch

from blockout import Guidance, Guide
from blockout.guidance.cost import Cost

from .test_guide import make_net


def narrowed_guide(max_loss: float = 1.0) -> Guide:
    """Settled since step 27 of 60; at step 40; the wide network had 80 % on a hold-out."""
    torch.manual_seed(0)
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    guidance = Guidance(budget=1, class_budget=1, max_loss=max_loss)
    guide = Guide(make_net(), 60, guidance, similarity=groups)
    for _ in range(5):
        guide.step()
    guide.hear(80, 10_000)
    for _ in range(35):
        guide.step()
    assert guide.settled
    return guide


def clusters_each(guide: Guide) -> list[float]:
    """Of the nodes of every set, on average."""
    return [float((m.probabilities > 0).float().sum(1).mean()) for m in guide.sets]


def test_where_narrowing_costs_too_much_hidden_nodes_keep_more_clusters():
    guide = narrowed_guide()
    settled = [m.probabilities.detach().clone() for m in guide.sets]
    before = [p > 0 for p in settled]
    guide.hear(75, 10_000)
    assert guide.settled, "one look may be chance"
    guide.hear(75, 10_000)
    assert not guide.settled and guide.widened_at == 40
    for step in range(1, 19):  # P moves there in a straight line
        guide.step()
        moved = [m.probabilities.detach() - p for m, p in zip(guide.sets, settled, strict=True)]
        assert max(float(m.abs().max()) for m in moved) == pytest.approx(step / 18, abs=1e-5)
    assert guide.settled
    first, second, classes = clusters_each(guide)
    assert 1.5 <= first < 2 and 1.5 <= second < 2 and classes == 1
    after = [m.probabilities > 0 for m in guide.sets]
    assert all((now | ~was).all() for now, was in zip(after, before, strict=True))
    assert "narrowing cost 5.0 points on the hold-out, so from step 40 on" in guide.summary()


def test_it_widens_again_until_every_node_is_everywhere():
    torch.manual_seed(0)
    guidance = Guidance(budget=1, narrow_from=0, narrow_until=0, narrowing=0.02)
    guide = Guide(make_net(), 100, guidance, similarity=[0, 0, 1, 1, 2, 2, 3, 3])
    guide.hear(90, 10_000)
    found = []
    for _ in range(80):
        guide.step()
        guide.hear(50, 10_000)
        found.append(guide.budget)
    assert sorted(set(found)) == [1, 1.5, 2.25, 3.375, 4]
    assert clusters_each(guide)[:2] == [4, 4] and guide.settled


@pytest.mark.parametrize(
    ("accuracy", "examples", "max_loss", "widens"),
    [
        (76, 10_000, 1.0, True),
        (79.5, 10_000, 1.0, False),  # within max_loss
        (76, 10_000, 5.0, False),
        (0, 10_000, math.inf, False),
        (76, 100, 1.0, False),  # two standard errors of 100 images are 8 points
        (85, 10_000, 0.0, False),
    ],
)
def test_it_widens_only_for_more_than_the_allowed_loss_and_chance(
    accuracy, examples, max_loss, widens
):
    guide = narrowed_guide(max_loss)
    for _ in range(3):
        guide.hear(accuracy, examples)
    assert (guide.widened_at is not None) == widens


def test_it_does_not_widen_where_nodes_could_no_longer_learn_to_use_it():
    guide = narrowed_guide()
    for _ in range(12):
        guide.step()
    for _ in range(3):
        guide.hear(10, 10_000)
    assert guide.widened_at is None and guide.settled


def test_a_guide_that_never_heard_of_the_wide_network_asks_nothing():
    guide = Guide(make_net(), 20, similarity=[0, 0, 1, 1, 2, 2, 3, 3])
    for _ in range(15):
        guide.step()
    for _ in range(3):
        guide.hear(1, 10_000)
    assert guide.widened_at is None


@pytest.mark.parametrize("stop", [41, 45, 59])
def test_a_widening_goes_on_where_it_stopped(stop):
    guide = narrowed_guide()
    for _ in range(2):
        guide.hear(75, 10_000)
    for _ in range(stop - 40):
        guide.step()
    later = Guide(make_net(), 60, guide.guidance, similarity=[0, 0, 1, 1, 2, 2, 3, 3])
    later.load_state_dict(copy.deepcopy(guide.state_dict()))
    guide.step()
    later.step()
    assert later.summary() == guide.summary()
    earlier = Guide(make_net(), 60, guide.guidance, similarity=[0, 0, 1, 1, 2, 2, 3, 3])
    new = ("cost", "budget", "widened_at", "widened_for", "origins")
    earlier.load_state_dict({k: v for k, v in guide.state_dict().items() if k not in new})
    assert earlier.done == guide.done and earlier.budget == 1
    for a, b in zip(guide.sets, later.sets, strict=True):
        assert torch.equal(a.probabilities, b.probabilities)


def test_one_image_of_a_tiny_hold_out_is_chance_even_where_all_were_right():
    cost = Cost(max_loss=1.0)
    cost.wide(100.0)
    assert not any(cost.is_too_high(80.0, examples=5) for _ in range(4))
    large = Cost(max_loss=1.0)
    large.wide(100.0)
    assert [large.is_too_high(80.0, examples=500) for _ in range(2)] == [False, True]
