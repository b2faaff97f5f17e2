"""Dense and compact side by side: how much faster branches are, in torch and in onnxruntime.

    python benchmarks/branches.py            # about five minutes on two cores

Every setting is compacted for the batch it is measured with, then the dense and the compact network
take turns on the same input. Where nodes are shuffled, "alone" pays for putting them in order and
back; otherwise, as inside a network, the layers around have done so.
"""

import argparse
import logging
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn

from blockout import BlockoutLinear, Memberships, to_branches, to_dense
from blockout.compact import in_turns, multiply_adds, notes
from blockout.layers import memberships_of
from blockout.models import Head
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json

BATCHES = (256, 1)
TARGETS = {"disjoint, d=4096, k=4": 3, "disjoint, d=4096, k=8": 5, "disjoint, d=512, k=4": 2,
           "random, d=4096, 1.5 of 6": 2}  # fmt: skip


def layer(c_in: Tensor, c_out: Tensor) -> BlockoutLinear:
    inputs, outputs = Memberships.given(c_in), Memberships.given(c_out)
    nodes_in, clusters = c_in.shape
    return BlockoutLinear(nodes_in, len(c_out), clusters, inputs=inputs, outputs=outputs)


def disjoint(nodes: int, clusters: int, shuffled: bool) -> nn.Module:
    codes = torch.eye(clusters).repeat_interleave(nodes // clusters, dim=0)
    orders = [torch.randperm(nodes) if shuffled else torch.arange(nodes) for _ in range(2)]
    return layer(codes[orders[0]], codes[orders[1]])


def overlapping(nodes: int) -> nn.Module:
    """Each node in each of six clusters with probability 0.25; a sixth of them in none."""
    return layer((torch.rand(nodes, 6) < 0.25).float(), (torch.rand(nodes, 6) < 0.25).float())


def head() -> nn.Module:
    """One cluster a node and now and then a second: 1.3 of 6, as guided training leaves them."""
    model = Head(168, 100, nodes=2048, clusters=6)
    for memberships in memberships_of(model).values():
        first = nn.functional.one_hot(torch.randint(6, (memberships.nodes,)), 6)
        belongs = (first + (torch.rand(memberships.nodes, 6) < 0.06)).clamp(max=1)
        memberships.logits.data.copy_(20.0 * belongs - 10)
    return model


SETTINGS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "disjoint, d=4096, k=4": (lambda: disjoint(4096, 4, shuffled=False), 4096),
    "disjoint, d=4096, k=8": (lambda: disjoint(4096, 8, shuffled=False), 4096),
    "disjoint, d=512, k=4": (lambda: disjoint(512, 4, shuffled=False), 512),
    "disjoint, d=4096, k=4, alone": (lambda: disjoint(4096, 4, shuffled=True), 4096),
    "disjoint, d=4096, k=8, alone": (lambda: disjoint(4096, 8, shuffled=True), 4096),
    "disjoint, d=512, k=4, alone": (lambda: disjoint(512, 4, shuffled=True), 512),
    "random, d=4096, 1.5 of 6": (lambda: overlapping(4096), 4096),
    "random, d=512, 1.5 of 6": (lambda: overlapping(512), 512),
    "head 168-2048-2048-100, 1.3 of 6": (head, 168),
}


def medians(dense: Callable[[], Any], compact: Callable[[], Any]) -> tuple[float, float]:
    taken = in_turns((dense, compact), rounds=(7, 200), seconds=2.0, least=2e-3)
    return statistics.median(taken[0]), statistics.median(taken[1])


def onnx_session(model: nn.Module, example: Tensor, folder: str) -> onnxruntime.InferenceSession:
    path = Path(folder) / "model.onnx"
    batch = torch.export.Dim("batch", min=1, max=4096)
    inputs = torch.cat([example] * 2)  # an example of one would fix the batch
    program = torch.onnx.export(
        model, (inputs,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    assert program is not None
    program.save(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measure(make: Callable[[], nn.Module], width: int, batch: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = make().eval()
    dense = to_dense(model).eval()
    compact = to_branches(model, batch_size=batch).eval()
    x = torch.randn(batch, width)
    record = {
        "batch": batch,
        "multiply_adds": multiply_adds(compact, x) / multiply_adds(dense, x),
        "notes": notes(compact),
    }
    with torch.inference_mode():
        torch_times = medians(lambda: dense(x), lambda: compact(x))
    sessions = []
    for network in (dense, compact):
        with tempfile.TemporaryDirectory() as folder:
            sessions.append(onnx_session(network, x, folder))
    feeds = [{session.get_inputs()[0].name: x.numpy()} for session in sessions]
    onnx_times = medians(*(
        lambda s=session, f=feed: s.run(None, f)
        for session, feed in zip(sessions, feeds, strict=True)
    ))  # fmt: skip
    return [
        {**record, "engine": engine, "dense_us": 1e6 * a, "compact_us": 1e6 * b, "ratio": a / b}
        for engine, (a, b) in (("torch", torch_times), ("onnxruntime", onnx_times))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # torchvision is not missed
    parser.add_argument("--out", type=Path, default=Path("results/branches.json"))
    parser.add_argument("--only", default="", help="settings whose name contains this")
    arguments = parser.parse_args()
    print(f"{'setting':34} {'engine':12} {'batch':>5} {'dense':>9} {'compact':>9} {'faster':>7}"
          f" {'multiply-adds':>14}")  # fmt: skip
    rows = []
    for name, (make, width) in SETTINGS.items():
        if arguments.only not in name:
            continue
        for batch in BATCHES:
            for row in measure(make, width, batch):
                rows.append({"setting": name, **row})
                print(f"{name:34} {row['engine']:12} {batch:5} {row['dense_us']:6.0f} us "
                      f"{row['compact_us']:6.0f} us {row['ratio']:6.2f}x "
                      f"{100 * row['multiply_adds']:12.1f} %", flush=True)  # fmt: skip
            print(*(f"    {layer or 'layer'}: {note}" for layer, note in row["notes"].items()),
                  sep="\n")  # fmt: skip
    missed = [
        f"{row['setting']} ({row['engine']}, batch {row['batch']}): {row['ratio']:.2f}x"
        for row in rows
        if row["ratio"] < 0.95
        or (row["engine"] == "torch" and row["batch"] == 256
            and row["ratio"] < TARGETS.get(row["setting"], 0))
    ]  # fmt: skip
    print("below target: " + ("; ".join(missed) or "none"))
    write_json(arguments.out, {"rows": rows, "below_target": missed, **as_json(environment())})


if __name__ == "__main__":
    main()
