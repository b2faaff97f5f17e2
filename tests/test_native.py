"""Compiled products against the reference, and how the library is built, kept and distrusted."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from blockout import kernels, masking
from blockout.kernels import choice, library, native
from blockout.masking import Assignments

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture
def _compiled():
    code, why_not, _ = library.found()
    if code is None:
        pytest.skip(f"nothing is compiled here: {why_not}")


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(nodes: int, k: int, p: float, estimator: str, dtype: torch.dtype) -> Assignments:
    learns = torch.rand(nodes, k, dtype=dtype, requires_grad=True)
    return Assignments(torch.bernoulli(torch.full_like(learns, p)).detach(), learns, estimator)  # pyright: ignore


def results(product, x, weight, bias, sides, of=torch.Tensor.clone) -> list[torch.Tensor]:
    learn = (of(x), of(weight), of(bias), *(side.learns for side in sides))
    y = product(*learn[:2], *sides, learn[2])
    delta = of(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape))
    return [y.detach(), *torch.autograd.grad(y, learn, delta)]


sizes = st.integers(1, 200)
clusters = st.sampled_from([1, 2, 6, 9, 15, 64, 70])
shares = st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.5, 1.0])
estimators = st.sampled_from(["eq9", "two-sided"])


@pytest.mark.usefixtures("_compiled", "_threads")
@given(
    sizes, sizes, st.integers(1, 140), clusters, shares, estimators, st.sampled_from([1, 2, 3]),
    st.sampled_from(list(TOLERANCE)), st.integers(0, 99),
)  # fmt: skip
@example(800, 150, 5, 3, 0.2, "eq9", 1, torch.float32, 0)  # more rows than are computed together
@example(90, 2300, 5, 1, 0.03, "eq9", 2, torch.float32, 0)  # columns far apart
@example(90, 2300, 5, 6, 0.5, "eq9", 2, torch.float64, 0)  # nothing is left out
@example(60, 70, 129, 6, 0.0, "eq9", 2, torch.float64, 0)  # every node is dead
@example(60, 70, 3, 6, 1.0, "eq9", 3, torch.float64, 0)  # a plain layer
@example(300, 200, 40, 6, 0.2, "eq9", 3, torch.float64, 1)  # sparse, codes of many and of few rows
def test_compiled_products_are_those_of_the_reference(
    rows, columns, n, k, p, estimator, threads, dtype, seed
):
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    x = torch.randn(n, columns, dtype=dtype, requires_grad=True)
    weight = torch.randn(rows, columns, dtype=dtype, requires_grad=True)
    bias = torch.randn(rows, dtype=dtype, requires_grad=True)
    sides = [draw(nodes, k, p, estimator, dtype) for nodes in (rows, columns)]

    def compiled(*given):
        return choice._fast(*given, is_native=True)

    expected = results(masking.masked_linear, x, weight, bias, sides)
    summands = results(masking.masked_linear, x, weight, bias, sides, of=torch.abs)
    got = results(compiled, x, weight, bias, sides)
    native._scratch.bytes.fill_(255)  # NaN, where it is read before it is written
    again = results(compiled, x, weight, bias, sides)
    for one, terms, other, same in zip(expected, summands, got, again, strict=True):
        assert torch.equal(other, same), "the same draws give the same bits"
        scale = max(float(one.abs().max()), float(terms.max()) / 10)  # summands may cancel
        assert float((one - other).abs().max()) <= TOLERANCE[dtype] * scale


@pytest.mark.usefixtures("_compiled")
def test_what_is_compiled_here_is_used():
    in_use, where = kernels.compiled()
    assert in_use, where
    assert Path(where).parent == library._folder()


@pytest.mark.usefixtures("_compiled")
def test_only_the_gradients_that_are_asked_for_are_computed():
    torch.manual_seed(0)
    given = [torch.randn(4, 70), torch.randn(60, 70), *(torch.ones(d, 2) for d in (60, 70))]
    for learns in range(4):
        own = [one.clone().requires_grad_(i == learns) for i, one in enumerate(given)]
        got, expected = (
            torch.autograd.grad(product(*own), own[learns], torch.ones(4, 60))[0]
            for product in (
                lambda *four: choice._fast(*four, bias=None, is_native=True),
                masking.masked_linear,
            )
        )
        torch.testing.assert_close(got, expected)


@pytest.mark.usefixtures("_compiled")
def test_a_step_needs_little_memory_beside_its_results():
    """Of the 80 MB of nn.Linear with Dropout at 4096 nodes, 12 are left for the masks."""
    layer = native._Layer(128, 4096, 4096, 6, 2, True)
    code = library.found().code
    assert code is not None
    for backward in (0, 1):
        size = code.blockout_scratch_float(native.ctypes.byref(layer), backward)
        assert 4e6 < size < 7e6


def test_small_layers_large_batches_and_strange_memory_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(native, "agrees", lambda found: True)
    monkeypatch.setattr(native, "found", lambda: library.Found(object(), "", True))  # pyright: ignore
    x, weight = torch.empty(8, 1024), torch.empty(1024, 1024)
    assert native.can_multiply(x, weight)
    assert native.can_multiply(x.reshape(2, 4, 1024), weight)
    assert not native.can_multiply(x[:, :128], weight[:128, :128].contiguous())
    assert not native.can_multiply(x.expand(1000, 8, 1024), weight)
    assert not native.can_multiply(x[:0], weight)
    assert not native.can_multiply(x, weight.T)
    with native.switched_off():
        assert not native.can_multiply(x, weight)
    monkeypatch.setattr(native, "found", lambda: library.Found(object(), "", False))  # pyright: ignore
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not native.can_multiply(x, weight), "it has no threads, and torch has"
    assert "OMP_NUM_THREADS=1" in native.compiled()[1]


# --- the library ----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty cache folder, and a library that is looked for anew."""
    folder = tmp_path / "native"
    monkeypatch.setattr(library, "_folder", lambda: folder)
    monkeypatch.setattr(library, "FLAGS", (("-O0", "-march=native", "-shared", "-fPIC", "-w"),))
    monkeypatch.delenv(library.SWITCH, raising=False)
    library.found.cache_clear()
    yield folder
    library.found.cache_clear()


def compilers(folder: Path, monkeypatch, script: str) -> None:
    """One compiler: a script."""
    folder.mkdir()
    (folder / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "cc").chmod(0o700)
    monkeypatch.setattr(library, "COMPILERS", (str(folder / "cc"),))


def a_layer_learns() -> None:
    torch.manual_seed(0)
    sides = [draw(nodes, 4, 0.3, "eq9", torch.float64) for nodes in (900, 800)]
    x = torch.randn(3, 800, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(900, 800, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(900, dtype=torch.float64, requires_grad=True)
    got = results(kernels.masked_linear, x, weight, bias, sides)
    for one, other in zip(got, results(masking.masked_linear, x, weight, bias, sides), strict=True):
        torch.testing.assert_close(one, other)


def test_without_a_compiler_torch_computes_the_same(place, monkeypatch):
    monkeypatch.setattr(library, "COMPILERS", ("no-compiler-has-this-name",))
    assert kernels.compiled() == (False, "there is no C compiler (cc, gcc or clang)")
    a_layer_learns()
    assert list(place.iterdir()) == []


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(place, tmp_path, monkeypatch):
    compilers(tmp_path / "bin", monkeypatch, "echo 'no space left' >&2; exit 1")
    in_use, why_not = kernels.compiled()
    assert not in_use and why_not.endswith("cc failed: no space left")
    a_layer_learns()
    assert list(place.iterdir()) == []


def test_a_compiler_that_does_not_know_the_processor_is_asked_again(place, tmp_path, monkeypatch):
    script = (
        'case "$*" in *march=native*) exit 1;; esac; while [ "$1" != -o ]; do shift; done; : > "$2"'
    )
    compilers(tmp_path / "bin", monkeypatch, script)
    plain = ("-O0", "-shared")
    monkeypatch.setattr(library, "FLAGS", (("-march=native",), plain))
    assert not kernels.compiled()[0], "an empty file is no library"
    name = library._digest(library.SOURCE.read_bytes(), plain)
    assert [one.name for one in place.iterdir()] == [f"{name}.so"]


def test_a_folder_that_cannot_be_made_is_no_error(place, monkeypatch):
    place.write_text("in the way")
    assert not kernels.compiled()[0]
    a_layer_learns()


def test_the_variable_switches_it_off(place, monkeypatch):
    monkeypatch.setenv("BLOCKOUT_NATIVE", "0")
    assert kernels.compiled() == (False, "BLOCKOUT_NATIVE=0 switches them off")
    assert not place.exists()


def test_a_folder_that_others_may_write_to_is_not_trusted(place, monkeypatch):
    place.mkdir()
    place.chmod(0o777)
    in_use, why_not = kernels.compiled()
    assert not in_use and why_not.startswith("others may write to") and "chmod go-w" in why_not
    place.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    library.found.cache_clear()
    assert "belongs to another user" in kernels.compiled()[1]


def put(path: Path, content: bytes) -> None:
    """Replaces a library; to write into one that this process has loaded would end it."""
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o600)


DAMAGE = {
    "truncated": lambda path, whole: put(path, whole[:-5000]),
    "empty": lambda path, whole: put(path, b""),
    "one bit": lambda path, whole: put(path, whole.replace(b"\0\0\0\1", b"\0\0\0\3", 1)),
    "anyone may have written it": lambda path, whole: path.chmod(0o666),
    "a link": lambda path, whole: [path.rename(path.with_name("b")), path.symlink_to("b")],
}


@pytest.mark.usefixtures("_compiled")
def test_a_kept_library_is_used_again_unless_it_is_damaged(place, monkeypatch):
    assert kernels.compiled()[0]
    (path,) = place.iterdir()
    assert [stat.S_IMODE(one.stat().st_mode) for one in (place, path)] == [0o700, 0o600]
    whole = path.read_bytes()
    monkeypatch.setattr(library, "COMPILERS", ("no-compiler-has-this-name",))
    library.found.cache_clear()
    assert kernels.compiled() == (True, str(path)), "it needs no compiler any more"
    for what, damage in DAMAGE.items():
        damage(path, whole)
        library.found.cache_clear()
        assert kernels.compiled() == (False, "there is no C compiler (cc, gcc or clang)"), what
        put(path, whole)


@pytest.mark.usefixtures("_compiled")
def test_a_damaged_library_is_compiled_again(place):
    assert kernels.compiled()[0]
    (path,) = place.iterdir()
    put(path, path.read_bytes()[:1000])
    library.found.cache_clear()
    assert kernels.compiled() == (True, str(path)) and len(path.read_bytes()) > 1000


@pytest.mark.usefixtures("_compiled")
def test_code_that_computes_something_else_is_not_used(place, tmp_path, monkeypatch):
    wrong = library.SOURCE.read_text().replace("sum / (REAL)p.clusters", "sum")
    assert wrong != library.SOURCE.read_text()
    (tmp_path / "native.c").write_text(wrong)
    monkeypatch.setattr(library, "SOURCE", tmp_path / "native.c")
    in_use, why_not = kernels.compiled()
    assert not in_use and why_not.startswith("what the compiler made of them is wrong; delete")
    a_layer_learns()


def test_nothing_is_compiled_before_a_large_layer_learns(tmp_path):
    program = """
import torch, blockout
layer = blockout.BlockoutLinear(64, 64, clusters=2)
layer(torch.randn(4, 64)).sum().backward()
large = blockout.BlockoutLinear(1024, 1024, clusters=2).eval()
with torch.no_grad():
    large(torch.randn(4, 1024))
from blockout.kernels import library
print(library.found.cache_info().currsize)
"""
    environment = {**os.environ, "BLOCKOUT_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout == "0\n" and list(tmp_path.iterdir()) == []
