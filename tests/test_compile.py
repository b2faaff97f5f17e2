"""Compiled graphs: neighbours agree on a draw, also if only one of them is compiled."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockout import BlockoutLinear, one_draw
from blockout.masking import masked_weight

X, OTHER = torch.randn(5, 6), torch.randn(5, 6)
ABOUT_TORCH = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)
"""Compiling for an input that has a graph looks at its gradient."""


def pair() -> tuple[BlockoutLinear, BlockoutLinear]:
    a = BlockoutLinear(6, 20, 4)
    return a, BlockoutLinear(20, 3, 4, inputs=a.outputs)


def two_views(a, b):
    def forward(x, y):
        h1, h2 = a(x).relu(), a(y).relu()
        return h1, b(h1), h2, b(h2)

    return torch.compile(forward, fullgraph=True, backend="aot_eager")


def test_a_compiled_graph_refuses_what_it_cannot_tell_apart():
    with pytest.raises(Exception, match="its nodes were made twice before they were read"):
        two_views(*pair())(X, OTHER)


def test_one_draw_holds_in_a_compiled_graph():
    a, b = pair()
    forward = two_views(a, b)
    drawn = []
    for _ in range(2):
        with one_draw(nn.ModuleList([a, b])):
            h1, y1, h2, y2 = forward(X, OTHER)
        drawn.append(a.outputs.drawn)
        weight = masked_weight(b.weight, b.outputs.drawn, drawn[-1])
        torch.testing.assert_close(y1, F.linear(h1, weight, b.bias))
        torch.testing.assert_close(y2, F.linear(h2, weight, b.bias))
    assert not torch.equal(drawn[0], drawn[1])


@ABOUT_TORCH
@pytest.mark.parametrize("compiled", ["producer", "reader"])
def test_neighbours_agree_if_only_one_is_compiled(compiled):
    a, b = pair()
    run = {layer: torch.compile(layer, fullgraph=True, backend="aot_eager") for layer in (a, b)}
    make, read = (run[a], b) if compiled == "producer" else (a, run[b])
    for _ in range(3):
        h = make(X).relu()
        y = read(h)
        weight = masked_weight(b.weight, b.outputs.drawn, a.outputs.drawn)
        torch.testing.assert_close(y, F.linear(h, weight, b.bias))


@ABOUT_TORCH
def test_a_compiled_reader_does_not_take_the_draw_of_another_thread():
    a, b = pair()
    reader = torch.compile(b, fullgraph=True, backend="aot_eager")
    h = a(X)
    thread = threading.Thread(target=a, args=(X,))
    thread.start(), thread.join()
    with pytest.raises(Exception, match="may belong to another thread"):
        reader(h)
