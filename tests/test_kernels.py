"""Fast products against the reference in ``masking``: values, gradients, memory, and change."""

import gc
import math
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from blockout import BlockoutConv2d, BlockoutLinear, kernels, layers, masking
from blockout.kernels import choice, kept, library, native, product, tiles
from blockout.masking import Assignments

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(autouse=True, params=["torch", "native"])
def small_layers_too(request, monkeypatch):
    """Many tiles in small layers, and codes of few rows; then the same by compiled code."""
    if request.param == "native" and library.found().code is None:
        pytest.skip(f"nothing is compiled here: {library.found().told}")
    monkeypatch.setattr(native, "FEWEST_WEIGHTS", 0 if request.param == "native" else math.inf)
    monkeypatch.setattr(choice, "FEWEST_WEIGHTS", 0)
    monkeypatch.setattr(tiles, "TILE", 64)
    monkeypatch.setattr(tiles, "FEWEST_ROWS", 3)
    monkeypatch.setattr(product, "AT_ONCE", 32)


def memberships(kind: str, nodes: int, k: int, p: float, dtype: torch.dtype):
    """C of one side, and what receives its gradient."""
    bits = torch.bernoulli(torch.full((nodes, k), p, dtype=dtype))
    if kind == "given":
        return bits, None
    if kind == "soft":
        values = (torch.rand(nodes, k, dtype=dtype) * bits).requires_grad_()
        return values, values
    if kind == "fixed":
        return Assignments(bits), None
    learns = torch.rand(nodes, k, dtype=dtype, requires_grad=True)
    return Assignments(bits, learns, "eq9" if kind == "eq9" else "two-sided"), learns


def results(product, x, weight, bias, sides, learns, of=Tensor.clone) -> list[Tensor]:
    x, weight, bias = of(x), of(weight), None if bias is None else of(bias)
    y = product(x, weight, *sides, bias)
    delta = of(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape))
    learn = [x, weight, *([] if bias is None else [bias]), *learns]
    return [y.detach(), *torch.autograd.grad(y, learn, delta)]


kinds = st.sampled_from(["eq9", "two-sided", "fixed", "soft", "given"])
few = st.integers(1, 40)


clusters = st.sampled_from([1, 2, 3, 6, 9, 15])
shares = st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0])
dtypes = st.sampled_from(list(TOLERANCE))


@given(few, few, clusters, shares, kinds, kinds, st.integers(0, 5), st.booleans(), dtypes, few)
@example(40, 40, 6, 0.1, "eq9", "eq9", 3, True, torch.float64, 0)  # sparse
@example(80, 70, 6, 0.1, "eq9", "eq9", 3, True, torch.float64, 0)  # sparse, from a table of codes
@example(80, 70, 6, 0.5, "two-sided", "eq9", 3, True, torch.float32, 0)  # dense, from a table
@example(40, 40, 6, 0.1, "soft", "eq9", 3, True, torch.float64, 0)  # zeros have gradients
@example(40, 40, 2, 0.0, "eq9", "eq9", 3, True, torch.float64, 1)  # every node is dead
@example(40, 40, 6, 1.0, "eq9", "fixed", 3, True, torch.float32, 2)  # a plain layer
@example(40, 33, 6, 0.2, "eq9", "eq9", 0, False, torch.float32, 3)  # no example in the batch
def test_values_and_all_gradients_are_those_of_the_reference(
    nodes_out, nodes_in, k, p, kind_out, kind_in, n, has_bias, dtype, seed
):
    torch.manual_seed(seed)
    x = torch.randn(n, 2, nodes_in, dtype=dtype, requires_grad=True)
    weight = torch.randn(nodes_out, nodes_in, dtype=dtype, requires_grad=True)
    bias = torch.randn(nodes_out, dtype=dtype, requires_grad=True) if has_bias else None
    c_out, learns_out = memberships(kind_out, nodes_out, k, p, dtype)
    c_in, learns_in = memberships(kind_in, nodes_in, k, p, dtype)
    learns = [one for one in (learns_out, learns_in) if one is not None]
    arguments = x, weight, bias, (c_out, c_in), learns
    expected = results(masking.masked_linear, *arguments)
    got = results(kernels.masked_linear, *arguments)
    again = results(kernels.masked_linear, *arguments)
    summands = results(masking.masked_linear, *arguments, of=torch.abs)
    for one, terms, other, same in zip(expected, summands, got, again, strict=True):
        assert torch.equal(other, same), "the same draws give the same bits"
        assert other.shape == one.shape and other.dtype == one.dtype
        if one.numel():
            scale = max(float(one.abs().max()), float(terms.max()) / 10)  # summands may cancel
            assert float((one - other).abs().max()) <= TOLERANCE[dtype] * scale


@given(
    few, few, clusters, shares, kinds, kinds, st.integers(0, 4), st.sampled_from([1, (2, 1), 3]),
    st.booleans(), dtypes, few,
)  # fmt: skip
@example(40, 40, 6, 0.1, "eq9", "eq9", 4, 1, True, torch.float64, 0)  # sparse, channels last
@example(40, 40, 2, 0.0, "eq9", "eq9", 3, 1, False, torch.float64, 1)  # every node is dead
@example(40, 40, 6, 1.0, "eq9", "fixed", 3, 2, True, torch.float32, 2)  # a plain convolution
@example(40, 33, 6, 0.2, "eq9", "eq9", 0, 1, False, torch.float32, 3)  # no image in the batch
def test_1x1_convolutions_are_those_of_the_reference(
    nodes_out, nodes_in, k, p, kind_out, kind_in, n, stride, last, dtype, seed
):
    torch.manual_seed(seed)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(n, nodes_in, 5, 4, dtype=dtype).to(memory_format=layout).requires_grad_()
    weight = torch.randn(nodes_out, nodes_in, 1, 1, dtype=dtype, requires_grad=True)
    bias = torch.randn(nodes_out, dtype=dtype, requires_grad=True)
    c_out, learns_out = memberships(kind_out, nodes_out, k, p, dtype)
    c_in, learns_in = memberships(kind_in, nodes_in, k, p, dtype)
    learns = [one for one in (learns_out, learns_in) if one is not None]
    arguments = x, weight, bias, (c_out, c_in), learns
    expected, summands, got = (
        results(partial(of_masks, stride=stride), *arguments, of=of)
        for of_masks, of in (
            (masking.masked_conv2d, Tensor.clone),
            (masking.masked_conv2d, torch.abs),
            (kernels.masked_conv2d, Tensor.clone),
        )
    )
    for one, terms, other in zip(expected, summands, got, strict=True):
        assert other.shape == one.shape and other.dtype == one.dtype
        if one.numel():
            scale = max(float(one.abs().max()), float(terms.max()) / 10)  # summands may cancel
            assert float((one - other).abs().max()) <= TOLERANCE[dtype] * scale
    if n > 1 and min(nodes_out, nodes_in) > 1:
        assert got[0].stride() == expected[0].stride()


@pytest.mark.parametrize(("side", "p", "changes", "as_linear"), [
    (1, 1.0, {}, True),
    (4, 0.5, {}, True),
    (40, 0.5, {}, False),
    (40, 0.1, {}, False),
    (40, 0.1, {"stride": 2, "padding": "valid"}, True),
    (4, 0.5, {"padding": (0, 0)}, True),
    (4, 0.5, {"padding": 1}, False),
    (4, 0.5, {"stride": (1,)}, False),
])  # fmt: skip
def test_1x1_convolutions_with_few_places_are_linear_layers(
    request, monkeypatch, side, p, changes, as_linear
):
    calls, fast = [], choice._fast
    monkeypatch.setattr(choice, "_fast", lambda *a, **b: calls.append(a) or fast(*a, **b))
    torch.manual_seed(0)
    sides = [memberships("eq9", nodes, 6, p, torch.float32)[0] for nodes in (40, 30)]
    x, weight = torch.randn(1, 30, side, side), torch.randn(40, 30, 1, 1, requires_grad=True)
    y = kernels.masked_conv2d(x, weight, *sides, **changes)
    torch.testing.assert_close(y, masking.masked_conv2d(x, weight, *sides, **changes))
    assert bool(calls) == (as_linear and "native" in request.node.callspec.id)


@given(few, few, st.integers(1, 8), st.floats(0, 0.4), st.integers(0, 99))
def test_sparse_tiles_hold_every_pair_that_shares_a_cluster_and_each_row_once(n, m, k, p, seed):
    torch.manual_seed(seed)
    c_out, c_in = torch.bernoulli(torch.full((n, k), p)), torch.bernoulli(torch.full((m, k), p))
    found = tiles.sparse_tiles(c_out, c_in)
    if found is None:
        return
    held, times = torch.zeros(n, m, dtype=torch.bool), torch.zeros(n)
    for rows, columns in found:
        assert isinstance(rows, Tensor) and isinstance(columns, Tensor)
        held[rows[:, None], columns] = True
        times[rows] += 1
    assert bool((held | (c_out @ c_in.T == 0)).all())
    assert float(times.max()) <= 1 if n else True


def test_disjoint_clusters_are_computed_apart_and_common_ones_together():
    alone = nn.functional.one_hot(torch.arange(24) % 4).float()
    found = tiles.sparse_tiles(alone, alone)
    assert found is not None and sum(len(r) * len(c) for r, c in found) == 24 * 24 / 4  # pyright: ignore
    assert tiles.sparse_tiles(torch.ones(24, 4), alone) is None, "nothing can be left out"
    assert tiles.sparse_tiles(torch.eye(24), torch.eye(24)) is None, "no two rows are alike"


class LargeMemory(TorchDispatchMode):
    """Which operations give memory as large as the weight, other than its own."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.found = weight.untyped_storage(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.untyped_storage().nbytes() >= self.weight.nbytes():
            storage = result.untyped_storage()
            if storage.data_ptr() != self.weight.data_ptr():
                self.found.setdefault(storage.data_ptr(), (str(func), storage))
        return result


@pytest.mark.parametrize("p", [0.5, 0.1])
def test_nothing_as_large_as_the_weight_is_written_but_its_gradient(monkeypatch, p):
    monkeypatch.setattr(tiles, "TILE", 4096)
    weight, x = torch.randn(256, 256, requires_grad=True), torch.randn(4, 256)
    sides = [memberships("eq9", 256, 6, p, torch.float32)[0] for _ in range(2)]
    with LargeMemory(weight) as large:
        choice._fast(x, weight, sides[0], sides[1], None, False).sum().backward()
    assert [name for name, _ in large.found.values()] == ["aten.empty_like.default"]


def test_a_gradient_can_be_differentiated_again():
    torch.manual_seed(0)
    bits = [torch.bernoulli(torch.full((6, 3), 0.3, dtype=torch.float64)) for _ in range(2)]

    def product(x, weight, bias, *learns):
        sides = [Assignments(b, p) for b, p in zip(bits, learns, strict=True)]
        return kernels.masked_linear(x, weight, *sides, bias)

    shapes = ((4, 6), (6, 6), (6,), (6, 3), (6, 3))
    inputs = tuple(torch.rand(*s, dtype=torch.float64, requires_grad=True) for s in shapes)
    assert torch.autograd.gradgradcheck(lambda *three: product(*three, *inputs[3:]), inputs[:3])


# --- what surrounds a layer -----------------------------------------------------------------------


@pytest.fixture(params=[0.5, 0.1], ids=["dense", "sparse"])
def layer(request):
    """So many nodes that their masks are rows of a table of codes."""
    torch.manual_seed(1)
    layer = BlockoutLinear(70, 70, clusters=6, dtype=torch.float64)
    for side in (layer.inputs, layer.outputs):
        side.put(torch.full((70, 6), request.param))
    return layer


def gradients(layer, monkeypatch, run) -> list[list[Tensor]]:
    """Of all parameters and of the input, with kernels and with the reference."""
    found = []
    for kind in (kernels, masking):
        with monkeypatch.context() as patched:
            patched.setattr(layers.kernels, "masked_linear", kind.masked_linear)
            torch.manual_seed(0)
            layer.zero_grad()
            layer.inputs.forget(), layer.outputs.forget()
            x = torch.randn(4, 70, dtype=torch.float64, requires_grad=True)
            run(layer, x)
            found.append([one.grad for one in (x, *layer.parameters()) if one.grad is not None])
    return found


AROUND = {
    "an activation in place": lambda layer, x: layer(x).relu_().sum().backward(),
    "an activation in place, three axes": lambda layer, x: layer(x[None]).relu_().sum().backward(),
    "the same layer twice, differentiably": lambda layer, x: layer(layer(x).tanh())
    .square().sum().backward(create_graph=True),
    "a penalty on the gradient": lambda layer, x: torch.autograd.grad(
        layer(x).square().sum(), x, create_graph=True
    )[0].square().sum().backward(),
    "a bias that changes meanwhile": lambda layer, x: [
        y := layer(x).sum(), layer.bias.detach().add_(1), y.backward(),
    ],
    "a frozen weight": lambda layer, x: [
        layer.weight.requires_grad_(False), layer(x).sum().backward(),
        layer.weight.requires_grad_(True),
    ],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
@pytest.mark.parametrize("around", AROUND)
def test_a_layer_learns_as_with_the_reference(layer, monkeypatch, around):
    got, expected = gradients(layer, monkeypatch, AROUND[around])
    assert len(expected) >= 4
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_lie_in_rows_as_others_expect(layer):
    x = torch.randn(4, 70, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert y.is_contiguous() and y._base is None
    (found,) = torch.autograd.grad(y.sum(), x)
    assert found.is_contiguous()


def test_gradients_of_many_outputs_at_once(layer):
    x = torch.randn(4, 70, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    each = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
    (batched,) = torch.autograd.grad(y, x, each, is_grads_batched=True, retain_graph=True)
    for one, alone in zip(batched[::17], each[::17], strict=True):
        torch.testing.assert_close(one, torch.autograd.grad(y, x, alone, retain_graph=True)[0])


def test_a_backward_pass_inside_autocast_keeps_its_precision(layer):
    layer.float()
    x = torch.randn(4, 70, requires_grad=True)
    y = layer(x).sum()
    (expected,) = torch.autograd.grad(y, x, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(torch.autograd.grad(y, x)[0], expected)


def test_another_default_device_changes_nothing(layer):
    x = torch.randn(4, 70, dtype=torch.float64)
    torch.set_default_device("meta")
    try:
        layer(x).sum().backward()
    finally:
        torch.set_default_device(None)
    assert layer.weight.grad.device.type == "cpu"


@pytest.mark.parametrize("what", [
    {"x": torch.randn(3, 7)}, {"x": torch.randn(7)}, {"c_out": torch.ones(12, 2)},
    {"c_out": torch.ones(5, 2)}, {"c_in": torch.ones(3, 2)}, {"c_in": torch.ones(9, 2)},
    {"c_in": torch.ones(8, 3)}, {"bias": torch.zeros(5)},
])  # fmt: skip
def test_sizes_that_do_not_fit_are_refused_as_by_the_reference(what):
    fitting = {"x": torch.randn(3, 8), "c_out": torch.ones(6, 2), "c_in": torch.ones(8, 2)}
    given = fitting | {"weight": torch.randn(6, 8).requires_grad_(), "bias": None} | what
    with pytest.raises(RuntimeError) as expected:
        masking.masked_linear(**given)
    with pytest.raises(RuntimeError) as got:
        kernels.masked_linear(**given)
    assert str(got.value) == str(expected.value)
    given |= {"weight": given["weight"][:, :, None, None]}
    given |= {"x": given["x"][:, :, None, None]} if given["x"].dim() == 2 else {}
    with pytest.raises(RuntimeError) as expected:
        masking.masked_conv2d(**given)
    with pytest.raises(RuntimeError) as got:
        kernels.masked_conv2d(**given)
    assert str(got.value) == str(expected.value)


def test_transforms_of_functions_use_the_reference():
    layer = BlockoutLinear(8, 6, clusters=2).eval()
    x = torch.randn(5, 8)
    expected = torch.func.vmap(lambda row: nn.functional.linear(row, layer.expected_weight()))(x)
    values = dict(layer.named_parameters())
    called = torch.func.vmap(lambda row: torch.func.functional_call(layer, values, row))(x)
    torch.testing.assert_close(called - layer.bias, expected)


# --- eval mode ------------------------------------------------------------------------------------


def evaluated(layer, x):
    with torch.no_grad():
        return layer.eval()(x)


CHANGES = {
    "one weight": lambda layer: layer.weight.detach()[1, 1].add_(1),
    "the weight in place": lambda layer: layer.weight.detach().mul_(2),
    "the weight through .data": lambda layer: layer.weight.data.mul_(2),
    "another weight": lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight * 2)),
    "a membership": lambda layer: layer.outputs.put(torch.full((6, 2), 0.9)),
    "a state": lambda layer: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [
    lambda: (BlockoutLinear(8, 6, clusters=2), torch.randn(5, 8)),
    lambda: (BlockoutConv2d(8, 6, 3, clusters=2), torch.randn(5, 8, 4, 4)),
])  # fmt: skip
def test_in_eval_mode_the_masked_weight_is_kept_until_something_changes(make, change, monkeypatch):
    layer, x = make()
    monkeypatch.setattr(kept, "SAMPLE", 2)
    before = evaluated(layer, x)
    torch.testing.assert_close(before, layer.to_plain()(x))
    with monkeypatch.context() as without:
        without.setattr(kept, "masked_weight", None)  # would fail if it were asked for again
        torch.testing.assert_close(evaluated(layer, x), before)
    CHANGES[change](layer)
    after = evaluated(layer, x)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, layer.to_plain()(x))


def test_the_sample_of_a_weight_meets_every_column():
    for count, columns in ((1024 * 1024, 1024), (4096 * 4096, 4096), (300 * 700, 700)):
        places = torch.arange(0, count, kept._stride(count))
        assert len((places % columns).unique()) == columns
        assert len(places) > kept.SAMPLE / 2


def test_parameters_can_be_swapped_after_an_evaluation():
    layer, x = BlockoutLinear(8, 6, clusters=2), torch.randn(5, 8)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        evaluated(layer, x)
        layer.double()
        after = evaluated(layer, x.double())
        layer.load_state_dict(layer.state_dict())
        assert torch.equal(evaluated(layer, x.double()), after)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_what_is_kept_goes_when_training_goes_on_and_with_its_layer():
    layer, x = BlockoutLinear(8, 6, clusters=2), torch.randn(5, 8)
    evaluated(layer, x)
    assert layer.weight in kept._kept
    layer.train()(x)
    assert layer.weight not in kept._kept
    evaluated(layer, x)
    there = len(kept._kept)
    del layer
    gc.collect()
    assert len(kept._kept) == there - 1


def test_after_inference_mode_a_layer_still_trains():
    product._places.named.clear()
    layer = BlockoutLinear(8, 6, clusters=2)
    with torch.inference_mode():
        layer(torch.randn(5, 8))
        layer.eval()(torch.randn(5, 8))
    layer.train()(torch.randn(5, 8)).sum().backward()
    assert layer.weight.grad is not None
