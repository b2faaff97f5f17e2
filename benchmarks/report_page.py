"""How large the page of a run is, and how soon it can be used: a run of CIFAR-100's size beside one
of 1000 classes and 8192 nodes, both generated, opened from disk in Chromium.

    python benchmarks/report_page.py         # a minute on two cores

Usable is a page whose first figure is drawn and whose search finds a class. Seconds are those on
the clock and, since other work on the machine stretches them, the processor time of the process
that draws the page.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from plotly.offline import get_plotlyjs

from blockout.data import DataConfig
from blockout.models import ModelConfig
from blockout.runs import folder as files
from blockout.runs import logs
from blockout.runs.documents import Description, as_json
from blockout.runs.environment import environment
from blockout.runs.run import Run
from blockout.runs.trained import FORMAT
from blockout.show.page.page import write_page
from blockout.training import OptimisationConfig, RunConfig, TrainConfig
from blockout.training.finish import THUMBNAILS_A_CLASS

CHROMIUM = "--no-sandbox --headless --disable-gpu --disable-background-networking " \
    "--disable-component-update --disable-sync --no-first-run"  # fmt: skip
SIZES = {"100 classes, 512 nodes": (100, 512, 100), "1000 classes, 8192 nodes": (1000, 8192, 50)}
"""Classes, nodes, test images a class."""
CLUSTERS, STEPS, EPOCHS, SIDE = 6, 20_000, 40, 48


def write_run(
    folder: Path, classes: int, nodes: int, images: int, names: list[str] | None = None
) -> Path:
    """The folder of a finished run that never was: codes of clusters with noise, some mistakes
    within groups and few between them."""
    chance = np.random.default_rng(0)
    names = names or [f"class number {i}" for i in range(classes)]
    group_count = max(classes // 10, 2)
    groups = np.arange(classes) % group_count
    folder.mkdir(parents=True)
    config = TrainConfig(
        DataConfig(str(folder / "images")), ModelConfig(nodes=nodes, clusters=CLUSTERS),
        OptimisationConfig(epochs=EPOCHS), run=RunConfig(run=folder),
    )  # fmt: skip
    files.write_json(folder / files.CONFIG, config.flat())
    files.write_json(folder / files.ENVIRONMENT, {"command": "blockout train", "versions": {}})
    about = Description(
        format=FORMAT,
        model={"head": {"method": "blockout", "nodes": nodes, "clusters": CLUSTERS}},
        classes=tuple(names),
        groups=tuple(groups.tolist()),
        group_names=tuple(f"group {g}" for g in range(group_count)),
        data="generated",
        image_size=SIDE,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )
    files.write_json(folder / files.MODEL, as_json(about))
    _write_memberships(folder, chance, groups, nodes)
    accuracy = _write_predictions(folder, chance, groups, images)
    _write_metrics(folder, chance, nodes, classes)
    _write_thumbnails(folder, chance, classes)
    test = {"accuracy": accuracy, "top5": 90.0, "loss": 1.0}
    result: dict[str, Any] = {"test": test, "steps": STEPS, "seconds": 3600.0, "seed": 0}
    rest = {"groups": None, "warnings": [], "parameters": 10**7, "best": None}
    files.write_json(folder / files.RESULT, result | rest)
    return folder


def _write_memberships(
    folder: Path, chance: np.random.Generator, groups: np.ndarray, nodes: int
) -> None:
    import torch

    codes = chance.random((groups.max() + 1, CLUSTERS)) < 0.35
    noise = {name: chance.random((n, CLUSTERS)) * 0.3 for name, n in
             {"P_0": nodes, "P_1": nodes, "P_2": len(groups)}.items()}  # fmt: skip
    hidden = chance.random((nodes, CLUSTERS)) < 0.25
    ones = {"P_0": hidden, "P_1": hidden[::-1], "P_2": codes[groups]}
    p = {name: np.abs(ones[name] - noise[name]).astype(np.float32) for name in noise}
    files.write_tensors(folder / files.MEMBERSHIPS, {k: torch.tensor(v) for k, v in p.items()})


def _write_predictions(
    folder: Path, chance: np.random.Generator, groups: np.ndarray, images: int
) -> float:
    """Two in three are right, most others are taken for a class of the same group."""
    import torch

    classes, group_count = len(groups), groups.max() + 1
    labels = np.repeat(np.arange(classes), images)
    luck = chance.random(len(labels))
    sibling = (labels + group_count * chance.integers(1, 5, len(labels))) % classes
    other = chance.integers(0, classes, len(labels))
    said = np.where(luck < 0.66, labels, np.where(luck < 0.9, sibling, other))
    top = np.stack([(said + i) % classes for i in range(min(5, classes))], 1)
    shares = np.tile(
        np.array([0.5, 0.2, 0.1, 0.05, 0.05], np.float32)[: top.shape[1]], (len(top), 1)
    )
    tensors = {"labels": labels, "classes": top, "probabilities": shares}
    tensors = {name: torch.tensor(value) for name, value in tensors.items()}
    files.write_tensors(folder / files.PREDICTIONS, tensors)
    return float(100 * (said == labels).mean())


def _write_metrics(folder: Path, chance: np.random.Generator, nodes: int, classes: int) -> None:
    lines, histograms = [], []
    for step in range(50, STEPS + 1, 50):
        part = step / STEPS
        lines.append({"step": step, "epoch": EPOCHS * part, "loss": 6 - 5 * part + chance.random(),
                      "train_accuracy": 70 * part, "lr": 0.1, "images_per_second": 900.0,
                      })  # fmt: skip
        if step % (STEPS // EPOCHS) == 0:
            lines.append({"step": step, "epoch": round(EPOCHS * part), "epoch_loss": 5 * (1 - part),
                          "train_accuracy": 70 * part, "holdout_accuracy": 64 * part,
                          "test_accuracy": 65 * part, "test_loss": 5 - 4 * part})  # fmt: skip
        sizes = {"P_0": nodes, "P_1": nodes, "P_2": classes}
        said = {name: _distribution(chance, n, part) for name, n in sizes.items()}
        histograms.append({"step": step, **said})
    for name, entries in ((files.METRICS, lines), (files.DISTRIBUTIONS, histograms)):
        for entry in entries:
            logs.append(folder / name, entry)


def _distribution(chance: np.random.Generator, nodes: int, part: float) -> dict[str, Any]:
    """Around one half in the beginning, towards zero and one in the end."""
    p = 0.5 + part * (chance.random(min(nodes * CLUSTERS, 500)) - 0.5)
    counts = np.histogram(p, 50, (0, 1))[0]
    return {"histogram": counts.tolist(), "quartiles": np.quantile(p, (0.25, 0.5, 0.75)).tolist()}


def _write_thumbnails(folder: Path, chance: np.random.Generator, classes: int) -> None:
    from PIL import Image

    coarse = chance.integers(0, 256, (classes * 6, THUMBNAILS_A_CLASS * 6, 3), dtype=np.uint8)
    size = THUMBNAILS_A_CLASS * SIDE, classes * SIDE
    sheet = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    sheet.save(folder / files.THUMBNAILS)


def seconds_until_usable(page: Path, name: str) -> tuple[float, float]:
    """Until the first figure is drawn and a search has found its class: clock, processor."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as browsers:
        binary = shutil.which("chromium")
        browser = browsers.chromium.launch(executable_path=binary, args=CHROMIUM.split())
        tab = browser.new_page()
        tab.set_default_timeout(300_000)
        before, began = _processor_time(), time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector(".plot[data-drawn]")
        tab.fill("#query", name)
        tab.wait_for_selector("#found h2")
        taken = time.perf_counter() - began, _processor_time() - before
        browser.close()
    return taken


def _processor_time() -> float:
    """Of the processes that draw pages, below this one; not of the browser around them."""
    children = psutil.Process().children(recursive=True)
    times = [child.cpu_times() for child in children if "--type=renderer" in child.cmdline()]
    return sum(spent.user + spent.system for spent in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/report_page.json"))
    arguments = parser.parse_args()
    library = len(get_plotlyjs().encode())
    heads = ("MB beside Plotly", "written in s", "usable in s", "processor s")
    print(" " * 26 + "".join(f"{head:>18}" for head in heads))
    rows = []
    for title, (classes, nodes, images) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            run = write_run(Path(folder) / "run", classes, nodes, images)
            page, began = Path(folder) / files.REPORT, time.perf_counter()
            write_page([Run.open(run)], page)
            written = time.perf_counter() - began
            size = (page.stat().st_size - library) / 1e6
            clock, processor = seconds_until_usable(page, f"class number {classes - 1}")
        measured = (size, written, clock, processor)
        rows.append({"run": title} | dict(zip(heads, measured, strict=True)))
        print(f"{title:<26}{size:>18.2f}{written:>18.1f}{clock:>18.1f}{processor:>18.1f}")
    files.write_json(arguments.out, {"rows": rows, **as_json(environment())})


if __name__ == "__main__":
    main()
