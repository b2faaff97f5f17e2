"""blockout.models.gradcam: against maps worked out by hand."""

import pytest
import torch
from torch import nn
from transformers import (
    ConvNextConfig,
    ConvNextModel,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTModel,
)

from blockout.models import (
    EfficientNetLite,
    Head,
    ImageClassifier,
    PretrainedTrunk,
    SmallInception,
    grad_cam,
)

GRIDS = torch.tensor([[[1.0, 2.0], [0.0, 4.0]], [[3.0, 0.0], [1.0, 1.0]]])
"""Two channels of two by two, as the trunk below gives them."""


class Given(nn.Module):
    """A trunk whose last map is known."""

    def forward(self, x):
        return x[:, :2]


def test_a_linear_head_weighs_the_channels_by_its_own_weights():
    head = nn.Linear(2, 2)
    head.weight.data = torch.tensor([[2.0, -1.0], [-1.0, 3.0]])
    model = ImageClassifier(Given(), head).eval()
    found = grad_cam(model, GRIDS.expand(2, 2, 2, 2), torch.tensor([0, 1]))
    # class 0: 2 A_0 - A_1 = -1, 4, -1, 7; class 1: 3 A_1 - A_0 = 8, -2, 3, -1; both over 4
    expected = torch.tensor([[[0.0, 4.0], [0.0, 7.0]], [[8.0, 0.0], [3.0, 0.0]]])
    torch.testing.assert_close(found, expected / torch.tensor([7.0, 8.0]).view(2, 1, 1))


def test_a_hidden_layer_passes_gradients_of_living_nodes_only():
    hidden, last = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
    hidden.weight.data = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])  # the second never fires
    last.weight.data = torch.tensor([[2.0, 100.0]])
    model = ImageClassifier(Given(), nn.Sequential(hidden, nn.ReLU(), last)).eval()
    found = grad_cam(model, GRIDS[None], torch.tensor([0]))
    sums = GRIDS.sum(0)
    torch.testing.assert_close(found, (sums / sums.max())[None])


def test_where_nothing_speaks_for_a_class_the_map_is_zero():
    head = nn.Linear(2, 1)
    head.weight.data = torch.tensor([[-1.0, -1.0]])
    found = grad_cam(ImageClassifier(Given(), head), GRIDS[None], torch.tensor([0]))
    assert found.tolist() == [[[0.0, 0.0], [0.0, 0.0]]]


@pytest.mark.parametrize("method", ["baseline", "fc", "dropout", "dropconnect", "blockout"])
@pytest.mark.parametrize("frozen", [True, False])
def test_every_head_explains_itself_and_nothing_is_left_behind(method, frozen):
    torch.manual_seed(0)
    head = Head(34, 4, method=method, nodes=8, clusters=2)
    model = ImageClassifier(SmallInception(0.1), head, freeze_trunk=frozen).eval()
    with torch.no_grad():
        found = grad_cam(model, torch.randn(3, 3, 32, 32), torch.tensor([0, 1, 2]))
    assert found.shape == (3, 8, 8) and not found.requires_grad
    assert bool(((found >= 0) & (found <= 1)).all()) and found.max() == 1
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_map_of_an_efficientnet_is_as_fine_as_its_last_grid():
    model = ImageClassifier(EfficientNetLite("efficientnet-lite0"), nn.Linear(1280, 2)).eval()
    found = grad_cam(model, torch.randn(1, 3, 96, 96), torch.tensor([1]))
    assert found.shape == (1, 3, 3)


def test_a_pooled_resnet_is_explained_by_the_map_below_its_pooling():
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    network, head = ResNetModel(config).eval(), nn.Linear(12, 3)
    images, classes = torch.randn(2, 3, 32, 32), torch.tensor([2, 0])
    found = [
        grad_cam(ImageClassifier(PretrainedTrunk(network, readout, 12), head), images, classes)
        for readout in ("pooler", "map")
    ]
    assert found[0].shape == (2, 4, 4) and found[0].max() == 1
    torch.testing.assert_close(found[0], found[1])


def test_a_normalisation_after_the_pooling_is_part_of_what_is_explained():
    torch.manual_seed(0)
    config = ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], patch_size=2)
    network, head = ConvNextModel(config).eval(), nn.Linear(8, 3)
    images = torch.randn(1, 3, 64, 64)
    trunk = PretrainedTrunk(network, "pooler", 8)
    found = grad_cam(ImageClassifier(trunk, head, freeze_trunk=True), images, torch.tensor([1]))
    grid = network(images).last_hidden_state.detach().requires_grad_()
    head(network.layernorm(grid.mean((2, 3))))[0, 1].backward()
    expected = (grid.grad.mean((2, 3), keepdim=True) * grid).sum(1).relu().detach()
    torch.testing.assert_close(found, expected / expected.max())


def test_tokens_and_features_without_a_grid_have_no_map():
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = ViTConfig(**size, intermediate_size=32, image_size=32, patch_size=8)
    images, classes = torch.randn(1, 3, 32, 32), torch.tensor([0])
    for readout in ("pooler", "first token"):
        trunk = PretrainedTrunk(ViTModel(config).eval(), readout, 16)
        assert grad_cam(ImageClassifier(trunk, nn.Linear(16, 2)), images, classes) is None
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    assert grad_cam(ImageClassifier(flat, nn.Linear(4, 2)), images, classes) is None
    one_cell = nn.Conv2d(3, 4, 32)
    assert grad_cam(ImageClassifier(one_cell, nn.Linear(4, 2)), images, classes) is None
