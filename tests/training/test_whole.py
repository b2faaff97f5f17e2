"""Time and size of the whole network: trunk and head, dense, compact and linear."""

import pytest
import torch
from torch import nn

from blockout.compact import to_branches
from blockout.models import Head, ImageClassifier, SmallInception
from blockout.runs.documents import NetworkTimes, WholeNetwork
from blockout.training import whole
from blockout.training.compaction import compact_classifier
from blockout.training.whole import whole_network


class Flat(nn.Module):
    """A trunk without batch normalisation."""

    def forward(self, x):
        return x.mean((2, 3)).repeat(1, 8)


def settled(trunk: nn.Module, features: int) -> ImageClassifier:
    """Twelve of the hidden nodes in each of two clusters, and two classes in each."""
    torch.manual_seed(0)
    head = Head(features, 4, nodes=24, clusters=2)
    for memberships in (head.fc2.inputs, head.fc2.outputs, head.classifier.outputs):
        halves = torch.eye(2).repeat_interleave(memberships.nodes // 2, 0)
        memberships.logits.data.copy_(400 * halves - 200)
    return ImageClassifier(trunk, head).eval()


@pytest.fixture
def called(monkeypatch):
    """What each network gives; the times are the places of the calls in milliseconds."""
    outputs = []

    def in_turns(runs, **_):
        outputs.append([run() for run in runs])
        return [[1e-3 * place] for place in range(1, len(runs) + 1)]

    monkeypatch.setattr(whole, "in_turns", in_turns)
    return outputs


def test_every_time_belongs_to_the_network_that_it_names(called):
    torch.manual_seed(0)
    trunk = SmallInception(0.1, True)
    model = settled(trunk, trunk.features)
    small = compact_classifier(model, 0.5, 8)
    small.head.classifier.register_forward_hook(lambda _, __, y: y + 100)  # to tell it apart
    times = whole_network(model, small, 28).times
    assert [(row.batch_size, row.folded) for row in times] == [
        *((1, False), (8, False), (1, True), (8, True))
    ]
    for row, (dense, compact, linear, dense_head, compact_head) in zip(times, called, strict=True):
        assert (row.dense, row.compact, row.linear) == pytest.approx((1, 2, 3))
        assert (row.dense_head, row.compact_head) == pytest.approx((4, 5))
        assert len(dense) == row.batch_size and dense.std() > 0.01
        for same in (dense_head, compact - 100, compact_head - 100):  # the cut loses nothing
            torch.testing.assert_close(dense, same, atol=1e-5, rtol=1e-4)
        assert linear.shape == dense.shape and not torch.allclose(linear, dense)


def test_the_trunk_of_the_run_stays_as_it_is_and_is_folded_in_the_second_half(called):
    trunk = SmallInception(0.1, True)
    model = settled(trunk, trunk.features)
    before = [type(module) for module in model.modules()]
    kinds = []

    def noting(network, images):
        kinds.append({type(module) for module in network.modules()})
        return lambda: images

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "_call", noting)
        whole_network(model, compact_classifier(model, 0.5, 8), 28)
    whole_ones = [kinds[place] for place in range(20) if place % 5 < 3]
    assert [nn.BatchNorm2d in kind for kind in whole_ones] == [True] * 6 + [False] * 6
    assert [type(module) for module in model.modules()] == before


def test_the_size_counts_trunk_and_head(called):
    model = settled(Flat(), 24)
    small = compact_classifier(model, 0.5, 8)
    found = whole_network(model, small, 28)
    norms = 2 * (4 * 24 * 4 + 8)  # four values per node and a count of batches
    assert found.bytes[0] == 4 * (24 * 24 + 24 * 24 + 24 * 4 + 4) + norms
    assert found.bytes[2] == 4 * (24 * 4 + 4)
    head = to_branches(model.head, 0.5, batch_size=8)
    assert found.bytes[1] == sum(value.nbytes for value in head.state_dict().values())
    assert len(found.times) == 2, "there is nothing to fold"
    assert "Exports" not in whole.meaning(found)


def test_what_is_said_of_the_whole_network_counts_its_trunk():
    """6 of 10 ms are the trunk's; a head that is twice as fast saves 2 ms of the 10."""
    plain = NetworkTimes(8, 10.0, 8.1, 6.5, 4.0, 2.0)
    lean = NetworkTimes(8, 6.5, 5.4, 4.0, 4.0, 2.0, folded=True)
    found = WholeNetwork((1000, 600, 500), (plain, lean))
    assert whole.gain(found) == (
        "The head takes 40 % of the whole network's time for 8 images, so a compact head makes "
        "the whole 1.25 times as fast, at 60% of its size."
    )
    assert whole.meaning(found).endswith("convolutions: 1.50 times as fast in torch.")


def test_a_compact_network_that_is_the_dense_one_is_not_called_faster():
    """Its times differ by chance."""
    found = WholeNetwork((1000, 1000, 500), (NetworkTimes(8, 10.0, 8.1, 6.5, 4.0, 3.0),))
    assert whole.meaning(found) == (
        "Nothing could be left out, so the compact network is the dense one."
    )
