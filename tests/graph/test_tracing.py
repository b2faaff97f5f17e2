"""What a graph of the forward pass does not show is refused, not guessed."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockout import BlockoutLinear, convert, to_branches, to_dense

from ..compact.conftest import EXACT, assert_same, masked, some


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 6)
        self.c = nn.Linear(4, 6)

    def forward(self, x):
        return self.b(self.a(x).relu())


class MovesInTraining(Pair):
    def forward(self, x):
        h = self.a(x)
        return self.b(h.flip(-1) if self.training else h)


class MovesInEval(Pair):
    def forward(self, x):
        h = self.a(x)
        return self.b(h if self.training else h.flip(-1))


class OtherProducerByDefault(Pair):
    def forward(self, x, other=None):
        h = self.a(x)
        if other is None:
            h = self.c(x)
        return self.b(h)


class MovesByDefault(Pair):
    def forward(self, x, other=None):
        h = self.a(x)
        if other is None:
            h = h.flip(-1)
        return self.b(h)


class NeverCalls(Pair):
    def forward(self, x):
        return self.b(torch.ones(2, 6))


class Decodes(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoderLayer(4, 2, 8)

    def forward(self, x):
        return self.a(self.decoder(x, x))


class ReadsABuffer(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 6))

    def forward(self, x):
        self.kept.copy_(self.a(x))
        return self.b(self.kept)


def replaced() -> Pair:
    model = Pair()
    model.forward = lambda x: model.b(model.a(x).flip(-1))
    return model


def hooked() -> nn.Module:
    part = nn.Sequential(nn.ReLU())
    part.register_forward_hook(lambda _, __, out: out.flip(-1))
    return nn.Sequential(nn.Linear(4, 6), part, nn.Linear(6, 6))


def sharing() -> nn.Module:
    """The first layer works a second time inside a part that cannot be followed."""

    class Twice(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else x

    layer = nn.Linear(6, 6)
    return nn.ModuleDict({"first": layer, "between": Twice(layer), "last": nn.Linear(6, 2)})


class Sharing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = sharing()

    def forward(self, x):
        return self.parts["last"](self.parts["between"](self.parts["first"](x)))


@pytest.mark.parametrize(
    ("model", "layers", "message"),
    [
        (MovesInTraining(), ["a", "b"], "b reads: flip stands between it and a"),
        (MovesInEval(), ["a", "b"], "b reads: flip stands between it and a"),
        (MovesByDefault(), ["a", "b"], "b reads: flip stands between it and a"),
        (OtherProducerByDefault(), ["a", "b", "c"], "it is called several times on different"),
        (NeverCalls(), ["a", "b"], "nodes a reads: the forward pass does not call it"),
        (
            Decodes(),
            ["decoder.linear1", "decoder.linear2"],
            r"linear[12] reads: it lies inside decoder, a TransformerDecoderLayer whose forward",
        ),
        (ReadsABuffer(), ["a", "b"], "b reads: copy_ stands between it and a"),
        (replaced(), ["a", "b"], "forward of Pair .* has been replaced on the object"),
        (hooked(), ["0", "2"], "2 reads: flip stands between it and 0"),
        (Sharing(), ["parts.first", "parts.last"], "parts.first reads: it lies inside parts.betw"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_nodes_that_one_graph_does_not_show_are_refused(model, layers, message, training):
    with pytest.raises(ValueError, match=message):
        convert(model.train(training), layers, 2)


def test_links_answer_for_what_is_not_followed():
    links = {"decoder.linear1": None, "decoder.linear2": "decoder.linear1"}
    net = convert(Decodes().eval(), list(links), 2, links=links)
    assert net.decoder.linear2.inputs is net.decoder.linear1.outputs


def held_in(how) -> nn.Module:
    """A layer that the forward pass reaches through something that is not a module."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model.held = how(model[0])
    return model


@pytest.mark.parametrize(
    "how",
    [
        lambda a: [a],
        lambda a: {"x": (a,)},
        lambda a: functools.partial(a),
        lambda a: lambda x: a(x),
        lambda a: a.forward,
        lambda a: lambda x, a=a: a(x),
    ],
)
def test_layers_that_are_held_outside_modules_are_refused(how):
    """Replacing them in their module would leave the old one at work, without a word."""
    with pytest.raises(ValueError, match="held of Sequential holds it too and would keep it"):
        convert(held_in(how), ["0", "2"], 2)
    model = nn.Sequential(BlockoutLinear(4, 4, 2))
    model.held = how(model[0])
    with pytest.raises(ValueError, match="0 cannot become plain: held of Sequential holds it"):
        to_dense(model)


@pytest.mark.parametrize("place", [0, 1])
def test_plain_layers_and_norms_that_are_held_elsewhere_stay_in_place(place):
    """Cutting them down would leave the other reference with the old widths, or change it too."""
    inner = BlockoutLinear(6, 6, 3, inputs=some(6, 3), outputs=some(6, 3))
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), inner).double().eval()
    net.held = [net[place]]
    small = to_branches(net, measure=False, costs=EXACT)
    assert small[0].out_features == 6
    assert small.held[0] is small[place]
    assert_same(small, net, 0.5, torch.randn(5, 4).double())


class AlwaysDrops(nn.Sequential):
    """Dropout that a model keeps on in eval mode, as for Monte Carlo estimates."""

    def train(self, mode=True):
        super().train(mode)
        self[1].train(True)
        return self


def test_nodes_behind_dropout_that_stays_on_stay_in_place():
    def ours(**given):
        return BlockoutLinear(6, 6, 2, **given)

    first = ours(inputs=some(6, 2), outputs=some(6, 2, empty=0.5))
    net = AlwaysDrops(first, nn.Dropout(), ours(inputs=first.outputs, outputs=some(6, 2)))
    net = net.double().eval()
    small = to_branches(net, measure=False, costs=EXACT).eval()
    x = torch.randn(5, 6).double()
    torch.manual_seed(3)
    expected = masked(net, 0.5)(x)
    torch.manual_seed(3)
    torch.testing.assert_close(small(x), expected)


class ReadsBlockoutWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = BlockoutLinear(4, 4, 2)

    def forward(self, x):
        return F.linear(x, self.fc.weight) + self.fc(x)


class Doubles(BlockoutLinear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_to_dense_refuses_what_a_plain_layer_would_not_compute():
    with pytest.raises(ValueError, match="fc cannot be converted: the model reads its weight dir"):
        to_dense(ReadsBlockoutWeight())
    with pytest.raises(ValueError, match="Doubles cannot become plain: it has a forward of its"):
        to_dense(Doubles(4, 4, 2))
    patched = BlockoutLinear(4, 4, 2)
    patched.forward = lambda x: x
    with pytest.raises(ValueError, match="BlockoutLinear cannot become plain: it has a forward"):
        to_dense(patched)


def test_to_dense_says_that_hooks_are_lost():
    net = nn.Sequential(BlockoutLinear(4, 4, 2))
    net[0].register_forward_hook(lambda _, __, out: 2 * out)
    with pytest.warns(UserWarning, match="0 has hooks, which a plain layer does not keep"):
        to_dense(net)


def test_hooks_on_all_modules_are_refused():
    handle = nn.modules.module.register_module_forward_hook(lambda _, __, out: out)
    try:
        with pytest.raises(ValueError, match="there are hooks on all modules"):
            convert(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), ["0", "2"], 2)
    finally:
        handle.remove()
