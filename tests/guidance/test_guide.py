"""Budget, affinity and settling."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from blockout import BlockoutConv2d, BlockoutLinear, Guidance, Guide, Memberships, parameter_groups
from blockout.guidance.guide import settle, shift_to
from blockout.layers import memberships_of

HALFWAY = {"learn_from": 0.08, "budget_by": 0.45, "settle_at": 0.5, "group_at": 0.6}

# --- budget ---------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**31), nodes=st.integers(1, 9), clusters=st.integers(1, 5),
    share=st.floats(0.05, 0.95), dims=st.sampled_from([(0,), (1,), (0, 1)]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_shift_meets_its_total_and_keeps_the_order(seed, nodes, clusters, share, dims):
    torch.manual_seed(seed)
    logits = torch.randn(nodes, clusters, dtype=torch.float64)
    before = logits.clone()
    entries = math.prod((nodes, clusters)[d] for d in dims)
    shift_to(logits, share * entries, dims)
    sums = logits.sigmoid().sum(dims)
    torch.testing.assert_close(sums, torch.full_like(sums, share * entries), atol=1e-5, rtol=0)
    moved = (logits - before).amax(dims) - (logits - before).amin(dims)
    assert moved.abs().max() < 1e-12


def make_net(classes: int = 8, clusters: int = 4, hidden: int = 24) -> nn.Sequential:
    first = BlockoutLinear(12, hidden, clusters)
    return nn.Sequential(
        first, nn.ReLU(), BlockoutLinear(hidden, classes, clusters, inputs=first.outputs)
    )


def run(net: nn.Module, guide: Guide, steps: int, *, classes: int = 8, groups: int = 4, seed=0):
    """Training on classes of which neighbours (0 1, 2 3, ...) have similar centres."""
    optimizer = torch.optim.SGD(parameter_groups(net, 0.1, membership_scale=30), momentum=0.9)
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


@pytest.mark.parametrize("shift", ["all", "cluster", "both"])
def test_the_expected_clusters_a_node_fall_to_the_budget(shift):
    torch.manual_seed(0)
    net = make_net()
    times = {**HALFWAY, "settle_at": 1}
    guidance = Guidance(budget=1.5, class_budget=1.5, shift=shift, affinity=False, **times)
    seen = run(net, Guide(net, 100, guidance), 100)
    for before in seen[:8]:
        assert all((p == 0.5).all() for p in before)
    means = [p[0].sum(1).mean() for p in seen]
    assert means[8] > 1.9 and 1.6 < means[26] < 1.9
    for p in seen[-1][:2]:
        torch.testing.assert_close(p.sum(1).mean(), torch.tensor(1.5), atol=1e-3, rtol=0)
    if shift != "all":
        torch.testing.assert_close(
            seen[-1][0].sum(0), torch.full((4,), 1.5 * 12 / 4), atol=1e-2, rtol=0
        )


@pytest.mark.parametrize("shift", ["all", "cluster", "both"])
@pytest.mark.parametrize("budget", [0.01, 0.3, 1.0, 40.0])
@pytest.mark.parametrize("affinity", [False, True])
def test_no_class_is_left_without_a_cluster_whatever_the_budget(shift, budget, affinity):
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(
        net, 40, Guidance(budget=budget, class_budget=budget, shift=shift, affinity=affinity)
    )
    seen = run(net, guide, 40)
    assert all(p[-1].sum(1).min() > 1 - 1e-3 for p in seen)
    assert guide.settled and (seen[-1][-1].sum(1) >= 1).all()
    if budget == 0.01:
        assert (seen[-1][0].sum(1) == 0).any(), "hidden nodes may die"


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


def test_classes_go_to_their_codes_settle_with_the_rest_and_may_still_move_for_a_while():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 100, Guidance(**HALFWAY), similarity=[0, 1, 2, 3, 0, 1, 2, 3])
    moved_at = 70
    seen = []
    for step in range(100):
        if step == moved_at - 15:
            guide.similarity = Guide(net, 1, similarity=[0, 0, 1, 1, 2, 2, 3, 3]).similarity
        net(torch.ones(2, 12)).sum().backward()
        guide.step()
        seen.append(guide.sets[-1].probabilities.detach().clone())
    assert (seen[7] == 0.5).all()
    assert 0.5 < seen[20].max() < seen[40].max() < 1
    settled = seen[49]
    assert set(settled.unique().tolist()) == {0.0, 1.0} and torch.equal(settled[:4], settled[4:])
    assert torch.equal(seen[-1][0::2], seen[-1][1::2]), "moved to where they are alike now"
    assert all(torch.equal(p, seen[-1]) for p in seen[60:])


def test_weights_stay_small_where_sets_settle_together():
    """Masked weights must not have grown: momentum would throw them in once they count again."""
    torch.manual_seed(0)
    net = make_net(clusters=4)
    guide = Guide(net, 60, Guidance(**HALFWAY))
    run(net, guide, 29)
    nn.init.normal_(guide.sets[1].logits, std=20)  # of the hidden nodes: some P next to nothing
    largest = net[2].weight.abs().max().item()
    net(torch.randn(8, 12))
    guide.step(torch.arange(8))
    assert all(set(m.probabilities.unique().tolist()) == {0, 1} for m in guide.sets)
    assert net[2].weight.abs().max() <= 4 * largest, "Eq. 5's weights over masks of 1/4 at least"


def test_what_decides_is_the_mean_prediction_of_each_class():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 10_000)  # so long that nothing is forgotten within these steps
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(3):
        x, y = torch.randn(16, 12), torch.randint(8, (16,))
        kept.append((net(x).detach().softmax(1), y))
        guide.step(y)
    p, y = (torch.cat(parts) for parts in zip(*kept, strict=True))
    assert guide.sums is not None and guide.counts is not None
    for c in range(8):
        mean = guide.sums[c] / guide.counts[c].clamp_min(1e-12)
        expected = p[y == c].mean(0) if (y == c).any() else torch.zeros(8)
        torch.testing.assert_close(mean, expected, atol=2e-3, rtol=0)


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
    assert guide.counts is not None and guide.counts.sum() == 5


# --- settling -------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), per_node=st.sampled_from([1, 4]))
@settings(max_examples=20, deadline=None)
def test_settling_keeps_the_expected_weights_on_what_remains(seed, per_node):
    torch.manual_seed(seed)
    conv = BlockoutConv2d(3, 6, 3, clusters=3)
    fc = BlockoutLinear(
        6 * per_node, 5, clusters=3, inputs=conv.outputs, features_per_node=per_node
    )
    layers = [conv, fc]
    sets = list(memberships_of(nn.ModuleList(layers)).values())
    for m in sets:
        nn.init.normal_(m.logits, std=2)
    before = [layer.expected_weight().detach() for layer in layers]
    chosen = {m: torch.bernoulli(torch.full((m.nodes, 3), 0.4)) for m in sets}
    settle(layers, chosen)
    assert all(torch.equal(m.probabilities, c) for m, c in chosen.items())
    for layer, weight in zip(layers, before, strict=True):
        c_in = chosen[layer.inputs].repeat_interleave(layer.features_per_node, 0)
        shared = chosen[layer.outputs] @ c_in.T > 0
        shared = shared.reshape(shared.shape + (1,) * (weight.dim() - 2))
        expected = torch.where(shared, weight, 0)
        torch.testing.assert_close(layer.expected_weight().detach(), expected)


def test_once_settled_training_and_inference_see_the_same_structure_and_it_stays():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 60, Guidance(**HALFWAY))
    seen = run(net, guide, 60)
    for p, last in zip(seen[36], seen[-1], strict=True):
        assert torch.equal(p, last) and set(p.unique().tolist()) <= {0.0, 1.0}
    x = torch.randn(5, 12)
    torch.testing.assert_close(net.train()(x), net.eval()(x))
    counts = [p.sum(0) for p in seen[29]]
    assert all((c - c.mean()).abs().max() <= 2 for c in counts[:2]), "equal branches"
    for m in guide.sets:
        m.logits.data.mul_(1e-3)  # as momentum and decay of a long training might
    guide.step()
    assert all(torch.equal(m.probabilities, p) for m, p in zip(guide.sets, seen[-1], strict=True))


def test_settling_keeps_as_many_memberships_as_were_expected():
    torch.manual_seed(0)
    net = make_net(hidden=60)
    guide = Guide(net, 60, Guidance(budget=1.3, class_budget=1.5))
    seen = run(net, guide, 60)
    assert abs(float(seen[-1][1].sum()) - 1.3 * 60) <= 4


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_training_settles_as_well_as_any(steps):
    torch.manual_seed(0)
    net = make_net()
    seen = run(net, Guide(net, steps), steps)
    assert set(seen[-1][-1].unique().tolist()) <= {0.0, 1.0}
    assert (seen[-1][-1].sum(1) >= 1).all()


def test_a_budget_never_raises_what_memberships_start_with():
    net = make_net(clusters=2)
    seen = run(net, Guide(net, 40, Guidance(budget=1.5, class_budget=1.5, settle_at=1)), 40)
    assert all(p[0].sum(1).mean() < 1 + 1e-3 for p in seen)


def test_a_guide_that_is_closed_or_continues_settled_looks_at_nothing_more():
    net = make_net()
    guide = Guide(net, 10)
    guide.close()
    net(torch.randn(4, 12))
    assert guide._predicted is None
    later = Guide(net, 10)
    later.load_state_dict({**guide.state_dict(), "done": 10})
    assert not net[2]._forward_hooks


def test_a_guide_in_a_compiled_graph_sees_the_predictions_of_every_part_of_a_step():
    net = make_net()
    guide = Guide(net, 4)
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


@pytest.mark.parametrize("stop", [3, 20, 29, 30, 31, 35, 36, 50])
def test_a_training_that_continues_from_its_state_ends_the_same(stop):
    def steps(net, guide, optimizer, first, last):
        for n in range(first, last):
            generator = torch.Generator().manual_seed(n)
            torch.manual_seed(n)
            x, y = torch.randn(32, 12, generator=generator), torch.arange(32) % 8
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            guide.step(y)

    def begin():
        torch.manual_seed(0)
        net = make_net()
        optimizer = torch.optim.SGD(parameter_groups(net, 0.1), momentum=0.9)
        return net, Guide(net, 60, Guidance(**HALFWAY)), optimizer

    whole, guide, optimizer = begin()
    steps(whole, guide, optimizer, 0, 60)
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
        ({"group_at": 1.5}, "group_at must lie between 0 and 1, got 1.5"),
        ({"settle_at": 0.2}, "in this order and between 0 and 1, got 0.05, 0.3, 0.2"),
        ({"shift": "node"}, "shift must be one of all, cluster, both, got 'node'"),
        ({"estimator": "three-sided"}, "estimator must be one of eq9, two-sided"),
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


@pytest.mark.parametrize(("steps", "last"), [(400, 240), (1000, 500)])
def test_classes_may_change_longer_in_short_trainings(steps, last):
    guide = Guide(make_net(), steps)
    guide.done = last - 1
    assert not guide.settled
    guide.done = last
    assert guide.settled


def test_the_most_probable_memberships_are_those_that_settle():
    torch.manual_seed(0)
    net = make_net()
    guide = Guide(net, 60, Guidance(shift="cluster", **HALFWAY))  # keeps the order in a cluster
    run(net, guide, 29)
    nodes = guide.sets[0]
    nn.init.normal_(nodes.logits)
    before = nodes.probabilities.detach().clone()
    net(torch.randn(8, 12))
    guide.step(torch.arange(8))
    settled = nodes.probabilities.bool()
    for cluster in range(4):
        kept, left = before[settled[:, cluster], cluster], before[~settled[:, cluster], cluster]
        assert len(kept) and len(left) and kept.min() >= left.max()


def test_hidden_nodes_may_go_on_being_drawn_within_their_clusters():
    torch.manual_seed(0)
    net = make_net(hidden=60)
    guide = Guide(net, 60, Guidance(budget=1.3, class_budget=1.5, draw_on=0.5))
    seen = run(net, guide, 60)
    hidden, classes = seen[-1][1], seen[-1][-1]
    assert set(hidden.unique().tolist()) == {0.0, 0.5}
    assert set(classes.unique().tolist()) == {0.0, 1.0}
    assert abs(float((hidden > 0).sum()) - 1.3 * 60) <= 4
    settled = [step[1] for step in seen if set(step[1].unique().tolist()) == {0.0, 0.5}]
    assert len(settled) > 20 and all(torch.equal(p, hidden) for p in settled)


def test_settling_to_a_probability_keeps_the_weights_of_inference():
    torch.manual_seed(0)
    net = make_net(hidden=20)
    layers = [m for m in net.modules() if isinstance(m, BlockoutLinear)]
    inner = layers[0].outputs
    before = [layer.expected_weight() for layer in layers]
    chosen = (torch.rand(inner.nodes, inner.clusters) < 0.6).float()
    settle(layers, {inner: chosen}, {inner: 0.5})
    for layer, weight in zip(layers, before, strict=True):
        p = layer.outputs.probabilities @ layer.inputs.probabilities.T
        after = layer.expected_weight()
        torch.testing.assert_close(after[p > 0], weight[p > 0], rtol=1e-5, atol=1e-7)
        assert (after[p == 0] == 0).all()
    assert set(inner.probabilities.unique().tolist()) == {0.0, 0.5}
