"""Whose draw a layer reads with: that of its own nodes, or none at all."""

import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from blockout import BlockoutConv2d, BlockoutLinear, Memberships, masking, one_draw
from blockout.masking import Assignments, masked_weight

X, OTHER = torch.randn(5, 6), torch.randn(5, 6)


def pair(**variant) -> tuple[BlockoutLinear, BlockoutLinear]:
    """A layer that makes nodes, and one that reads them. Equal draws by chance: 2 ** -80."""
    a = BlockoutLinear(6, 20, 4, **variant)
    return a, BlockoutLinear(20, 3, 4, inputs=a.outputs, **variant)


class Seen:
    """The bits of the last masked product in this thread."""

    def __init__(self) -> None:
        self.local = threading.local()

    def __call__(self, x, weight, c_out, c_in, bias):
        self.local.made, self.local.read = (
            c.bits if isinstance(c, Assignments) else None for c in (c_out, c_in)
        )
        return F.linear(x, masked_weight(weight, c_out, c_in), bias)

    @property
    def made(self) -> torch.Tensor:
        return self.local.made

    @property
    def read(self) -> torch.Tensor:
        return self.local.read


@pytest.fixture
def seen(monkeypatch) -> Seen:
    spy = Seen()
    monkeypatch.setattr(masking, "masked_linear", spy)
    return spy


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start(), thread.join()


# --- with a graph -------------------------------------------------------------------------------

BETWEEN = [
    lambda h: h,
    torch.relu,
    lambda h: F.dropout(h, 0.2),
    lambda h: F.relu_(h.clone()),
    lambda h: torch.cat([h, h])[:5],
    lambda h: h + 1,
    lambda h: checkpoint(torch.sigmoid, h, use_reentrant=True),
    lambda h: checkpoint(torch.sigmoid, h, use_reentrant=False),
]
CALLS = st.lists(
    st.one_of(
        st.just("train"),
        st.just("eval"),
        st.just("eval without graph"),
        st.just("another thread"),
        st.tuples(st.integers(0, 9), st.sampled_from(BETWEEN)),
    ),
    min_size=2,
    max_size=12,
)


@given(calls=CALLS)
def test_nodes_are_read_with_the_draw_that_made_them_whatever_is_called_between(calls):
    seen = Seen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "masked_linear", seen)
        a, b = pair()
        nodes = [(a(X), seen.made)]
        for call in calls:
            if call == "train":
                nodes.append((a(X), seen.made))
            elif call == "another thread":
                in_thread(lambda: b(a(X).relu()))
            elif isinstance(call, str):
                a.eval()
                with torch.set_grad_enabled(call == "eval"):
                    a(OTHER)
                a.train()
            else:
                number, between = call
                h, drawn = nodes[number % len(nodes)]
                b(between(h))
                assert seen.read is drawn


def test_two_passes_before_their_readers_compute_what_each_computes_alone():
    a, b = pair(dtype=torch.float64)
    x = X.double()
    h1 = a(x)
    first = a.inputs.drawn, a.outputs.drawn
    h2 = a(x)
    second = a.inputs.drawn, a.outputs.drawn
    for h, (c_0, c_1) in ((h1, first), (h2, second)):
        y = b(h.relu())
        hidden = F.linear(x, masked_weight(a.weight, c_1, c_0), a.bias).relu()
        expected = F.linear(hidden, masked_weight(b.weight, b.outputs.drawn, c_1), b.bias)
        torch.testing.assert_close(y, expected)
    assert not torch.equal(first[1], second[1])


def test_a_view_that_is_changed_in_place_keeps_its_draw(seen):
    a, b = pair()
    h = a(X[None])  # three dimensions: the output is a view
    drawn = seen.made
    a(OTHER)
    b(h.relu_())
    assert seen.read is drawn


def test_parts_of_a_batch_are_read_with_the_draw_of_the_whole(seen):
    a, b = pair()
    first, second = a(X).relu().chunk(2)
    drawn = seen.made
    a(OTHER)
    b(second), b(first)
    assert seen.read is drawn


def test_nodes_made_with_different_draws_are_refused():
    a, b = pair()
    with pytest.raises(RuntimeError, match="its nodes were made with 2 different draws"):
        b(a(X) + a(OTHER))
    with pytest.raises(RuntimeError, match="its nodes were made with 2 different draws"):
        b(torch.cat([a(X).relu(), a(OTHER).relu()]))


def test_several_layers_that_make_the_same_nodes_may_be_added(seen):
    stream = Memberships(6, 4)
    stem = BlockoutLinear(6, 6, 4, outputs=stream)
    up = BlockoutLinear(6, 9, 4, inputs=stream)
    down = BlockoutLinear(9, 6, 4, inputs=up.outputs, outputs=stream)
    last = BlockoutLinear(6, 2, 4, inputs=stream)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for _ in range(2):
                h = stem(X)
                drawn = seen.made
                h = h + down(up(h).relu())
                assert seen.made is drawn
                last(h)
                assert seen.read is drawn


def test_a_layer_called_over_and_over_hands_on_its_last_draw(seen):
    a = BlockoutLinear(6, 6, 4)
    b = BlockoutLinear(6, 3, 4, inputs=a.outputs)
    h = a(a(X).relu()).relu()
    drawn = seen.made
    b(h)
    assert seen.read is drawn


@pytest.mark.parametrize("grad", [True, False])
def test_a_layer_that_reads_the_nodes_it_makes_reads_them_as_they_were_made(seen, grad):
    nodes = Memberships(6, 4)
    cell = BlockoutLinear(6, 6, 4, inputs=nodes, outputs=nodes)
    with torch.set_grad_enabled(grad):
        for x in (X, OTHER):
            h = cell(x).relu()
            for _ in range(3):
                before = seen.made
                h = cell(h).relu()
                assert seen.read is before and seen.made is not before


def test_draws_do_not_outlive_their_graph():
    a, b = pair()
    h = a(X)
    draw = weakref.ref(a.outputs.draws.latest)
    y = b(h)
    a(OTHER)
    assert draw() is not None
    del h, y
    assert draw() is None


# --- nodes that no Blockout layer makes ---------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_readers_of_one_tensor_share_its_draw(seen, grad):
    shared = Memberships(6, 4)
    query, key = (BlockoutLinear(6, 6, 4, inputs=shared) for _ in range(2))
    trunk = nn.Linear(6, 6)
    with torch.set_grad_enabled(grad):
        for h1, h2 in ((X, OTHER), (trunk(X), trunk(OTHER)), trunk(torch.cat([X, X])).chunk(2)):
            drawn = []
            for h in (h1, h2):
                query(h)
                drawn.append(seen.read)
            for h, bits in zip((h1, h2), drawn, strict=True):
                key(h)
                assert seen.read is bits
            query(h1)
            assert seen.read is not drawn[0], "a second call of the first reader draws anew"


def test_padding_does_not_hide_the_tensor_that_readers_share():
    shared = Memberships(2, 4)
    a, b = (
        BlockoutConv2d(2, 9, 3, 4, inputs=shared, padding=1, padding_mode="circular")
        for _ in range(2)
    )
    h1, h2 = (nn.Conv2d(2, 2, 1)(torch.randn(1, 2, 4, 4)) for _ in range(2))
    a(h1)
    first = shared.drawn
    a(h2)
    y = b(h1)
    weight = masked_weight(b.weight, b.outputs.drawn, first)
    around = F.pad(h1, (1, 1, 1, 1), mode="circular")
    torch.testing.assert_close(y, F.conv2d(around, weight, b.bias))


def test_readers_of_nodes_made_in_eval_mode_share_a_draw_of_their_own(seen):
    a, b = pair()
    c = BlockoutLinear(20, 2, 4, inputs=a.outputs)
    a.eval()
    drawn = []
    for _ in range(2):
        h = a(X)
        b(h.relu())
        drawn.append(seen.read)
        c(h.relu())
        assert seen.read is drawn[-1]
    assert drawn[0] is not drawn[1]


# --- without a graph ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["no_grad", "inference", "detach", "frozen", "reentrant"])
def test_without_a_graph_a_reader_uses_the_last_draw(seen, how):
    a, b = pair(learned=how != "frozen")
    a.requires_grad_(how != "frozen")
    x = X.clone().requires_grad_(how == "reentrant")
    mode = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(how, torch.enable_grad)
    with mode():
        for _ in range(3):
            if how == "reentrant":
                h = checkpoint(lambda x: a(x).relu(), x, use_reentrant=True)
            else:
                h = a(x).relu()
            h = h.detach() if how == "detach" else h
            drawn = seen.made
            b(h)
            assert seen.read is drawn
            if not h.is_inference():  # the same tensor again; inference tensors may have changed
                b(h)
                assert seen.read is drawn


def test_the_very_tensor_that_was_made_is_known_without_a_graph(seen):
    a, b = pair()
    with torch.no_grad():
        h1 = a(X)
        drawn = seen.made
        a(OTHER)
        b(h1)
    assert seen.read is drawn


def test_a_tensor_that_is_filled_again_is_not_taken_for_what_it_was(seen):
    a, b = pair()
    kept = torch.empty(5, 20)
    with torch.no_grad():
        for _ in range(3):
            kept.copy_(a(X))
            drawn = seen.made
            b(kept)
            assert seen.read is drawn


def test_several_layers_make_the_nodes_that_one_layer_reads_from_each(seen):
    shared = Memberships(6, 4)
    levels = [BlockoutLinear(6, 6, 4, outputs=shared) for _ in range(2)]
    head = BlockoutLinear(6, 3, 4, inputs=shared)
    with torch.no_grad():
        for _ in range(2):
            maps = [level(X).relu() for level in levels]
            drawn = seen.made
            for h in maps:
                head(h)
                assert seen.read is drawn


def test_a_frozen_producer_in_eval_mode_makes_its_reader_draw(seen):
    a, b = pair()
    b(a(X).relu())
    a.eval()
    drawn = []
    for _ in range(3):
        with torch.no_grad():
            h = a(X).relu()
        b(h)
        drawn.append(seen.read)
    assert drawn[0] is not drawn[1] and drawn[1] is not drawn[2]


def _twice_without_graph(a, b):
    with torch.no_grad():
        h = a(X).relu()
        a(OTHER)
        b(h)


def _twice_checkpointed(a, b):
    x = X.clone().requires_grad_()
    h = checkpoint(lambda x: a(x).relu(), x, use_reentrant=True)
    checkpoint(lambda x: a(x).relu(), x, use_reentrant=True)
    b(h)


def _eval_between(a, b):
    h = a(X).detach().relu()
    a.eval()(OTHER)
    b(h)


def _stored(a, b):
    b(a(X))
    b(torch.randn(5, 20))


def _from_another_thread(a, b):
    with torch.no_grad():
        h = []
        in_thread(lambda: h.append(a(X).detach()))
        b(h[0].relu())


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (_twice_without_graph, "its nodes were made twice before they were read"),
        (_twice_checkpointed, "its nodes were made twice before they were read"),
        (_eval_between, "its nodes were made in training and then in eval mode"),
        (_stored, "this layer has used the last draw already"),
        (_from_another_thread, "the last draw may belong to another thread"),
    ],
)
def test_what_cannot_be_told_is_refused_and_forget_starts_anew(seen, calls, message):
    a, b = pair()
    with pytest.raises(RuntimeError, match=f"cannot tell which draw .*{message}.*forget"):
        calls(a, b)
    a.train()
    b.inputs.forget()
    b(torch.randn(5, 20))
    first = seen.read
    b(torch.randn(5, 20))
    assert seen.read is not first, "a reader alone draws for itself"
    b(a(X))
    assert seen.read is a.outputs.drawn


def test_forget_makes_the_next_reader_draw_whatever_its_input(seen):
    a, b = pair()
    h = a(X)
    drawn = seen.made
    a.outputs.forget()
    b(h)
    assert seen.read is not drawn


def test_threads_that_train_one_model_keep_their_draws(seen):
    """Thread 2 makes its nodes after thread 1 and reads them before: without a graph."""
    a, b = pair()
    made, read = threading.Event(), threading.Event()
    right = {}

    def first():
        with torch.no_grad():
            h = a(X).relu()
            drawn = seen.made
            made.set(), read.wait(20)
            b(h)
        right["first"] = seen.read is drawn

    def second():
        made.wait(20)
        with torch.no_grad():
            h = a(X).relu()
            drawn = seen.made
            b(h)
        right["second"] = seen.read is drawn
        read.set()

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == {"first": True, "second": True}


# --- one draw for everything --------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_one_draw_serves_all_calls_inside_and_the_next_pass_has_another(seen, grad):
    a, b = pair()
    net = nn.ModuleList([a, b])
    drawn = []
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            with one_draw(net):
                a(X)
                drawn.append((seen.read, seen.made))
                b(a(X) + a(OTHER))
                assert seen.read is drawn[-1][1]
                a(OTHER)
                assert (seen.read, seen.made) == drawn[-1]
        b(a(X))
        assert seen.read is not drawn[1][1]
    assert drawn[0][0] is not drawn[1][0] and drawn[0][1] is not drawn[1][1]


@pytest.mark.parametrize("grad", [True, False])
def test_nodes_made_before_keep_their_draw(seen, grad):
    a, b = pair()
    net = nn.ModuleList([a, b])
    with torch.set_grad_enabled(grad):
        h = a(X)
        drawn = seen.made
        with one_draw(net):
            b(a(OTHER).relu())
            assert seen.read is not drawn
        b(h.relu())
        assert seen.read is drawn
        with one_draw(net):
            a(OTHER)
            b(h)
            assert seen.read is drawn
