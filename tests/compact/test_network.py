"""A network like any other, never slower than dense; what is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockout import BlockoutLinear, to_branches
from blockout.compact import (
    DenseBlocks,
    SparseConv2d,
    SparseLinear,
    connected_weights,
    multiply_adds,
    notes,
)

from .conftest import CHEAP_CALLS, EXACT, chain, conv_chain, layer_of, masked, random_codes, stirred


def _blocky() -> nn.Module:
    """A head whose FC2 becomes gathered, contiguous and zero-padded blocks."""
    torch.manual_seed(3)
    fc2 = layer_of(random_codes(60, 4), random_codes(50, 4))
    model = nn.Sequential(nn.Linear(5, 60), nn.ReLU(), fc2, nn.BatchNorm1d(50), nn.Tanh(),
                          nn.Linear(50, 3))  # fmt: skip
    small = to_branches(stirred(model), measure=False, costs=CHEAP_CALLS)
    kinds = {type(block) for block in small[2].blocks}
    assert kinds == {nn.Linear, SparseLinear}
    assert None in small[2].starts
    return small


def test_the_original_is_left_as_it_was_and_gives_the_same_again():
    model = conv_chain(3, True, nn.ReLU, 1, "zeros").train()
    before = copy.deepcopy(model)
    small = to_branches(model, 0.5, measure=False, costs=EXACT)
    with torch.no_grad():
        for tensor in small.state_dict().values():
            tensor.add_(1)
    assert repr(model) == repr(before)
    assert model.training
    assert all(map(torch.equal, model.state_dict().values(), before.state_dict().values()))
    again = to_branches(model, 0.5, measure=False, costs=EXACT)
    assert list(again.state_dict()) == list(small.state_dict())


def test_mode_dtype_and_frozen_weights_are_kept():
    model = chain(3, True, True, nn.ReLU, "plain").bfloat16().train()
    model[3].weight.requires_grad_(False)
    model[1].eval()
    small = to_branches(model, measure=False, costs=EXACT)
    assert {p.dtype for p in small.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for n, p in small[3].named_parameters() if "weight" in n)
    assert small[7].training
    assert not small[1].training


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_fine_tuning_trains_what_is_there_and_leaves_zeros_zero(optimiser):
    small = _blocky().train()
    momentum = {"momentum": 0.9} if optimiser is torch.optim.SGD else {}
    optimizer = optimiser(small.parameters(), lr=0.05, weight_decay=1e-3, **momentum)
    zeros = {name: p == 0 for name, p in small.named_parameters() if "weight" in name}
    before = {name: p.detach().clone() for name, p in small.named_parameters()}
    x, y = torch.randn(64, 5), torch.randint(3, (64,))
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(small(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    assert sum(int(zero.sum()) for zero in zeros.values()) > 40
    for name, zero in zeros.items():
        p = small.get_parameter(name)
        assert torch.all(p[zero] == 0)
        assert not torch.any(p[~zero] == before[name][~zero])


def test_convolutions_keep_their_zeros_as_well():
    conv = SparseConv2d(2, 1, 3).train()
    conv.weight.data[0, 1] = 0
    conv(torch.randn(1, 2, 4, 4)).square().sum().backward()
    assert torch.all(conv.weight.grad[0, 1] == 0)
    assert torch.all(conv.weight.grad[0, 0] != 0)


def test_it_can_be_copied_saved_and_loaded():
    small = _blocky().eval()
    twin = copy.deepcopy(small)
    x = torch.randn(4, 5)
    assert torch.equal(twin(x), small(x))
    assert notes(twin) == notes(small)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    twin.load_state_dict(small.state_dict())
    assert torch.equal(twin(x), small(x))


@pytest.mark.parametrize("conv", [False, True])
def test_exported_programs_take_any_batch(conv):
    torch.compiler.reset()  # torch 2.6 counts what all tests before have compiled
    small, size = (_blocky().eval(), (5,)) if not conv else (None, (2, 8, 9))
    if small is None:
        model = conv_chain(3, True, nn.ReLU, 1, "zeros")
        small = to_branches(model, 0.5, measure=False, costs=EXACT)
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(small, (torch.randn(3, *size),), dynamic_shapes=({0: batch},))
    for count in (2, 7):
        x = torch.randn(count, *size)
        torch.testing.assert_close(program.module()(x), small(x))


@pytest.mark.filterwarnings("ignore")  # of the exporter's own making
def test_onnx_computes_the_same(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    small = _blocky().eval()
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.onnx.export(
        small, (torch.randn(3, 5),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    program.save(tmp_path / "small.onnx")
    session = runtime.InferenceSession(tmp_path / "small.onnx")
    for count in (1, 7):
        x = torch.randn(count, 5)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), small(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("seconds", "dense", "word"),
    [
        ([1.0, 0.5, 0.7], False, "measured 2.0 times as fast as dense"),
        ([1.0, 0.85, 1.2], True, "would not be worth it; measured 1.2 times as fast as dense"),
        ([1.0, 3.0, 2.0], True, "would not be worth it; measured 1.0 times as fast as dense"),
    ],
)
def test_the_measurement_decides_and_says_so(monkeypatch, seconds, dense, word):
    shapes = []

    def measured(modules, example):
        shapes.append(tuple(example.shape))
        return seconds[: len(modules)] + [9.0] * (len(modules) - len(seconds))

    monkeypatch.setattr("blockout.compact.layout._measured", measured)
    model = layer_of(random_codes(64, 4), random_codes(64, 4))
    small = to_branches(model, batch_size=5)
    assert isinstance(small, SparseLinear if dense else DenseBlocks)
    assert notes(small)[""].endswith(word)
    assert shapes == [(5, 64)]
    x = torch.randn(2, 64)
    torch.testing.assert_close(small(x), masked(model, 0.5)(x))


def test_small_layers_stay_dense_and_large_ones_do_not_by_the_cost_model():
    for nodes, kind in ((64, SparseLinear), (1024, DenseBlocks)):
        codes = torch.eye(4).repeat_interleave(nodes // 4, dim=0)
        small = to_branches(layer_of(codes, codes), measure=False, batch_size=64)
        assert type(small) is kind
    single = to_branches(layer_of(codes, codes), measure=False, batch_size=1)
    assert type(single) is DenseBlocks


def test_a_real_measurement_chooses_among_layouts_that_all_compute_the_same():
    """Which of them is fastest is for a benchmark to say; here, that one is timed and chosen."""
    codes = torch.eye(8).repeat_interleave(16, dim=0)
    model = layer_of(codes, codes)
    small = to_branches(model, batch_size=128)
    assert "times as fast as dense" in notes(small)[""] and "measured" in notes(small)[""]
    x = torch.randn(2, 128)
    torch.testing.assert_close(small(x), masked(model, 0.5)(x))


def test_an_example_says_how_large_maps_are(monkeypatch):
    seen = []

    def measured(modules, example):
        seen.append(tuple(example.shape))
        return [1.0] * len(modules)

    monkeypatch.setattr("blockout.compact.layout._measured", measured)
    torch.manual_seed(1)
    model = conv_chain(4, True, nn.ReLU, 1, "zeros")
    to_branches(model, batch_size=3, example=torch.randn(1, 2, 8, 9))
    assert {shape[:1] + shape[2:] for shape in seen} == {(3, 8, 9), (3, 4, 4), (3,)}
    seen.clear()
    to_branches(model, batch_size=3)
    assert {shape[:1] + shape[2:] for shape in seen} == {(3, 16, 16), (3,)}


def test_multiply_adds_count_every_position():
    conv = nn.Conv2d(2, 3, 3, padding=1)
    assert multiply_adds(conv, torch.randn(1, 2, 5, 7)) == 5 * 7 * 2 * 3 * 9
    assert multiply_adds(nn.Linear(4, 3), torch.randn(2, 5, 4)) == 10 * 12
    layer = BlockoutLinear(4, 3, 2).train()
    assert multiply_adds(layer, torch.randn(1, 4)) == 12
    assert layer.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 1.5}, r"threshold must lie in \[0, 1\], as memberships do, got 1.5"),
        ({"threshold": -0.1}, "got -0.1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        to_branches(layer_of(torch.ones(2, 1), torch.ones(2, 1)), **arguments)


def test_a_model_without_blockout_layers_is_refused():
    with pytest.raises(ValueError, match="Sequential has no Blockout layers to compact"):
        to_branches(nn.Sequential(nn.Linear(2, 2)))


def test_a_p_that_is_the_threshold_belongs():
    layer = BlockoutLinear(6, 4, clusters=2)  # all P are one half
    assert connected_weights(layer, 0.5) == 24 and connected_weights(layer, 0.51) == 0
