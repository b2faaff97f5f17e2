"""What stands around the layers, and what is not ours to move."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockout import BlockoutLinear, to_branches

from ..compact.conftest import EXACT, assert_same, masked, some, stirred


class _Net(nn.Module):
    """Two Blockout layers in the middle of something."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.a = BlockoutLinear(6, 6, 3, inputs=some(6, 3), outputs=some(6, 3))
        self.b = BlockoutLinear(6, 6, 3, inputs=self.a.outputs, outputs=some(6, 3))
        self.gamma = nn.Parameter(torch.randn(6))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.b(self.a(self.stem(x).sigmoid()).sigmoid())


class _Residual(_Net):
    def forward(self, x):
        h = self.stem(x).relu()
        return self.b((h + self.a(h)).sigmoid())


class _Mixed(_Net):
    def forward(self, x):
        return self.b(F.layer_norm(self.a(self.stem(x).softmax(-1)), (6,)))


class _LayerNorm(_Net):
    def __init__(self) -> None:
        super().__init__()
        self.mixes = nn.LayerNorm(6)

    def forward(self, x):
        return self.b(self.mixes(self.a(self.stem(x).sigmoid())))


class _Twice(_Net):
    def forward(self, x):
        return self.b(self.a(self.a(self.stem(x).sigmoid()).sigmoid()))


class _NormTwice(_Net):
    def forward(self, x):
        return self.b(self.norm(self.a(self.norm(self.stem(x)))))


class _Scaled(_Net):
    def forward(self, x):
        return self.b((self.a(self.stem(x)) * self.gamma).sigmoid())


class _Shown(_Net):
    def forward(self, x):
        h = self.a(self.stem(x).sigmoid())
        return self.b(h.sigmoid()), h


class _Control(_Net):
    def forward(self, x):
        h = self.a(self.stem(x))
        return self.b(h.sigmoid()) if h.sum() < 1e9 else h


class _InPlace(_Net):
    def forward(self, x):
        h = self.a(self.stem(x))
        h.sigmoid_()
        return self.b(h)


class _Width(_Net):
    def forward(self, x):
        return self.b(self.a(self.stem(x)).sigmoid().view(-1, 6))


class _ReadsWeight(_Net):
    def forward(self, x):
        h = self.stem(x) + F.linear(x, self.stem.weight)
        return self.b(self.a(h.sigmoid()))


class _Fork(_Net):
    def forward(self, x):
        h = self.a(self.stem(x).sigmoid()).sigmoid()
        return self.b(h), self.gamma + F.relu(h)


@pytest.mark.parametrize(
    "kind",
    [_Net, _Residual, _Mixed, _LayerNorm, _Twice, _NormTwice, _Scaled, _Shown, _Control,
     _InPlace, _Width, _ReadsWeight, _Fork],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_whatever_stands_around_the_layers_outputs_are_the_same(kind, seed):
    torch.manual_seed(seed)
    model = stirred(kind()).double()
    small = to_branches(model, measure=False, costs=EXACT)
    x = torch.randn(5, 4).double()
    torch.testing.assert_close(small(x), masked(model, 0.5)(x), rtol=1e-9, atol=1e-10)
    rows = sum(len(b.weight) for b in (getattr(small.a, "blocks", None) or [small.a]))
    assert rows == 6 or kind in (_Net, _ReadsWeight)


def test_leading_dimensions_and_several_readers():
    class Fork(_Net):
        def __init__(self):
            super().__init__()
            self.c = nn.Linear(6, 2)

        def forward(self, x):
            h = self.a(self.stem(x).relu()).sigmoid()
            return self.b(h), self.c(h)

    model = Fork().double().eval()
    small = to_branches(model, measure=False, costs=EXACT)
    x = torch.randn(2, 3, 4).double()
    torch.testing.assert_close(small(x), masked(model, 0.5)(x))
    assert small.c.in_features < 6


def test_a_flattened_map_with_memberships_of_its_own_stays_in_place():
    conv = nn.Conv2d(2, 3, 1)
    fc = BlockoutLinear(12, 5, 3, inputs=some(12, 3), outputs=some(5, 3))
    model = nn.Sequential(conv, nn.Flatten(), fc).double().eval()
    small = to_branches(model, measure=False, costs=EXACT)
    assert small[0].out_channels == 3
    assert_same(small, model, 0.5, torch.randn(2, 2, 2, 2).double())
