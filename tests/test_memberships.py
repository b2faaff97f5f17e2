"""P_j in its variants: what is drawn, by whom, how often, and what is learned."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from blockout import BlockoutLinear, Memberships, seed_draws
from blockout.draws import REMEMBERED
from blockout.masking import Assignments, differentiable


def draw(memberships: Memberships, seat: int = 0) -> torch.Tensor:
    c = memberships.assignments(seat, training=True)
    assert isinstance(c, Assignments)
    return c.bits


def test_learned_memberships_start_at_one_half():
    m = Memberships(5, 3)
    assert torch.equal(m.probabilities, torch.full((5, 3), 0.5))
    assert torch.equal(m.logits, torch.zeros(5, 3))


@given(p=st.floats(0, 1))
def test_fixed_memberships_keep_their_probability_exactly(p):
    m = Memberships(4, 2, probability=p, learned=False)
    assert torch.equal(m.probabilities, torch.full((4, 2), p))
    assert list(m.parameters()) == []
    torch.testing.assert_close(torch.sigmoid(m.logits), m.probabilities, atol=1e-6, rtol=0)


@given(p=st.floats(1e-4, 1 - 1e-4))
def test_learned_memberships_start_at_a_given_probability(p):
    m = Memberships(4, 2, probability=p)
    torch.testing.assert_close(m.probabilities, torch.full((4, 2), p), atol=1e-6, rtol=1e-5)


def test_a_probability_for_each_node_and_cluster():
    p = torch.tensor([[0.1, 0.9], [0.5, 0.2], [1.0, 0.0]])
    assert torch.equal(Memberships(3, 2, probability=p, learned=False).probabilities, p)


def test_given_memberships_are_the_given_matrix_in_training_too():
    hierarchy = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 0]])
    m = Memberships.given(hierarchy)
    state = torch.get_rng_state()
    assert torch.equal(m.assignments(0, training=True), hierarchy.float())
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn"
    assert list(m.parameters()) == []


def test_hard_memberships_are_drawn_in_training_and_are_p_in_eval_mode():
    m = Memberships(50, 6, probability=0.3)
    assert set(draw(m).unique().tolist()) == {0.0, 1.0}
    assert torch.equal(m.assignments(0, training=False), m.probabilities)


def test_soft_memberships_are_p_in_training_with_the_plain_chain_rule():
    m = Memberships(5, 3, probability=0.2, hard=False)
    c = m.assignments(0, training=True)
    assert torch.equal(c, m.probabilities)
    c.sum().backward()
    assert m.logits.grad is not None
    torch.testing.assert_close(m.logits.grad, torch.full((5, 3), 0.2 * 0.8))


def test_the_logits_of_hard_memberships_learn_by_equation_9_through_the_logistic():
    m = Memberships(40, 3, probability=0.2)
    c = m.assignments(0, training=True)
    differentiable(c).sum().backward()
    assert m.logits.grad is not None
    torch.testing.assert_close(m.logits.grad, 0.2 * 0.8 * c.bits)


def test_a_draw_keeps_its_bits_apart_from_what_learns_by_them():
    m = Memberships(40, 3, probability=0.2)
    bits, learns, estimator = m.assignments(0, training=True)
    assert bits is m.drawn and not bits.requires_grad
    assert torch.equal(learns, m.probabilities) and learns.requires_grad and estimator == "eq9"
    m.estimator = "two-sided"
    _, learns, estimator = m.assignments(0, training=True)
    assert learns is m.logits and estimator == "two-sided"
    assert Memberships(4, 3, learned=False).assignments(0, training=True).learns is None


def test_all_neighbours_share_one_draw_and_a_new_forward_draws_anew():
    m = Memberships(50, 6)
    producer = m.draws.join(producer=True)
    consumer, other_consumer = m.draws.join(producer=False), m.draws.join(producer=False)
    steps = []
    for _ in range(3):
        first = draw(m, producer)
        assert torch.equal(draw(m, consumer), first)
        assert torch.equal(draw(m, other_consumer), first)
        steps.append(first)
    assert not torch.equal(steps[0], steps[1])
    assert not torch.equal(steps[1], steps[2])


def test_nodes_without_a_producer_are_drawn_by_their_first_consumer():
    m = Memberships(50, 6)
    first, second = m.draws.join(producer=False), m.draws.join(producer=False)
    one = draw(m, first)
    assert torch.equal(draw(m, second), one)
    assert not torch.equal(draw(m, first), one)


def test_a_producer_begins_a_forward_whatever_a_consumer_drew_before():
    m = Memberships(50, 6)
    producer, consumer = m.draws.join(producer=True), m.draws.join(producer=False)
    alone = draw(m, consumer)
    assert not torch.equal(draw(m, producer), alone)


def test_several_producers_share_one_draw():
    m = Memberships(50, 6)
    one, other, consumer = (m.draws.join(producer=who) for who in (True, True, False))
    for _ in range(2):
        c = draw(m, one)
        assert torch.equal(draw(m, other), c)
        assert torch.equal(draw(m, consumer), c)


@pytest.mark.parametrize("odd", ["consumer twice", "producer alone", "frozen"])
def test_neighbours_agree_again_after_an_odd_call(odd):
    fc2 = BlockoutLinear(50, 50, 3)
    fc3 = BlockoutLinear(50, 4, 3, inputs=fc2.outputs)
    x = torch.randn(2, 50)
    m = fc2.outputs
    fc3(fc2(x))
    if odd == "consumer twice":
        h = fc2(x)
        drawn = m.drawn
        fc3(h), fc3(h)
        assert m.drawn is drawn, "a consumer uses what the producer drew"
    elif odd == "producer alone":
        fc2(x)
    else:
        fc2.eval()
        fc3(fc2(x))
        first = m.drawn
        fc3(fc2(x))
        assert not torch.equal(first, m.drawn), "the consumer draws for itself"
        fc2.train()
    seen = []
    for _ in range(3):
        h = fc2(x)
        drawn = m.drawn
        fc3(h)
        assert m.drawn is drawn
        seen.append(drawn)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_forget_makes_the_next_comer_draw():
    m = Memberships(50, 6)
    first = draw(m, 0)
    m.forget()
    assert not torch.equal(draw(m, 1), first)


def test_manual_seed_repeats_the_draws():
    m = Memberships(50, 6)
    torch.manual_seed(3)
    first = [draw(m) for _ in range(2)]
    torch.manual_seed(3)
    second = [draw(m) for _ in range(2)]
    assert torch.equal(torch.stack(first), torch.stack(second))


def test_draws_of_its_own_generator_depend_on_nothing_else():
    def draws():
        m = Memberships(50, 6, generator=torch.Generator().manual_seed(1))
        return [draw(m), draw(m)]

    torch.manual_seed(0)
    first = draws()
    torch.manual_seed(1)
    again = draws()
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])


class Head(nn.Module):
    """Two neighbours, checkpointed together, apart or not at all."""

    def __init__(self, how: str, reentrant: bool, preserve: bool = True) -> None:
        super().__init__()
        self.how, self.reentrant, self.preserve = how, reentrant, preserve
        self.fc2 = BlockoutLinear(12, 12, clusters=3, dtype=torch.float64)
        self.fc3 = BlockoutLinear(12, 4, clusters=3, inputs=self.fc2.outputs, dtype=torch.float64)

    def forward(self, x):
        def run(part, x):
            return checkpoint(
                part, x, use_reentrant=self.reentrant, preserve_rng_state=self.preserve
            )

        drop = nn.Dropout(0.3)  # chance after the draw: the stream must go on as it did
        if self.how == "together":
            return run(lambda x: self.fc3(drop(self.fc2(x)).tanh()), x)
        if self.how == "apart":
            return run(self.fc3, run(lambda x: drop(self.fc2(x)), x).tanh())
        return self.fc3(drop(self.fc2(x)).tanh())


def _gradients(how: str, reentrant: bool, own_generator: bool, steps: int = 3):
    torch.manual_seed(0)
    head = Head(how, reentrant)
    if own_generator:
        seed_draws(head, 5)
    x = torch.randn(7, 12, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    rows = []
    for _ in range(steps):
        head.zero_grad()
        head(x).square().sum().backward()
        rows.append([p.grad.clone() for p in head.parameters() if p.grad is not None])
    return rows


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", ["together", "apart"])
def test_a_recomputed_forward_sees_the_same_draw(how, reentrant, own_generator):
    plain = _gradients("plain", False, own_generator)
    recomputed = _gradients(how, reentrant, own_generator)
    for expected, got in zip(plain, recomputed, strict=True):
        assert len(expected) == len(got) == 7
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(b, a)


def _gradients_of_two_forwards(how: str, reentrant: bool, own_generator: bool, preserve=True):
    torch.manual_seed(0)
    head = Head(how, reentrant, preserve)
    if own_generator:
        seed_draws(head, 5)
    x = torch.randn(7, 12, dtype=torch.float64, requires_grad=True)
    (head(x).square().sum() + head(x + 1).square().sum()).backward()
    return [p.grad for p in head.parameters()]


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", ["together", "apart"])
def test_two_forwards_before_one_backward_keep_their_own_draws(how, reentrant, own_generator):
    plain = _gradients_of_two_forwards("plain", reentrant, own_generator)
    recomputed = _gradients_of_two_forwards(how, reentrant, own_generator)
    for a, b in zip(plain, recomputed, strict=True):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_that_cannot_be_recognised_is_refused(reentrant):
    with pytest.raises(RuntimeError, match="preserve_rng_state=True"):
        _gradients_of_two_forwards("apart", reentrant, True, preserve=False)


def test_the_last_uses_are_remembered_and_older_ones_refused():
    head = Head("together", False)
    x = torch.randn(7, 12, dtype=torch.float64, requires_grad=True)
    outputs = [head(x).sum() for _ in range(REMEMBERED // 2 + 1)]  # two layers use P_1
    outputs[1].backward()
    with pytest.raises(RuntimeError, match="at most 64 uses"):
        outputs[0].backward()


def test_deepcopy_and_pickle_keep_p_and_stand_on_their_own():
    m = Memberships(5, 3, probability=0.3, generator=torch.Generator().manual_seed(1))
    for twin in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert torch.equal(twin.probabilities, m.probabilities)
        with torch.no_grad():
            twin.logits.fill_(2)
        assert not torch.equal(twin.probabilities, m.probabilities)
    assert torch.equal(draw(copy.deepcopy(m)), draw(m))


def test_low_precision_stops_at_the_memberships():
    for m in (
        Memberships(5, 3, probability=0.3),
        Memberships(5, 3, probability=0.3, learned=False),
    ):
        before = m.probabilities.clone()
        assert m.bfloat16().probabilities.dtype == torch.float32
        assert torch.equal(m.half().probabilities, before)
        assert m.double().probabilities.dtype == torch.float64


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("assign", [True, False])
def test_loaded_values_of_low_precision_do_not_lower_the_memberships(low, assign):
    for learned, name in ((True, "logits"), (False, "fixed")):
        m = Memberships(2, 3, learned=learned)
        loaded = torch.tensor([[0.25, 0.5, 0.75], [0.0, 0.125, 1.0]], dtype=low)
        state = {name: loaded}
        m.load_state_dict(state, assign=assign)
        assert torch.equal(m.state_dict()[name], loaded.float())
        assert state[name] is loaded, "the caller's own"
        assert m.probabilities.requires_grad == learned


def test_values_of_full_precision_are_assigned_as_they_are():
    for dtype in (torch.float32, torch.float64):
        m, logits = Memberships(2, 3), nn.Parameter(torch.ones(2, 3, dtype=dtype))
        m.load_state_dict({"logits": logits}, assign=True)
        assert m.logits is logits


@pytest.mark.parametrize("value", [2.0, -0.1, float("nan"), float("inf")])
def test_a_fixed_p_that_is_no_probability_is_refused_when_loaded_and_when_used(value):
    m = Memberships(4, 3, learned=False)
    p = torch.full((4, 3), 0.5)
    p[1, 2] = value
    message = rf"probability must lie in \[0, 1\], got {value:g}"
    for assign in (True, False):
        with pytest.raises(RuntimeError, match=f"fixed: {message}"):
            m.load_state_dict({"fixed": p}, assign=assign)
    assert torch.equal(m.probabilities, torch.full((4, 3), 0.5)), "as it was"
    m.fixed.copy_(p)
    for training in (True, False):
        with pytest.raises(ValueError, match=message):
            m.assignments(0, training=training)


def test_sizes_may_be_any_integers():
    class Three:
        def __index__(self):
            return 3

    m = Memberships(Three(), torch.tensor(2))
    assert (m.nodes, m.clusters) == (3, 2) and type(m.nodes) is type(m.clusters) is int
    layer = BlockoutLinear(Three(), Three(), torch.tensor(2))
    assert {type(n) for n in (layer.in_features, layer.out_features, layer.clusters)} == {int}


def test_a_model_may_be_built_under_a_default_device():
    with torch.device("meta"):
        layer = BlockoutLinear(8, 4, 2, inputs=Memberships(8, 2, learned=False))
    assert all(t.is_meta for t in layer.state_dict().values())


def test_reset_restores_the_initial_probability_also_after_the_meta_device():
    for learned in (True, False):
        m = Memberships(5, 3, probability=0.25, learned=learned, device="meta")
        m.to_empty(device="cpu")
        m.reset_parameters()
        torch.testing.assert_close(m.probabilities, torch.full((5, 3), 0.25))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_logits_are_refused(value):
    m = Memberships(4, 3)
    with torch.no_grad():
        m.logits[1, 2] = value
    with pytest.raises(ValueError, match="1 of 12 membership logits are not finite"):
        m.assignments(0, training=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0, "clusters": 2}, "nodes must be a whole number, at least 1, got 0"),
        ({"nodes": 3, "clusters": -1}, "clusters must be a whole number, at least 1, got -1"),
        ({"nodes": 3, "clusters": 2.5}, "clusters must be a whole number, at least 1, got 2.5"),
        ({"nodes": 3, "clusters": True}, "clusters must be a whole number, at least 1, got True"),
        ({"nodes": torch.tensor(True)}, "nodes must be a whole number, at least 1, got True"),
        ({"nodes": "3"}, "nodes must be a whole number, at least 1, got 3"),
        ({"probability": 1.5}, r"probability must lie in \[0, 1\], got 1.5"),
        ({"probability": float("nan")}, r"probability must lie in \[0, 1\], got nan"),
        ({"probability": 1.0}, "strictly between 0 and 1, got 1"),
        ({"probability": torch.zeros(2, 2)}, r"shape \(3, 2\), one row per node, got \(2, 2\)"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Memberships(**{"nodes": 3, "clusters": 2, **arguments})


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.tensor([[0.0, 0.5]]), "must be 0 or 1, got 0.5"),
        (torch.tensor([[0, 2]]), "must be 0 or 1, got 2"),
        (torch.tensor([0.0, 1.0]), r"must be a \(nodes, clusters\) matrix, got shape \(2,\)"),
        (torch.tensor([[0.0, float("nan")]]), "must be 0 or 1, got nan"),
    ],
)
def test_a_given_hierarchy_that_is_not_zeros_and_ones_is_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        Memberships.given(matrix)
