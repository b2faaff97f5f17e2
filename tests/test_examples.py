"""The examples and every Python block of README and docs, run as a user would run them."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {TUTORIAL})]


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


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    words = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in words}


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))],
    ids=lambda p: p.name,
)
def test_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    broken = []
    for link in (link for link in links if "://" not in link and not link.startswith("mailto:")):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def _photograph(path: Path, level: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(level, level + 60, (130, 150, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=90)


def test_the_tutorial_leads_from_a_folder_of_photographs_to_an_app(tmp_path):
    for name, level in (("apple", 10), ("banana", 100), ("cherry", 190)):
        for i in range(10):
            _photograph(tmp_path / "photos" / name / f"{i}.jpg", level, level + i)
        for folder in ("more_photos/" + name, "unsorted"):
            _photograph(tmp_path / folder / f"{name}.jpg", level, level + 50)
    blocks = re.findall(r"^```sh\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    said = [_run(["-m", *line.split()], tmp_path) for line in "".join(blocks).splitlines()]
    assert len(said) == 7 and (tmp_path / "runs" / "photos" / "report.html").is_file()
    app = [sys.executable, "-u", str(ROOT / "examples" / "photo_app.py"), "photos.onnx", "0"]
    with subprocess.Popen(app, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[1]
            assert b"What is this?" in urlopen(address, timeout=30).read()
            shown = (tmp_path / "unsorted" / "cherry.jpg").read_bytes()
            answers = json.load(urlopen(f"{address}/classify", shown, timeout=30))
            with pytest.raises(HTTPError, match="415"):
                urlopen(f"{address}/classify", b"no photograph", timeout=30)
        finally:
            server.terminate()
    with (tmp_path / "answers.csv").open() as table:
        rows = [row for row in csv.DictReader(table) if row["image"].endswith("cherry.jpg")]
    (row,) = rows
    assert row["class"] == answers[0]["class"] == "cherry" and len(answers) == 3
    assert answers[0]["probability"] == pytest.approx(float(row["probability"]), abs=1e-3)


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


def test_the_models_need_no_more_than_the_core_until_a_description_is_read(tmp_path):
    """Tests of the core use their heads, also where nothing else is installed."""
    code = "import sys, blockout.models.heads; print({'msgspec', 'PIL', 'scipy'} & {*sys.modules})"
    assert _run(["-c", code], tmp_path).strip() == "set()"
