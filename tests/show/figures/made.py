"""Runs as training leaves them, made without training, and the text of a figure."""

import re

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from blockout.models import ModelConfig, build_model
from blockout.runs import Run, TrainConfig, logs, trained
from blockout.runs import folder as files
from blockout.show.figures import encoded

NAMES = ("cat", "dog", "oak", 'a "quoted" $fir$', "<b>elm</b>", "ש🙂")
GROUPS = [0, 0, 1, 1, 1, 1]
P_2 = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 1, 1], [1, 1, 1]], np.float32)
STEPS = (10, 20, 30)
RESULT = {"test": {"accuracy": 27.0, "top5": 60.0, "loss": 2.0}, "steps": 30, "seconds": 9.0}


def make_run(folder, *, method="blockout", width=8, seed=0, finished=True, **config):
    """The folder of a run of three epochs, as training writes it."""
    folder.mkdir(parents=True)
    config = {"data": "cifar100", "method": method, "nodes": width, "seed": seed, **config}
    chance = np.random.default_rng(seed)
    lines = []
    for epoch, step in enumerate(STEPS, 1):
        lines.append({"step": step, "epoch": epoch - 0.5, "loss": 3.0 / epoch + seed,
                      "train_accuracy": 5.0, "lr": 0.1})  # fmt: skip
        lines.append({"step": step, "epoch": epoch, "epoch_loss": 2.0, "train_accuracy": 10 * epoch,
                      "test_accuracy": 9 * epoch + seed})  # fmt: skip
    write_lines(folder / files.METRICS, lines)
    resolved = TrainConfig.from_flat(config).resolved(image_size=32, steps=STEPS[-1], stream=False)
    files.write_json(folder / files.CONFIG, resolved.flat())
    p = {"P_0": chance.random((width, 3), np.float32), "P_1": chance.random((width, 3), np.float32)}
    p["P_2"] = P_2
    if method == "blockout":
        seen = {n: {"histogram": [int(q.size)] + [0] * 49, "quartiles": [0, 0.25, 1]}
                for n, q in p.items()}  # fmt: skip
        write_lines(folder / files.DISTRIBUTIONS, [{"step": s, **seen} for s in STEPS])
    if finished:
        finish_run(folder, method, width, p)
    return Run.open(folder)


def finish_run(folder, method, width, p):
    choice = ModelConfig(method=method, nodes=width, clusters=3)
    model = build_model(choice, classes=6, data_name="shapes", image_size=32)
    about = {"format": trained.FORMAT, "model": model.describe(), "classes": NAMES,
             "groups": GROUPS, "group_names": ["pet", "tree"], "image_size": 32,
             "data": "cifar100", "mean": [0.5] * 3, "std": [0.5] * 3}  # fmt: skip
    files.write_json(folder / files.MODEL, about)
    files.write_json(folder / files.RESULT, RESULT)
    if method == "blockout":
        files.write_tensors(folder / files.MEMBERSHIPS, {k: torch.tensor(v) for k, v in p.items()})
    shades = np.repeat(10 * np.arange(6, dtype=np.uint8), 4)  # four rows of pixels per class
    sheet = np.broadcast_to(shades[:, None, None], (24, 16, 3))
    picture = Image.fromarray(sheet.copy())
    files.write_atomically(folder / files.THUMBNAILS, lambda path: picture.save(path, "PNG"))


def write_lines(path, lines):
    for line in lines:
        logs.append(path, line)
    logs.seal(path)


def text_of(figure: Figure) -> str:
    return re.sub(r"<[^>]*>", "\n", encoded(figure, "svg").decode())
