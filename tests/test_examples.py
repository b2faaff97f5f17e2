"""The examples and every Python block of README and docs, run as a user would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _run(arguments: list[str], folder: Path) -> str:
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("name", ["plain_loop", "lightning_trainer", "huggingface_trainer"])
def test_an_example_runs_and_learns(name, tmp_path):
    output = _run([str(ROOT / "examples" / f"{name}.py")], tmp_path)
    accuracies = re.findall(r"test accuracy ([\d.]+)", output)
    assert float(accuracies[-1]) > 0.75, output  # chance is 1/16; measured 0.85-0.88


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run_in_order(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    assert blocks or page.name == "departures.md", "a page of prose only is the exception"
    _run(["-W", "error", str(script)], tmp_path)


def test_the_readme_shows_the_library_in_twenty_lines():
    first = re.search(r"^```python\n(.*?)^```", PAGES[0].read_text(), re.MULTILINE | re.DOTALL)
    assert first is not None
    assert "BlockoutLinear" in first.group(1)
    assert len(first.group(1).splitlines()) <= 20


def test_importing_the_core_loads_nothing_beyond_torch_jaxtyping_and_safetensors(tmp_path):
    code = """
import sys, jaxtyping, torch
before = set(sys.modules)
import blockout
new = {name.split(".")[0] for name in set(sys.modules) - before}
allowed = {"blockout", "torch", "jaxtyping", "safetensors", *sys.stdlib_module_names}
print(sorted(name for name in new - allowed if not name.startswith("_")))
"""
    assert _run(["-c", code], tmp_path).strip() == "[]"
