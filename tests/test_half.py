"""Products of bfloat16 matrices, under autocast and of bfloat16 tensors, beside the equations."""

import contextlib
import math
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from blockout import BlockoutLinear, kernels, masking
from blockout.kernels import choice, half, kept, library, native, product, tiles
from blockout.masking import Assignments

ROUNDING = 2**-8
"""bfloat16 has eight bits: what is rounded to it changes by this share at most."""
MODES = {"autocast": torch.float32, "tensors": torch.bfloat16}


@pytest.fixture(autouse=True, params=["torch", "native"])
def small_layers_too(request, monkeypatch):
    """As on a machine whose products in bfloat16 are fast; then by compiled code."""
    if request.param == "native" and library.found().code is None:
        pytest.skip(f"nothing is compiled here: {library.found().told}")
    is_native = request.param == "native"
    monkeypatch.setattr(native, "FEWEST_WEIGHTS", 0 if is_native else math.inf)
    monkeypatch.setattr(half, "bfloat16_time", lambda: 2.0 if is_native else 0.25)
    monkeypatch.setattr(choice, "FEWEST_WEIGHTS", 0)
    monkeypatch.setattr(tiles, "TILE", 64)
    monkeypatch.setattr(tiles, "FEWEST_ROWS", 3)
    monkeypatch.setattr(product, "AT_ONCE", 32)


def autocast(mode: str) -> contextlib.AbstractContextManager:
    return torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast")


def made(n, nodes_out, nodes_in, k, p, kinds, dtype) -> list[Tensor]:
    """x, W~, b, what learns of both sides, their bits, and the gradient of y in bfloat16."""
    x, weight, bias = (
        torch.randn(n, nodes_in),
        torch.randn(nodes_out, nodes_in),
        torch.randn(nodes_out),
    )
    learns = [torch.rand(d, k) for d in (nodes_out, nodes_in)]
    bits = [torch.bernoulli(torch.full((d, k), p)) for d in (nodes_out, nodes_in)]
    delta = torch.randn(n, nodes_out).bfloat16()
    return [*(one.to(dtype) for one in (x, weight, bias)), *learns, *bits, delta]


def results(linear, tensors: list[Tensor], kinds, of=torch.clone) -> list[Tensor]:
    *learning, bits_out, bits_in, delta = (of(one) for one in tensors)
    learning = [one.requires_grad_() for one in learning]
    x, weight, bias, *learns = learning
    sides = [
        learn * bit if kind == "soft" else Assignments(bit, learn, kind)
        for learn, bit, kind in zip(learns, (bits_out, bits_in), kinds, strict=True)
    ]
    y = linear(x, weight, *sides, bias)
    return [y.detach(), *torch.autograd.grad(y, learning, delta.to(y.dtype))]


few = st.integers(1, 40)
kinds = st.sampled_from(["eq9", "two-sided", "soft"])


@given(
    few, few, few, st.sampled_from([1, 2, 6, 15]), st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.tuples(kinds, kinds), st.sampled_from(list(MODES)), st.integers(0, 99),
)  # fmt: skip
@example(5, 40, 40, 6, 0.1, ("eq9", "eq9"), "autocast", 3)  # sparse
@example(5, 80, 70, 6, 0.5, ("eq9", "eq9"), "tensors", 3)  # dense, from a table of codes
@example(5, 40, 40, 2, 0.0, ("eq9", "eq9"), "autocast", 1)  # every node is dead
@example(5, 40, 33, 6, 1.0, ("eq9", "eq9"), "tensors", 1)  # a plain layer
def test_values_and_gradients_are_the_equations_but_for_rounding(
    n, nodes_out, nodes_in, k, p, kinds, mode, seed
):
    """Three roundings meet in each: of both factors and of the result, or of G and of dL/dW~."""
    torch.manual_seed(seed)
    tensors = made(n, nodes_out, nodes_in, k, p, kinds, MODES[mode])
    expected = results(masking.masked_linear, tensors, kinds, of=Tensor.double)
    terms = results(masking.masked_linear, tensors, kinds, of=lambda one: one.double().abs())
    with autocast(mode):
        got = results(kernels.masked_linear, tensors, kinds)
        again = results(kernels.masked_linear, tensors, kinds)
        reference = results(masking.masked_linear, tensors, kinds)
    for one, most, other, same, like in zip(expected, terms, got, again, reference, strict=True):
        assert torch.equal(other, same), "the same draws give the same bits"
        assert other.dtype == like.dtype and other.shape == like.shape
        assert bool(((one - other).abs() <= 3.1 * ROUNDING * most + 1e-6).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("p", [0.5, 0.15], ids=["dense", "sparse"])
def test_errors_are_no_larger_than_those_of_the_reference(monkeypatch, mode, p):
    """Root mean squares over thousands of values: chance moves them by a few percent.

    In tiles, dL/dx is a sum of rounded products, which is rounded once more: √2 at most.
    """
    monkeypatch.setattr(tiles, "TILE", 4096)
    torch.manual_seed(0)
    kinds = "eq9", "eq9"
    tensors = made(60, 200, 150, 6, p, kinds, MODES[mode])
    exact = results(masking.masked_linear, tensors, kinds, of=Tensor.double)
    with autocast(mode):
        got = results(kernels.masked_linear, tensors, kinds)
        reference = results(masking.masked_linear, tensors, kinds)
    limits = 1.05, math.sqrt(2), 1.05, 1.05, 1.05, 1.05
    for one, other, like, limit in zip(exact, got, reference, limits, strict=True):
        own, its = (float((found - one).square().mean().sqrt()) for found in (other, like))
        assert own <= limit * its + 1e-6


def test_weights_are_rounded_as_autocast_does(small_layers_too):
    """Else compiled code would compute in another precision than the user chose."""
    weight, sides = torch.full((40, 50), 1.003), [torch.ones(d, 3) for d in (40, 50)]
    with torch.autocast("cpu", torch.bfloat16):
        y = kernels.masked_linear(torch.eye(50), weight.requires_grad_(), sides[0], sides[1])
        assert torch.equal(y, masking.masked_linear(torch.eye(50), weight, sides[0], sides[1]))
    assert torch.equal(y, torch.ones(50, 40).bfloat16())


# --- what surrounds it ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_can_be_differentiated_again(mode):
    torch.manual_seed(0)
    kinds = "eq9", "eq9"
    tensors = made(9, 40, 30, 3, 0.5, kinds, MODES[mode])

    def penalty(linear, of):
        x, weight, bias, *learns, bits_out, bits_in, delta = (of(one) for one in tensors)
        sides = [Assignments(b, one) for b, one in zip((bits_out, bits_in), learns, strict=True)]
        y = linear(x.requires_grad_(), weight.requires_grad_(), *sides, bias)
        (first,) = torch.autograd.grad(y, x, delta.to(y.dtype), create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0]

    expected = penalty(masking.masked_linear, Tensor.double)
    with autocast(mode):
        got = penalty(kernels.masked_linear, torch.clone)
    error = float((got - expected).abs().max() / expected.abs().max())
    assert got.dtype == MODES[mode] and error < 4 * ROUNDING


def test_gradients_of_many_outputs_at_once():
    layer, x = BlockoutLinear(30, 20, clusters=3), torch.randn(4, 30, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    each = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
    (batched,) = torch.autograd.grad(y, x, each, is_grads_batched=True, retain_graph=True)
    for one, alone in zip(batched[::17], each[::17], strict=True):
        (expected,) = torch.autograd.grad(y, x, alone, retain_graph=True)
        torch.testing.assert_close(one, expected, rtol=4 * ROUNDING, atol=4 * ROUNDING)


def test_compiled_graphs_under_autocast_use_the_reference():
    x, weight, sides = torch.randn(4, 30), torch.randn(20, 30), [torch.ones(d, 3) for d in (20, 30)]
    learning = weight.requires_grad_()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x):
        return kernels.masked_linear(x, learning, sides[0], sides[1])

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(x), masking.masked_linear(x, weight, sides[0], sides[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eval_mode_keeps_the_masked_weight_and_changes_no_bit(dtype, monkeypatch):
    layer, x = BlockoutLinear(8, 6, clusters=2, dtype=dtype).eval(), torch.randn(5, 8).to(dtype)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before = layer(x)
        monkeypatch.setattr(kept, "masked_weight", None)  # would fail if it were asked for again
        assert torch.equal(layer(x), before)
        sides = layer.outputs.probabilities, layer.inputs.probabilities
        assert torch.equal(before, masking.masked_linear(x, layer.weight, *sides, layer.bias))


# --- the choice -----------------------------------------------------------------------------------


@pytest.fixture
def used(monkeypatch):
    """Which products were computed."""
    found = []
    for name in ("NativeProduct", "TiledProduct"):
        own = getattr(choice, name)
        told = type(
            name, (), {"apply": lambda *a, o=own, n=name: (found.append(n), o.apply(*a))[1]}
        )
        monkeypatch.setattr(choice, name, told)
    linear = masking.masked_linear
    monkeypatch.setattr(
        masking, "masked_linear", lambda *a: (found.append("reference"), linear(*a))[1]
    )
    return found


def multiply(n=4, dtypes=(torch.float32,) * 3, p=0.5, into=torch.bfloat16, on=True) -> None:
    torch.manual_seed(0)
    x, weight, bias = (
        torch.randn(s).to(d) for s, d in zip(((n, 40), (40, 40), 40), dtypes, strict=True)
    )
    sides = [Assignments(torch.bernoulli(torch.full((40, 6), p))) for _ in range(2)]
    with torch.autocast("cpu", into, enabled=on):
        kernels.masked_linear(x, weight.requires_grad_(), sides[0], sides[1], bias)


HALF = (torch.bfloat16,) * 3
MIXED = torch.bfloat16, torch.float32, torch.float32


def test_fast_bfloat16_is_used_where_it_pays(used, monkeypatch):
    monkeypatch.setattr(native, "FEWEST_WEIGHTS", 0)
    monkeypatch.setattr(half, "bfloat16_time", lambda: 0.25)
    with_compiler = (
        "NativeProduct"
        if native.can_multiply(torch.ones(1, 1), torch.ones(1, 1))
        else "TiledProduct"
    )
    ways: list[tuple[dict[str, Any], str]] = [
        ({}, with_compiler),
        ({"dtypes": MIXED}, with_compiler),
        ({"n": 129}, "TiledProduct"),
        ({"dtypes": HALF, "on": False}, "TiledProduct"),
        ({"dtypes": HALF}, "TiledProduct"),
        ({"n": 513}, "reference"),
        ({"n": 513, "p": 0.1}, "TiledProduct"),
    ]
    for way, expected in ways:
        used.clear()
        multiply(**way)
        assert used == [expected], way
    monkeypatch.setattr(choice, "FEWEST_WEIGHTS", math.inf)
    small = with_compiler if with_compiler == "NativeProduct" else "reference"
    ways = [({"dtypes": HALF}, small), ({"n": 129}, "reference")]
    for way, expected in ways:
        used.clear()
        multiply(**way)
        assert used == [expected], f"a small layer, {way}"


def test_slow_bfloat16_is_left_to_compiled_code_or_the_reference(used, monkeypatch):
    monkeypatch.setattr(half, "bfloat16_time", lambda: 2.0)
    monkeypatch.setattr(native, "FEWEST_WEIGHTS", 0)
    with native.switched_off():
        multiply()
    multiply(n=200) if native.compiled()[0] else used.append("NativeProduct")
    assert used == ["reference", "NativeProduct"]


def test_other_precisions_are_left_to_the_reference(used):
    for dtypes in ((torch.float32, torch.bfloat16, torch.float32), (torch.float16,) * 3):
        with contextlib.suppress(RuntimeError):  # torch refuses to mix, as it does without us
            multiply(dtypes=dtypes, on=False)
    multiply(into=torch.float16)
    multiply(dtypes=(torch.float64,) * 3)
    assert used == ["reference"] * 4


def test_the_measurement_draws_nothing_and_is_made_once(monkeypatch):
    monkeypatch.undo()
    half.bfloat16_time.cache_clear()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        found = kernels.bfloat16_time()
    assert found > 0 and kernels.bfloat16_time() == found
    assert half.bfloat16_time.cache_info().misses == 1
    assert torch.equal(torch.get_rng_state(), before)
