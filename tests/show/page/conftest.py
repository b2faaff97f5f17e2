"""Small real runs, a large generated one, and a real browser to look at their pages with."""

import runpy
import shutil
from pathlib import Path

import pytest
import torch

from blockout import Guidance
from blockout.data import DataConfig, ImageData, MemorySplit
from blockout.models import ModelConfig
from blockout.runs import folder as files
from blockout.training import ComputeConfig, OptimisationConfig, RunConfig, TrainConfig, train

ROOT = Path(__file__).resolve().parents[3]
HALF = (0.5, 0.5, 0.5)
NAMES = ("red", "green", "blue", "bright", "dark", "grey")
NASTY = (
    "</script><img src=x onerror=\"document.title='ran'\">",
    "<b>bold</b> & \"quoted\" 'twice'",
    "😀 emoji",
    "שלום عالم",
)
"""Names that would run, close a script, format, or turn the text around, if they were not text."""


def tinted_images(names: tuple[str, ...], groups: tuple[int, ...] | None = None) -> ImageData:
    """Noise of 16 pixels, tinted by class: 20 images a class to train on, 4 held out, 8 to test."""
    chance = torch.Generator().manual_seed(3)
    count = len(names)
    labels = torch.arange(32 * count) % count
    tint = torch.randint(0, 90, (count, 3), generator=chance)[labels]
    noise = torch.randint(0, 160, (len(labels), 16, 16, 3), generator=chance)
    pixels = (noise + tint[:, None, None, :]).to(torch.uint8)

    def split(first: int, last: int) -> MemorySplit:
        rows = torch.arange(first * count, last * count)
        return MemorySplit(pixels, rows, labels[rows], HALF, HALF)

    group_names = None if groups is None else tuple(f"group {g}" for g in sorted(set(groups)))
    return ImageData(
        "tinted noise", names, groups, group_names, split(0, 20), split(20, 24), split(24, 32),
        HALF, HALF, 16, None, (),
    )  # fmt: skip


def tiny_run(folder: Path, data: ImageData, method: str = "blockout", learned: bool = True) -> Path:
    """Trained for three epochs through the real loop, in a second or two."""
    alike = "predictions" if data.groups is None else "groups"
    config = TrainConfig(
        DataConfig("tinted noise"),
        ModelConfig(method, width=0.1, nodes=24, clusters=3, learned=learned),
        OptimisationConfig(epochs=3, batch_size=24, affinity_from=alike),
        Guidance(class_budget=1),
        compute=ComputeConfig(accelerator="cpu", devices="1"),
        run=RunConfig(run=folder, log_every=1, tensorboard=False),
    )
    return train(config, data=data)


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """Finished, by Blockout, on six classes in three known groups."""
    data = tinted_images(NAMES, (0, 0, 1, 1, 2, 2))
    return tiny_run(tmp_path_factory.mktemp("report") / "run", data)


@pytest.fixture(scope="session")
def baseline(tmp_path_factory) -> Path:
    """Finished, without Blockout."""
    return tiny_run(tmp_path_factory.mktemp("report") / "base", tinted_images(NAMES), "baseline")


@pytest.fixture(scope="session")
def fixed(tmp_path_factory) -> Path:
    """Finished, by Blockout whose P stay at one half."""
    data = tinted_images(NAMES, (0, 0, 1, 1, 2, 2))
    return tiny_run(tmp_path_factory.mktemp("report") / "fixed", data, learned=False)


@pytest.fixture(scope="session")
def unfinished(tmp_path_factory, run) -> Path:
    """Stopped in its second epoch: what training has written by then."""
    folder = tmp_path_factory.mktemp("report") / "half"
    folder.mkdir()
    for name in (files.CONFIG, files.ENVIRONMENT):
        shutil.copy(run / name, folder / name)
    for name in (files.METRICS, files.DISTRIBUTIONS):
        lines = (run / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[: len(lines) // 2]))
    return folder


@pytest.fixture(scope="session")
def begun(tmp_path_factory, run) -> Path:
    """Nothing but a config."""
    folder = tmp_path_factory.mktemp("report") / "begun"
    folder.mkdir()
    shutil.copy(run / files.CONFIG, folder / files.CONFIG)
    return folder


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Path:
    """Two classes."""
    data = tinted_images(("cat", "dog"), (0, 1))
    return tiny_run(tmp_path_factory.mktemp("report") / "two", data)


@pytest.fixture(scope="session")
def nasty(tmp_path_factory) -> Path:
    """Classes and a folder whose names are no plain words."""
    data = tinted_images(NASTY, (0, 0, 1, 1))
    return tiny_run(tmp_path_factory.mktemp("report") / "run <i>&'\"", data)


@pytest.fixture(scope="session")
def large(tmp_path_factory) -> Path:
    """1000 classes and 8192 nodes, written by the benchmark's code."""
    write_run = runpy.run_path(str(ROOT / "benchmarks" / "report_page.py"))["write_run"]
    return write_run(tmp_path_factory.mktemp("report") / "large", 1000, 8192, 10)


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    binary = shutil.which("chromium")
    if binary is None:
        pytest.skip("no chromium here: the page is not looked at in a browser")
    from playwright.sync_api import sync_playwright

    arguments = (
        "--no-sandbox --headless --disable-gpu --disable-background-networking "
        "--disable-component-update --disable-sync --no-first-run"
    )
    with sync_playwright() as browsers:
        opened = browsers.chromium.launch(executable_path=binary, args=arguments.split())
        yield opened
        opened.close()
