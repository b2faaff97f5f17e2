"""blockout.models.inception: the tables of the architectures, and what a block computes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from blockout.models import InceptionBN, SmallInception


def weights(module):
    return sum(p.numel() for p in module.parameters())


def multiplications(module, image_size):
    with FlopCounterMode(display=False) as counter, torch.device("meta"), torch.no_grad():
        module.to("meta")(torch.empty(1, 3, image_size, image_size))
    return counter.get_total_flops() // 2


def outputs_of_blocks(trunk, image_size):
    found = {}
    for name, block in [("stem", trunk.stem), *trunk.blocks.named_children()]:
        block.register_forward_hook(
            lambda _, __, output, name=name: found.update({name: tuple(output.shape[1:])})
        )
    trunk.to("meta")(torch.empty(1, 3, image_size, image_size, device="meta"))
    return found


def unit(x, state, name, *, stride=1):
    """Convolution, batch normalisation in eval mode, ReLU, from the weights alone."""
    weight = state[f"{name}.conv.weight"]
    x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    mean, var = state[f"{name}.norm.running_mean"], state[f"{name}.norm.running_var"]
    scale = state[f"{name}.norm.weight"] / (var + 1e-5).sqrt()
    shift = state[f"{name}.norm.bias"] - mean * scale
    return (x * scale[:, None, None] + shift[:, None, None]).clamp_min(0)


def with_random_weights(module):
    """Values that let differences of the input through to the end, in float64."""
    generator = torch.Generator().manual_seed(0)
    for part in module.double().eval().modules():
        if isinstance(part, nn.Conv2d):
            part.weight.data.normal_(generator=generator)
            part.weight.data /= part.weight[0].numel() ** 0.5
        if isinstance(part, nn.BatchNorm2d):
            part.weight.data.uniform_(1, 2, generator=generator)
            part.bias.data.normal_(generator=generator)
            part.running_mean.normal_(generator=generator)
            part.running_var.uniform_(0.5, 1, generator=generator)
    return module


def test_inception_bn_has_the_widths_and_grids_of_its_table():
    assert outputs_of_blocks(InceptionBN(), 224) == {
        "stem": (192, 28, 28),
        "3a": (256, 28, 28),
        "3b": (320, 28, 28),
        "3c": (576, 14, 14),
        "4a": (576, 14, 14),
        "4b": (576, 14, 14),
        "4c": (608, 14, 14),
        "4d": (608, 14, 14),
        "4e": (1056, 7, 7),
        "5a": (1024, 7, 7),
        "5b": (1024, 7, 7),
    }


def test_inception_bn_with_its_softmax_layer_has_11_3_million_weights_and_2_03_gmac():
    trunk = InceptionBN()
    assert weights(trunk) == 10_260_224
    assert weights(trunk) + weights(nn.Linear(trunk.features, 1000)) == 11_285_224
    assert multiplications(trunk, 224) == 2_031_576_064


def test_the_compact_model_has_1_65_million_weights_and_204_mmac():
    trunk = SmallInception()
    assert (weights(trunk), trunk.features) == (1_647_744, 336)
    assert multiplications(trunk, 28) == 204_216_320


def test_the_compact_model_has_the_widths_and_grids_of_its_table():
    assert outputs_of_blocks(SmallInception(), 28) == {
        "stem": (96, 28, 28),
        "simple1": (64, 28, 28),
        "simple2": (80, 28, 28),
        "down1": (160, 14, 14),
        "simple3": (160, 14, 14),
        "simple4": (160, 14, 14),
        "simple5": (160, 14, 14),
        "simple6": (144, 14, 14),
        "down2": (240, 7, 7),
        "simple7": (336, 7, 7),
        "simple8": (336, 7, 7),
    }


def test_the_cpu_model_has_0_41_million_weights_and_24_mmac():
    trunk = SmallInception(width=0.5, early_downsampling=True)
    assert (weights(trunk), trunk.features) == (413_440, 168)
    assert multiplications(trunk, 32) == 23_730_176


def test_early_downsampling_quarters_the_work_after_the_first_block_and_adds_no_weights():
    full, early = SmallInception(0.5), SmallInception(0.5, early_downsampling=True)
    assert weights(full) == weights(early)
    first = (3 * 48 * 9 + 48 * 16 * (1 + 9)) * 32 * 32
    rest = multiplications(full, 32) - first
    assert multiplications(early, 32) - first == rest // 4


def test_a_quarter_of_the_width_has_a_quarter_of_every_width():
    full, quarter = SmallInception(1.0), SmallInception(0.25)
    for wide, narrow in zip(full.modules(), quarter.modules(), strict=True):
        if isinstance(wide, nn.BatchNorm2d):
            assert narrow.num_features == wide.num_features // 4


def test_an_inception_block_computes_its_four_branches_side_by_side():
    block = with_random_weights(InceptionBN().blocks.get_submodule("3a"))
    state = block.state_dict()
    x = torch.randn(2, 192, 5, 5, dtype=torch.float64)
    ones = torch.ones_like(x)
    mean = F.avg_pool2d(x, 3, 1, 1) / F.avg_pool2d(ones, 3, 1, 1)  # of what lies inside
    three = unit(unit(x, state, "conv3x3.0"), state, "conv3x3.1")
    twice = unit(x, state, "conv3x3_twice.0")
    twice = unit(unit(twice, state, "conv3x3_twice.1"), state, "conv3x3_twice.2")
    pooled = unit(mean, state, "pool.1")
    expected = torch.cat([unit(x, state, "conv1x1"), three, twice, pooled], 1)
    torch.testing.assert_close(block(x), expected)


def test_a_reducing_block_halves_in_the_last_convolutions_and_passes_the_maximum_on():
    block = with_random_weights(InceptionBN().blocks.get_submodule("3c"))
    state = block.state_dict()
    x = torch.randn(2, 320, 6, 6, dtype=torch.float64)
    three = unit(unit(x, state, "conv3x3.0"), state, "conv3x3.1", stride=2)
    twice = unit(unit(x, state, "conv3x3_twice.0"), state, "conv3x3_twice.1")
    twice = unit(twice, state, "conv3x3_twice.2", stride=2)
    expected = torch.cat([three, twice, F.max_pool2d(x, 3, 2, 1)], 1)
    torch.testing.assert_close(block(x), expected)


def test_the_last_block_of_inception_bn_pools_by_maximum():
    pools = {
        name: type(block.get_submodule("pool.0"))
        for name, block in InceptionBN().blocks.named_children()
        if name not in ("3c", "4e")
    }
    assert pools.pop("5b") is nn.MaxPool2d
    assert set(pools.values()) == {nn.AvgPool2d}


def test_the_compact_model_computes_its_table():
    trunk = with_random_weights(SmallInception(0.125, early_downsampling=True))
    state = trunk.state_dict()
    image = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    x = unit(image, state, "stem.conv")
    for name in trunk.blocks._modules:
        if name == "early_pool":
            x = F.max_pool2d(x, 2)
            continue
        if name.startswith("simple"):
            left = unit(x, state, f"blocks.{name}.conv1x1")
            right = unit(x, state, f"blocks.{name}.conv3x3")
        else:
            left = unit(x, state, f"blocks.{name}.conv3x3", stride=2)
            right = F.max_pool2d(x, 3, 2, 1)
        x = torch.cat([left, right], 1)
    torch.testing.assert_close(trunk(image), x)
    assert (x[0] - x[1]).abs().mean() > 0.1  # the images make a difference


@pytest.mark.parametrize("image_size", [28, 32, 37, 64])
@pytest.mark.parametrize("early", [False, True])
def test_every_weight_of_the_compact_model_learns_at_any_image_size(image_size, early):
    torch.manual_seed(0)
    trunk = SmallInception(0.125, early_downsampling=early)
    trunk(torch.randn(4, 3, image_size, image_size)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in trunk.parameters())


def test_the_memory_layout_of_the_images_does_not_matter():
    torch.manual_seed(0)
    trunk = SmallInception(0.25).eval()
    x = torch.randn(2, 3, 32, 32)
    result = trunk(x)
    assert torch.equal(result, trunk(x.to(memory_format=torch.channels_last)))
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert all(p.is_contiguous() for p in trunk.parameters())


def test_a_width_must_be_positive():
    with pytest.raises(ValueError, match="width must be positive, got 0"):
        SmallInception(width=0)
