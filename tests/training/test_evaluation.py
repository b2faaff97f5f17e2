"""Evaluation: by loops, by several processes as by one, and without a trace."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockout.training.evaluation import average_statistics, evaluate, measure_statistics
from blockout.training.processes import Processes

from .conftest import make_images, make_net


class Together(Processes):
    """One of several threads that add up tensors as processes do."""

    def __init__(self, rank: int, parts: list, meet: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.world, self.parts, self.meet = rank, len(parts), parts, meet

    def all_reduce(self, tensor, op):
        self.parts[self.rank] = tensor
        self.meet.wait(timeout=60)
        total = torch.stack(self.parts).sum(0)
        self.meet.wait(timeout=60)
        return total / self.world if op == "mean" else total


def together(world: int, work) -> list:
    """What ``work`` gives each of several processes."""
    parts, meet = [None] * world, threading.Barrier(world)
    processes = [Together(rank, parts, meet) for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(work, processes))


def test_scores_are_those_of_the_images_one_by_one():
    images, net = make_images(), make_net().eval()
    found = evaluate(net.train(), images.test, batch_size=8)
    assert net.training
    rows = []
    for x, y in images.test.batches(1, train=False):
        logits = net.eval()(x)[0].detach()
        order = logits.argsort(descending=True)
        loss = F.cross_entropy(logits, y[0]).item()
        rows.append((order.tolist(), logits.softmax(0)[order], order[0] == y[0], loss))
    classes, probabilities, right, losses = zip(*rows, strict=True)
    assert found.classes.tolist() == list(classes)
    torch.testing.assert_close(found.probabilities, torch.stack(probabilities))
    assert found.accuracy == pytest.approx(100 * sum(map(bool, right)) / 21)
    assert found.loss == pytest.approx(sum(losses) / 21) and found.top5 == 100


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_find_what_one_finds(world):
    """21 images in batches of 8: the last batch cannot be dealt out evenly."""
    images, net = make_images(), make_net()
    alone = evaluate(net, images.test, batch_size=8)

    def work(processes):
        return evaluate(copy.deepcopy(net), images.test, batch_size=8, processes=processes)

    for found in together(world, work):
        assert torch.equal(found.classes, alone.classes)
        assert found.accuracy == alone.accuracy
        assert found.loss == pytest.approx(alone.loss, rel=1e-6)


def test_statistics_are_those_of_all_batches_alike_and_what_is_frozen_keeps_its_own():
    batches = [torch.randn(6, 3) + shift for shift in (0.0, 1.0, 5.0)]
    learns, frozen = nn.BatchNorm1d(3), nn.BatchNorm1d(3).requires_grad_(False)
    assert measure_statistics(nn.Sequential(learns, frozen), batches)
    torch.testing.assert_close(learns.running_mean, torch.stack(batches).mean(1).mean(0))
    torch.testing.assert_close(learns.running_var, torch.stack(batches).var(1).mean(0))
    assert (learns.momentum, learns.training) == (0.1, True)
    assert frozen.running_mean.tolist() == [0, 0, 0]
    assert not measure_statistics(frozen, batches)


def test_processes_end_with_the_average_of_their_statistics():
    def work(processes):
        norm = nn.BatchNorm1d(2)
        norm.running_mean.fill_(processes.rank)
        norm.running_var.fill_(3.0 + 2 * processes.rank)
        average_statistics(norm, processes)
        return norm.running_mean.tolist(), norm.running_var.tolist()

    assert together(2, work) == [([0.5, 0.5], [4.0, 4.0])] * 2
