"""blockout.models.folding: fewer steps, the same outputs."""

import pytest
import torch
import transformers
from torch import nn

from blockout.models import EfficientNetLite, InceptionBN, SmallInception
from blockout.models.folding import FoldedConv, folded

WAYS = pytest.mark.parametrize("onednn", [False, True])


def seasoned(network):
    """With statistics and scales that matter, in eval mode."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()


def require_same(network, small, size, tolerance=1e-5):
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected, found = network(x), small(x)
    assert expected.std() > 0.01 and found.shape == expected.shape
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


def kinds(network):
    return {type(module) for module in network.modules()}


@WAYS
@pytest.mark.parametrize(
    ("network", "size"),
    [
        (lambda: EfficientNetLite("efficientnet-lite0"), 64),  # 64, 32, 16, 8, 4: all even
        (lambda: EfficientNetLite("efficientnet-lite1"), 97),  # 97, 49, 25, 13, 7: all odd
        (lambda: EfficientNetLite("efficientnet-lite2"), 52),  # 52, 26, 13, 7, 4: both
        (lambda: SmallInception(0.25, early_downsampling=True), 32),
        (InceptionBN, 64),
    ],
)
def test_our_trunks_keep_their_features_without_normalisations_and_activations(
    network, size, onednn
):
    network = seasoned(network())
    small = folded(network, size, onednn=onednn)
    assert not kinds(small) & {nn.BatchNorm2d, nn.Conv2d}
    require_same(network, small, size)


class Block(nn.Module):
    """Convolutions with and without something to fold."""

    def __init__(self, activation):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2)
        self.third = nn.Conv2d(8, 8, 1, bias=False)
        self.norm, self.other, self.last = (nn.BatchNorm2d(8) for _ in range(3))
        self.activation, self.shared = activation, nn.ReLU()

    def forward(self, x):
        x = self.activation(self.norm(self.first(x)))
        y = self.second(x)
        y = self.shared(self.other(y)) + y  # read twice: cannot be folded
        return self.shared(self.last(self.third(y)))  # an activation of two


@WAYS
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.GELU(), nn.ReLU(True)])
def test_only_what_nobody_else_reads_is_folded(activation, onednn):
    network = seasoned(Block(activation))
    small = folded(network, 32, onednn=onednn)
    folds = [name for name, module in small.named_modules() if isinstance(module, FoldedConv)]
    assert folds == ["first", "third"]
    assert isinstance(small.other, nn.BatchNorm2d) and isinstance(small.shared, nn.ReLU)
    assert isinstance(small.activation, nn.GELU) == isinstance(activation, nn.GELU)
    require_same(network, small, 32)


RESNET = transformers.ResNetConfig(
    embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck"
)
EFFICIENTNET = transformers.EfficientNetConfig(
    width_coefficient=0.25, depth_coefficient=0.1, hidden_dim=320
)


@WAYS
@pytest.mark.parametrize(
    ("config", "left"),
    [(RESNET, 0), (EFFICIENTNET, 1)],  # one forward of EfficientNet cannot be followed
    ids=["resnet", "efficientnet"],
)
def test_networks_of_others_are_folded_within_their_own_modules(config, left, onednn):
    network = seasoned(transformers.AutoModel.from_config(config))

    def read(model):
        return lambda x: model(x).last_hidden_state

    small = folded(network, 64, onednn=onednn)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in small.modules()) == left
    require_same(read(network), read(small), 64)


class Standardised(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


def test_nothing_to_fold_is_none():
    plain = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    unusual = nn.Sequential(Standardised(3, 4, 1), nn.BatchNorm2d(4))
    mirrored = nn.Sequential(nn.Conv2d(3, 4, 3, padding_mode="reflect"), nn.BatchNorm2d(4))
    unmeasured = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
    uneven = nn.Sequential(nn.Conv2d(3, 4, 2, padding="same"), nn.BatchNorm2d(4))
    found = [folded(n, 8) for n in (plain, unusual, mirrored, unmeasured, uneven)]
    assert found == [None] * 5


@WAYS
@pytest.mark.parametrize("padding", ["same", "valid", (2, 1)])
def test_padding_is_kept(padding, onednn):
    conv = nn.Conv2d(3, 8, (3, 5), padding=padding, dilation=2)
    network = seasoned(nn.Sequential(conv, nn.BatchNorm2d(8)))
    require_same(network, folded(network, 32, onednn=onednn), 32)


def test_the_network_itself_stays_as_it_is():
    network = SmallInception(0.25).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    folded(network, 32)
    assert network.training and all(p.requires_grad for p in network.parameters())
    after = network.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
