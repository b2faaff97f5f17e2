"""Whatever stands between two layers: nodes are followed rightly, or the model is refused.

The judge is autograd: which input of the reader depends on which node of the producer.
"""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from blockout import convert, to_branches, to_dense
from blockout.memberships import Memberships

from ..compact.conftest import EXACT, masked, stirred

NODES, SIDE = 4, 4


class Between(nn.Module):
    """A producer ``a``, steps, and a reader ``b`` that takes what the steps make."""

    def __init__(self, producer: nn.Module, *steps, shape=(2, 3, SIDE, SIDE)) -> None:
        super().__init__()
        self.a = producer
        self.parts = nn.ModuleList(step for step in steps if isinstance(step, nn.Module))
        self.steps = [None if isinstance(step, nn.Module) else step for step in steps]
        self.example = torch.randn(shape)
        with torch.no_grad():
            width = self._between(self.eval().a(self.example))
        wide = width.dim() == 4
        self.b = nn.Conv2d(width.shape[1], 3, 1) if wide else nn.Linear(width.shape[-1], 3)

    def _between(self, h):
        parts = iter(self.parts)
        for step in self.steps:
            h = next(parts)(h) if step is None else step(h)
        return h

    def forward(self, x):
        return self.b(self._between(self.a(x)))

    def dependence(self) -> torch.Tensor:
        """Which input of b (rows) depends on which node of a (columns)."""
        twin = self.double().eval()
        made = twin.a(twin.example.double()).detach().requires_grad_()
        read = twin._between(made * 1)  # steps may work in place
        conv = isinstance(twin.b, nn.Conv2d)
        read = read.movedim(1, -1) if conv else read
        nodes_last = made.movedim(1, -1) if isinstance(twin.a, nn.Conv2d) else made
        rows = []
        for feature in range(read.shape[-1]):
            # weights of their own keep contributions from cancelling, as in a sum over a softmax
            weights = torch.rand_like(read[..., feature]) + 0.5
            (grad,) = torch.autograd.grad(
                (read[..., feature] * weights).sum(), made, retain_graph=True
            )
            grad = grad.movedim(1, -1) if isinstance(twin.a, nn.Conv2d) else grad
            rows.append(grad.reshape(-1, nodes_last.shape[-1]).abs().amax(0) > 1e-12)
        return torch.stack(rows)


def of_conv(*steps) -> Between:
    return stirred(Between(nn.Conv2d(3, NODES, 3, padding=1), *steps))


def of_linear(*steps, shape=(2, 3, 5)) -> Between:
    return stirred(Between(nn.Linear(5, NODES), *steps, shape=shape))


def assert_right(model: Between) -> None:
    """The link is what autograd says, and both ways back to plain layers compute the same."""
    depends = model.dependence()
    model = model.float()
    net = convert(model, ["a", "b"], 2)
    own = torch.eye(NODES, dtype=torch.bool).repeat_interleave(len(depends) // NODES, dim=0)
    if net.b.inputs is net.a.outputs:
        assert not (depends & ~own).any()
        assert net.b.features_per_node == len(depends) // NODES
    else:
        assert depends.sum(1).max() > 1  # a layer in between has made new nodes
    assert_same_outputs(net)


def assert_same_outputs(net: nn.Module) -> None:
    net = net.double().eval()
    with torch.no_grad():
        for memberships in net.modules():
            if isinstance(memberships, Memberships):
                memberships.logits.normal_(0, 3)
        for layer in (net.a, net.b):
            layer.bias.normal_()
        x = net.example.double()
        torch.manual_seed(1)
        expected = net(x)
        torch.manual_seed(1)
        torch.testing.assert_close(to_dense(net)(x), expected)
        small = to_branches(net, measure=False, costs=EXACT)
        torch.manual_seed(2)
        expected = masked(net, 0.5)(x)
        torch.manual_seed(2)
        torch.testing.assert_close(small(x), expected, rtol=1e-9, atol=1e-10)


class Thrice(nn.Sequential):
    def forward(self, h):
        return self[0](h, h, h)


class AsState(nn.Sequential):
    def forward(self, h):
        return self[0](torch.ones(2, 2).to(h), h)


def hooked(module: nn.Module, hook) -> nn.Module:
    module.register_forward_hook(hook)
    return module


def replaced(module: nn.Module, forward) -> nn.Module:
    module.forward = forward
    return module


def flips(*args):
    return args[-1].flip(1)


def first(found):
    return found[0]


def on_view(change):
    """Changes a view of the nodes and hands on the nodes themselves."""

    def step(h):
        change(h.detach())
        return h

    return step


def written(h):
    out = torch.zeros(2, NODES, SIDE, SIDE).to(h)
    torch.add(h.flip(1), 1, out=out)
    return out


FOLLOWED = {
    "flatten": lambda: of_conv(nn.Flatten()),
    "flatten by function": lambda: of_conv(F.relu, lambda h: torch.flatten(h, 1)),
    "flatten by method": lambda: of_conv(lambda h: h.flatten(start_dim=1), nn.BatchNorm1d(64)),
    "flatten from behind": lambda: of_conv(lambda h: h.flatten(-3)),
    "view of the batch": lambda: of_conv(lambda h: h.relu().view(h.size(0), -1)),
    "reshape of the batch": lambda: of_conv(lambda h: h.reshape(h.shape[0], 64)),
    "view of the sizes": lambda: of_conv(lambda h: h.view(h.size()[0], h.size(1) * SIDE * SIDE)),
    "mean": lambda: of_conv(lambda h: h.mean((2, 3)), nn.BatchNorm1d(NODES), nn.Sigmoid()),
    "mean kept": lambda: of_conv(lambda h: torch.mean(h, dim=(-1, -2), keepdim=True)),
    "mean kept, by place": lambda: of_conv(lambda h: h.mean([2, 3], True), nn.Flatten()),
    "squeeze": lambda: of_conv(nn.AdaptiveAvgPool2d(1), torch.sigmoid, torch.squeeze),
    "squeeze twice": lambda: of_conv(
        lambda h: F.adaptive_max_pool2d(h, (1, 1)), lambda h: h.squeeze(-1).squeeze(-1)
    ),
    "squeeze of two": lambda: of_conv(nn.AdaptiveMaxPool2d(1), lambda h: h.squeeze((2, 3))),
    "view of one each": lambda: of_conv(nn.AdaptiveAvgPool2d(1), lambda h: h.view(-1, NODES)),
    "pooling": lambda: of_conv(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Upsample(scale_factor=2)),
    "divisor": lambda: of_conv(nn.AvgPool2d(2, divisor_override=3)),
    "norm": lambda: of_conv(nn.BatchNorm2d(NODES), nn.PReLU(NODES), nn.Dropout2d()),
    "instance norm": lambda: of_conv(nn.InstanceNorm2d(NODES)),
    "in place": lambda: of_conv(lambda h: h.mul_(2).add_(1), nn.ReLU(inplace=True)),
    "in place on a view": lambda: of_conv(on_view(lambda v: v.sigmoid_())),
    "in place on a flat view": lambda: of_conv(
        lambda h: (h.flatten(1).sigmoid_(), h)[1], nn.Flatten()
    ),
    "dropout that stays on": lambda: of_conv(F.dropout, nn.Flatten()),
    "dropout that is off": lambda: of_conv(lambda h: F.dropout(h, 0.5, False), nn.Flatten()),
    "scaled": lambda: of_conv(lambda h: h * torch.arange(1, NODES + 1).view(-1, 1, 1)),
    "plain convolution": lambda: of_conv(nn.Conv2d(NODES, 8, 1), nn.Tanh(), nn.MaxPool2d(1)),
    "transposed convolution": lambda: of_conv(nn.ConvTranspose2d(NODES, 8, 2, 2)),
    "features": lambda: of_linear(nn.GELU(), lambda h: h.view(-1, NODES)),
    "features, no other axis": lambda: of_linear(
        nn.BatchNorm1d(NODES), nn.Flatten(), nn.Sigmoid(), shape=(3, 5)
    ),
    "plain linear": lambda: of_linear(nn.Linear(NODES, 5)),
    "attention": lambda: of_linear(
        Thrice(nn.MultiheadAttention(NODES, 2, batch_first=True)), first
    ),
    "recurrent": lambda: of_linear(nn.RNN(NODES, 6, batch_first=True), first),
    "mixed, then read by a plain layer": lambda: of_conv(
        nn.GroupNorm(2, NODES), nn.Conv2d(NODES, 3, 1)
    ),
    "side by side, then read by a plain layer": lambda: of_conv(
        lambda h: torch.cat([h, h.tanh()], 1), nn.Conv2d(2 * NODES, 5, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLLOWED)
def test_nodes_are_followed_as_autograd_says(case):
    torch.manual_seed(0)
    assert_right(FOLLOWED[case]())


REFUSED = {
    "positions as channels": (lambda: of_conv(lambda h: h.view(-1, 16)), "view"),
    "positions as channels, reshaped": (lambda: of_conv(lambda h: h.reshape(-1, 16)), "reshape"),
    "as many positions as channels": (lambda: of_conv(lambda h: h.view(-1, NODES)), "view"),
    "batch as features": (lambda: of_conv(lambda h: h.view(1, -1)), "view"),
    "another size": (lambda: of_conv(lambda h: h.view(h.size(1), -1)), "view"),
    "size of something else": (
        lambda: of_conv(lambda h: h.view(h.transpose(0, 1).size(0), -1)), "view",
    ),
    "everything": (lambda: of_conv(lambda h: torch.flatten(h)), "flatten"),
    "positions only": (lambda: of_conv(lambda h: h.flatten(2)), "flatten"),
    "batch and channels": (lambda: of_conv(nn.Flatten(0, 1)), r"module parts.0 \(Flatten\)"),
    "an axis of unknown length": (
        lambda: of_conv(nn.AdaptiveAvgPool2d((1, NODES)), lambda h: h.squeeze()), "squeeze",
    ),
    "one axis": (lambda: of_conv(nn.AdaptiveAvgPool2d((NODES, 1)), lambda h: h.squeeze(-1)),
                 "squeeze"),
    "mean over channels": (lambda: of_conv(lambda h: h.mean((1, 2))), "mean"),
    "mean over one axis": (lambda: of_conv(lambda h: h.mean(2)), "mean"),
    "depthwise": (lambda: of_conv(nn.Conv2d(NODES, NODES, 3, groups=NODES)), "groups=4"),
    "grouped": (lambda: of_conv(nn.Conv2d(NODES, 8, 3, groups=2), nn.ReLU()), "groups=2"),
    "grouped and transposed": (
        lambda: of_conv(nn.ConvTranspose2d(NODES, NODES, 2, groups=2)), "groups=2",
    ),
    "permute": (lambda: of_conv(lambda h: h.permute(0, 2, 3, 1)), "permute"),
    "transpose": (lambda: of_conv(lambda h: h.transpose(1, 3)), "transpose"),
    "moveaxis": (lambda: of_conv(lambda h: torch.movedim(h, 1, -1)), "movedim"),
    "T": (lambda: of_linear(lambda h: h.T, shape=(NODES, 5)), "getattr"),
    "flip": (lambda: of_conv(lambda h: h.flip(1)), "flip"),
    "roll": (lambda: of_conv(lambda h: torch.roll(h, 1, 1)), "roll"),
    "cat": (lambda: of_conv(lambda h: torch.cat([h, h], 1)), "cat"),
    "chunk": (lambda: of_conv(lambda h: h.chunk(2, 1)[1]), "chunk"),
    "split": (lambda: of_conv(lambda h: torch.split(h, 2, 1)[1]), "split"),
    "index": (lambda: of_conv(lambda h: h[:, [1, 0, 2, 3]]), "getitem"),
    "einsum": (lambda: of_conv(lambda h: torch.einsum("nchw->nwhc", h)), "einsum"),
    "matmul": (lambda: of_linear(lambda h: h @ torch.ones(NODES, NODES).to(h)),
               "matmul"),
    "F.linear": (lambda: of_linear(lambda h: F.linear(h, torch.ones(NODES, NODES).to(h))),
                 "linear"),
    "cumsum": (lambda: of_linear(lambda h: h.cumsum(-1)), "cumsum"),
    "softmax": (lambda: of_linear(nn.Softmax(-1)), "makes every node depend on the others"),
    "F.softmax": (lambda: of_linear(lambda h: F.softmax(h, -1)), "softmax"),
    "LayerNorm": (lambda: of_linear(nn.LayerNorm(NODES)), "depend on the others"),
    "GroupNorm": (lambda: of_conv(nn.GroupNorm(2, NODES)), "depend on the others"),
    "local response": (lambda: of_conv(nn.LocalResponseNorm(2)), "depend on the others"),
    "pixel shuffle": (lambda: of_conv(nn.PixelShuffle(2)), "PixelShuffle"),
    "channel shuffle": (lambda: of_conv(nn.ChannelShuffle(2)), "ChannelShuffle"),
    "GLU": (lambda: of_conv(nn.GLU(1)), "GLU"),
    "pooling over features": (lambda: of_linear(nn.MaxPool2d(1, 1)), "MaxPool2d"),
    "pooling over channels": (lambda: of_conv(nn.AvgPool3d((2, 1, 1))), "AvgPool3d"),
    "linear along the width": (lambda: of_conv(nn.Linear(SIDE, SIDE)), "Linear"),
    "a norm of unbatched maps": (lambda: of_linear(nn.InstanceNorm2d(2)), "InstanceNorm2d"),
    "a state that lives on": (
        lambda: of_linear(AsState(nn.GRUCell(2, NODES)), shape=(2, 5)), "GRUCell",
    ),
    "a hook": (lambda: of_conv(hooked(nn.ReLU(), flips)), "it has hooks"),
    "a hook on a norm": (lambda: of_conv(hooked(nn.BatchNorm2d(NODES), flips)), "it has hooks"),
    "a forward of its own": (
        lambda: of_conv(replaced(nn.ReLU(), lambda h: h.flip(1))), "its forward has been replaced",
    ),
    "out=": (lambda: of_conv(written), "add|flip"),
    "parametrised": (
        lambda: of_conv(nn.utils.parametrizations.weight_norm(nn.Conv2d(NODES, NODES, 1))),
        "ParametrizedConv2d",
    ),
    "old weight norm": (
        lambda: of_conv(hooked(nn.Conv2d(NODES, NODES, 1), lambda *_: None)), "it has hooks",
    ),
    "copied through a view": (
        lambda: of_linear(on_view(lambda v: v.copy_(v.flip(-1)))), "copy_|flip|detach",
    ),
    "added through a view": (
        lambda: of_linear(on_view(lambda v: v.add_(v.flip(-1)))), "add_|flip|detach",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The use of .x.T")
@pytest.mark.parametrize("case", REFUSED)
def test_what_may_mix_or_move_nodes_is_refused_and_named(case):
    torch.manual_seed(0)
    make, named = REFUSED[case]
    model = make()
    with pytest.raises(ValueError, match=rf"cannot tell whose nodes b reads: .*({named})"):
        convert(model, ["a", "b"], 2)
    assert_same_outputs(convert(model, ["a", "b"], 2, links={"a": None, "b": None}))


STEPS = {
    "tanh": torch.tanh, "sigmoid": nn.Sigmoid, "norm": lambda: nn.BatchNorm2d(NODES),
    "depthwise": lambda: nn.Conv2d(NODES, NODES, 1, groups=NODES), "flatten": nn.Flatten,
    "plain": lambda: nn.Conv2d(NODES, NODES, 1), "one": lambda: nn.AdaptiveAvgPool2d(1),
    "pool": lambda: nn.MaxPool2d(2, 2, ceil_mode=True), "group norm": lambda: nn.GroupNorm(2, 4),
    "linear": lambda: nn.Linear(NODES, NODES), "layer norm": lambda: nn.LayerNorm(NODES),
    "squeeze": lambda h: h.squeeze(), "squeeze last": lambda h: h.squeeze(-1),
    "rows": lambda h: h.view(-1, NODES), "wide rows": lambda h: h.reshape(-1, 16),
    "view": lambda h: h.reshape(h.size(0), -1), "mean": lambda h: h.mean((-2, -1)),
    "kept mean": lambda h: h.mean((2, 3), keepdim=True), "swap": lambda h: h.transpose(1, -1),
    "flip": lambda h: h.flip(1), "sum": lambda h: h + h.flip(-1), "double": lambda h: h + h.tanh(),
    "cat": lambda h: torch.cat([h, h], 1), "half": lambda h: h[:, ::2],
    "add_": lambda h: h.clone().add_(1), "flat2": lambda h: h.flatten(2),
    "roll": lambda h: h.roll(1, 0), "dropout": F.dropout,
}  # fmt: skip
MODULES = {"sigmoid", "norm", "depthwise", "flatten", "plain", "one", "pool", "group norm",
           "linear", "layer norm"}  # fmt: skip


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=5), st.integers(0, 9))
@example(["kept mean", "squeeze"], 5)  # one node lives
@example(["kept mean", "squeeze"], 6)
def test_any_chain_of_steps_is_followed_as_autograd_says_or_refused(names, seed):
    torch.manual_seed(seed)
    steps = [STEPS[name] for name in names]
    made = [s() if name in MODULES else s for name, s in zip(names, steps, strict=True)]
    try:
        model = of_conv(*made)
    except (RuntimeError, ValueError, IndexError):  # torch itself does not take this chain
        return
    try:
        convert(model, ["a", "b"], 2)
    except ValueError:
        assert_same_outputs(convert(model, ["a", "b"], 2, links={"a": None, "b": None}))
    else:
        assert_right(model)
