"""When the guide narrows a network, to what, and what it says."""

import contextlib
import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockout import (
    BlockoutLinear,
    Guidance,
    Guide,
    Memberships,
    Structure,
    parameter_groups,
)
from blockout.guidance import GuideWarning, make_certain
from blockout.layers import memberships_of


def make_net(classes: int = 8, clusters: int = 4, hidden: int = 24) -> nn.Sequential:
    first = BlockoutLinear(12, hidden, clusters)
    return nn.Sequential(
        first, nn.ReLU(), BlockoutLinear(hidden, classes, clusters, inputs=first.outputs)
    )


def run(net: nn.Module, guide: Guide, steps: int, *, classes: int = 8, groups: int = 4, seed=0):
    """Training on classes of which neighbours (0 1, 2 3, ...) have similar centres."""
    optimizer = torch.optim.SGD(parameter_groups(net, 0.05), momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(groups, 12, generator=generator) * 3
    fine = torch.randn(classes, 12, generator=generator)
    centres = fine + coarse.repeat_interleave(classes // groups, 0)
    seen = []
    for _ in range(steps):
        y = torch.randint(classes, (64,), generator=generator)
        x = centres[y] + 0.5 * torch.randn(64, 12, generator=generator)
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        guide.step(y)
        seen.append([m.probabilities.detach().clone() for m in guide.sets])
    return seen


# --- waiting --------------------------------------------------------------------------------------


def test_the_network_is_whole_until_classes_are_told_apart_then_narrows_in_a_straight_line():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 100)
    seen = run(net, guide, 100)
    begun = guide.begun
    assert begun is not None and begun >= 15 and not guide.whole
    assert all((p == 1).all() for step in seen[: begun - 1] for p in step)
    for m, p in zip(guide.sets, seen[begun + 19], strict=True):
        share = 20 / 30
        torch.testing.assert_close(p, 1 + share * (guide.codes[m] - 1), atol=1e-5, rtol=0)
    assert all(torch.equal(p, guide.codes[m]) for m, p in zip(guide.sets, seen[-1], strict=True))


def test_it_waits_longer_if_the_network_learns_later():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 100)
    for _ in range(30):  # nothing can be learned from these
        F.cross_entropy(net(torch.randn(64, 12)), y := torch.randint(8, (64,))).backward()
        net.zero_grad()
        guide.step(y)
    assert guide.begun is None and "has waited for 30 of 100 steps" in guide.summary()
    run(net, guide, 60)
    assert guide.begun is not None and guide.begun > 30 and not guide.whole


def test_a_network_that_takes_all_classes_for_one_is_not_believed_however_sure_it_is():
    net = make_net()
    guide = Guide(net, 100)
    always = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    always[:, 3] = 2
    for _ in range(44):
        guide._predicted = always
        guide.step(torch.arange(8))
    assert guide.reliability > 0.99 and guide.told_apart == 1 / 8 and guide.begun is None


def test_what_cannot_be_learned_leaves_the_network_whole_and_says_so():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 60)
    for step in range(1, 61):
        net(torch.randn(64, 12))
        warned = (
            pytest.warns(GuideWarning, match="left the network whole at step 27 of 60")
            if step == 27
            else contextlib.nullcontext()
        )
        with warned:
            guide.step(torch.randint(8, (64,)))
    assert guide.settled and guide.whole
    assert all((m.probabilities == 1).all() for m in guide.sets)
    assert "known groups" in guide.summary()


def test_starting_keeps_what_the_network_says():
    torch.manual_seed(0)
    net = make_net().double()
    x = torch.randn(5, 12).double()
    before = net.eval()(x)
    guide = Guide(net, 60, similarity=[0, 0, 1, 1, 2, 2, 3, 3])
    guide.step()
    assert all((m.probabilities == 1).all() for m in guide.sets)
    torch.testing.assert_close(net(x), before)


def test_a_summary_says_when_and_what_is_left():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 60, Guidance(budget=1, class_budget=1), similarity=[0, 0, 1, 1, 2, 2, 3, 3])
    run(net, guide, 60)
    assert guide.summary() == (
        "narrowed from step 9 to step 27 of 60: 8 classes in 4 clusters of 2 to 2 classes, "
        "25% of the connections left"
    )


# --- budget ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.1, 1.0, 1.5, 40.0])
@pytest.mark.parametrize("affinity", [False, True])
def test_the_budget_is_met_and_no_class_is_left_without_a_cluster(budget, affinity):
    torch.manual_seed(0)
    net = make_net()
    guidance = Guidance(budget=budget, class_budget=budget, affinity=affinity)
    groups = [0, 0, 1, 1, 2, 2, 3, 3] if affinity else None
    guide = Guide(net, 40, guidance, similarity=groups)
    seen = run(net, guide, 40)
    assert guide.settled
    for p in seen[-1][:-1]:
        assert float(p.sum()) == min(round(budget * len(p)), 4 * len(p))
    if affinity:
        assert seen[-1][-1].sum(1).min() >= 1


# --- affinity -------------------------------------------------------------------------------------


def pairs_together(net: nn.Module) -> float:
    """Share of the pairs (0 1), (2 3), ... that have equal memberships."""
    p = list(memberships_of(net).values())[-1].probabilities.detach()
    return float((p[0::2] - p[1::2]).abs().amax(1).lt(0.5).float().mean())


def mean_pairs_together(**guidance) -> float:
    together = []
    for seed in range(3):
        torch.manual_seed(seed)
        net = make_net()
        run(net, Guide(net, 100, Guidance(class_budget=1, **guidance)), 100, seed=seed)
        together.append(pairs_together(net))
    return sum(together) / 3


def test_classes_that_the_network_takes_for_each_other_get_the_same_clusters():
    assert mean_pairs_together() > 0.9
    assert mean_pairs_together(affinity=False) < 0.9


@pytest.mark.parametrize("as_table", [False, True])
def test_a_given_taxonomy_decides_against_the_predictions(as_table):
    groups = [0, 1, 2, 3, 0, 1, 2, 3]  # classes 0 and 4 together, though 0 and 1 look alike
    table = torch.tensor(groups)[:, None] == torch.tensor(groups)[None]
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(
        net, 60, Guidance(class_budget=1), similarity=table.double() if as_table else groups
    )
    run(net, guide, 60)
    p = guide.sets[-1].probabilities
    assert torch.equal(p[:4], p[4:])
    assert p.unique(dim=0).shape[0] == 4


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_predictions_of_a_recomputed_or_evaluated_forward_are_not_counted(use_reentrant):
    net = make_net()
    guide = Guide(net, 10)
    x = torch.randn(5, 12, requires_grad=True)
    net.eval()(x)
    net.train()
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):  # recomputes the last layer, too
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=use_reentrant).sum().backward()
    guide.step(torch.arange(5))  # raises where the number of examples differs
    assert guide.measured is not None and guide.measured.counts.sum() == 5


# --- settling -------------------------------------------------------------------------------------


def test_once_settled_training_and_inference_see_the_same_structure_and_it_stays():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 80)
    seen = run(net, guide, 79)
    assert guide.settled and not guide.whole
    x = torch.randn(5, 12)
    torch.testing.assert_close(net.train()(x), net.eval()(x))
    for m in guide.sets:
        m.logits.data.mul_(1e-3)  # as momentum and decay of a long training might
    guide.step()
    assert all(torch.equal(m.probabilities, p) for m, p in zip(guide.sets, seen[-1], strict=True))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_training_settles_as_well_as_any(steps):
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, steps, similarity=[0, 0, 1, 1, 2, 2, 3, 3])
    seen = run(net, guide, steps)
    assert guide.settled and set(seen[-1][-1].unique().tolist()) == {0.0, 1.0}
    assert (seen[-1][-1].sum(1) >= 1).all()


def test_a_guide_that_is_closed_or_continues_settled_looks_at_nothing_more():
    net = make_net()
    guide = Guide(net, 10)
    guide.close()
    net(torch.randn(4, 12))
    assert guide._predicted is None
    later = Guide(net, 10)
    done = {"done": 10, "begun": 2, "codes": [torch.ones_like(m.logits) for m in later.sets]}
    later.load_state_dict({**guide.state_dict(), **done})
    assert not net[2]._forward_hooks


def test_a_guide_lets_go_of_the_model_when_training_ends():
    torch.manual_seed(0)
    net = make_net()
    run(net, Guide(net, 40, similarity=[0, 0, 1, 1, 2, 2, 3, 3]), 40)
    gradients = []
    for model in (net, copy.deepcopy(net)):  # a copy of a parameter has no hooks
        model.zero_grad()
        model(torch.ones(2, 12)).sum().backward()
        gradients.append(model[0].weight.grad)
    assert torch.equal(*gradients)


def test_hidden_nodes_may_go_on_being_drawn_within_their_clusters():
    torch.manual_seed(0)
    net = make_net(hidden=60)
    guidance = Guidance(budget=1.3, class_budget=1.5, draw_on=0.5, steady=False)
    guide = Guide(net, 60, guidance, similarity=[0, 0, 1, 1, 2, 2, 3, 3])
    seen = run(net, guide, 60)
    assert all((p == 0.5).all() for p in seen[5])
    hidden, classes = seen[-2][1], seen[-2][-1]
    assert set(hidden.unique().tolist()) == {0.0, 0.5}
    assert set(classes.unique().tolist()) == {0.0, 1.0}
    assert float((hidden > 0).sum()) == 1.3 * 60
    assert torch.equal(seen[-1][1], hidden * 2), "the last step ends the drawing"


@pytest.mark.parametrize("p", [0.2, 0.3, 0.7])
def test_what_is_drawn_becomes_certain_and_inference_stays(p):
    torch.manual_seed(0)
    net = make_net()
    for m in memberships_of(net).values():
        code = (torch.rand(m.nodes, m.clusters) < 0.5).float()
        m.put(p * code if m.nodes > 8 else code)
    x = torch.randn(5, 12)
    before, structure = net.eval()(x), Structure.from_model(net, threshold=0.1)
    make_certain(net)
    torch.testing.assert_close(net(x), before)
    assert all(
        set(m.probabilities.unique().tolist()) <= {0.0, 1.0} for m in memberships_of(net).values()
    )
    assert Structure.from_model(net).total == structure.total


def test_the_fewer_classes_a_frozen_trunk_has_the_more_noise():
    found = [Guidance().resolved(frozen=True, classes=n).draw_on for n in (2, 30, 50, 80, 1000)]
    assert found == [0.3, 0.3, 0.4, 0.5, 0.5]
    assert Guidance().resolved(frozen=False, classes=2).draw_on == 1
    assert Guidance(draw_on=0.7).resolved(frozen=True, classes=2).draw_on == 0.7


def test_memberships_of_several_probabilities_are_not_made_certain():
    net = make_net()
    for m in memberships_of(net).values():
        m.put(torch.rand(m.nodes, m.clusters) * 0.5 + 0.2)
    before = copy.deepcopy(net.state_dict())
    make_certain(net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_weights_are_left_alone_unless_steady():
    nets = []
    for steady in (True, False):
        torch.manual_seed(0)
        net = make_net()
        guide = Guide(net, 20, Guidance(steady=steady), similarity=[0, 0, 1, 1, 2, 2, 3, 3])
        for _ in range(10):
            guide.step()
        nets.append(net)
    grown = nets[0][2].weight.detach().norm() / nets[1][2].weight.detach().norm()
    assert grown > 2, "masks have become thinner"


def test_a_guide_in_a_compiled_graph_sees_the_predictions_of_every_part_of_a_step():
    net = make_net()
    guide = Guide(net, 100)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        parts = [compiled(torch.randn(8, 12)).softmax(1) for _ in range(3)]
        assert guide._predicted is not None
        torch.testing.assert_close(guide._predicted, torch.cat(parts))
        guide.step(torch.arange(24) % 8)
        assert guide._predicted is None
    net.eval()
    compiled(torch.randn(8, 12))
    assert guide._predicted is None


# --- continuing, and bad input --------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 8, 9, 10, 17, 26, 27, 28, 50])
def test_a_training_that_continues_from_its_state_ends_the_same(stop):
    def steps(net, guide, optimizer, first, last):
        for n in range(first, last):
            generator = torch.Generator().manual_seed(n)
            torch.manual_seed(n)
            y = torch.arange(32) % 8
            x = 0.5 * torch.randn(32, 12, generator=generator) + 3 * torch.eye(12)[y]
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            guide.step(y)

    def begin():
        torch.manual_seed(0)
        net = make_net()
        optimizer = torch.optim.SGD(parameter_groups(net, 0.1), momentum=0.9)
        return net, Guide(net, 60), optimizer

    whole, guide, optimizer = begin()
    steps(whole, guide, optimizer, 0, 60)
    assert guide.begun == 9 and not guide.whole
    net, guide, optimizer = begin()
    steps(net, guide, optimizer, 0, stop)
    saved = copy.deepcopy((net.state_dict(), guide.state_dict(), optimizer.state_dict()))
    net, guide, optimizer = begin()
    for part, state in zip((net, guide, optimizer), saved, strict=True):
        part.load_state_dict(state)
    steps(net, guide, optimizer, stop, 60)
    for a, b in zip(whole.state_dict().values(), net.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "budget must be a positive number of clusters, got 0"),
        ({"class_budget": math.inf}, "class_budget must be a positive"),
        ({"narrow_from": 0.6}, "in this order and between 0 and 1, got 0.6 and 0.45"),
        ({"narrowing": 2}, "narrowing must lie between 0 and 1, got 2"),
        ({"draw_on": 0}, "draw_on must lie above 0 and up to 1, got 0"),
        ({"max_loss": -1}, "max_loss must be at least 0 points, got -1"),
        ({"max_loss": math.nan}, "max_loss must be at least 0 points, got nan"),
    ],
)
def test_wrong_guidance_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Guidance(**arguments)


def test_a_guide_says_what_it_cannot_work_with():
    net = make_net()
    with pytest.raises(ValueError, match="no learned memberships"):
        Guide(nn.Linear(3, 2), 10)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Guide(net, 0)
    with pytest.raises(ValueError, match="one known group per class \\(8\\)"):
        Guide(net, 10, similarity=[0, 1, 2])
    with pytest.raises(ValueError, match="finite"):
        Guide(net, 10, similarity=torch.full((8, 8), math.nan))
    guide = Guide(net, 10)
    net(torch.randn(4, 12))
    with pytest.raises(ValueError, match="labels of the 4 examples since the last step, got none"):
        guide.step()
    net(torch.randn(4, 12))
    with pytest.raises(ValueError, match="between 0 and 7, got 0 to 8"):
        guide.step(torch.tensor([0, 8, 1, 2]))


def test_settle_refuses_what_is_no_assignment():
    m = Memberships(3, 2)
    with pytest.raises(ValueError, match="must be 0 or 1"):
        m.settle(torch.full((3, 2), 0.5))
    with pytest.raises(ValueError, match=r"shape \(3, 2\), got \(2, 2\)"):
        m.settle(torch.ones(2, 2))
