"""What ships: time and size of the whole network of a run, dense, compact, and on a linear head.

    python benchmarks/whole_network.py runs/grocery-blockout-0 --out results/whole_network.json

From images to logits, in torch as trained, in torch with batch normalisation folded, and in
onnxruntime from the file that `blockout export --format onnx` writes; with as many threads as torch
uses, which do not spin when they have done their work, because the next in turn would pay for it.
All networks of one batch size take turns in one process; times are medians. Two minutes.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from blockout.compact import in_turns
from blockout.export import export
from blockout.models import ImageClassifier
from blockout.models.folding import folded
from blockout.runs import Run, TrainedModel
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json
from blockout.training.compaction import BATCH_SIZE, USUAL, compact_classifier
from blockout.training.whole import NAMES, networks_of

BATCHES = (1, 16)


def onnx_session(trained: TrainedModel, folder: Path) -> tuple[onnxruntime.InferenceSession, int]:
    """The exported network and the size of its file."""
    done = export(trained, folder / "network.onnx", "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    provider = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(done.path, options, providers=provider), done.size


def ways(trained: TrainedModel, folder: Path) -> tuple[dict[str, Callable], int]:
    """How one network can be called on images, and the bytes of its ONNX file."""
    session, size = onnx_session(trained, folder)
    lean = folded(trained.model, trained.image_size)
    calls: dict[str, Callable] = {"torch, as trained": trained.model}
    if lean is not None:
        calls["torch, folded"] = lean
    return calls | {"onnxruntime": lambda x: session.run(None, {"images": np.asarray(x)})}, size


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished Blockout run")
    parser.add_argument("--out", type=Path, required=True, help="the record to write")
    chosen = parser.parse_args()
    run = Run.open(chosen.run)
    trained = run.network()
    small = compact_classifier(trained.model, USUAL, BATCH_SIZE)
    networks: dict[str, ImageClassifier] = dict(
        zip(NAMES, networks_of(trained.model, small), strict=True)
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        made = {k: ways(replace(trained, model=n), Path(folder)) for k, n in networks.items()}
        for batch in BATCHES:
            side = trained.image_size
            images = torch.randn(batch, 3, side, side)
            todo = [(way, name) for way in made["dense"][0] for name in made]
            calls = [partial(made[name][0][way], images) for way, name in todo]
            taken = in_turns(calls, rounds=(5, 31), seconds=20.0)
            for (way, name), times in zip(todo, taken, strict=True):
                rows.append({"network": name, "way": way, "batch_size": batch,
                             "milliseconds": round(1e3 * statistics.median(times), 3),
                             "fastest": round(1e3 * min(times), 3)})  # fmt: skip
                print(f"{way:18} {NAMES[name]:18} {batch:3} {rows[-1]['milliseconds']:9.2f} ms")
    about = {
        "data": run.data_name,
        "trunk": run.config.model.trunk,
        "onnx_bytes": {name: size for name, (_, size) in made.items()},
        "load": round(os.getloadavg()[0], 1),
        "rows": rows,
    }
    write_json(chosen.out, about | as_json(environment()))


if __name__ == "__main__":
    main()
