"""A run that is killed, at any moment and in any way, ends as one that never was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

DRIVER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite itself may run under nohup
from blockout.data import ImageData, MemorySplit
from blockout.training import *
import blockout.training.fabric  # once, not in every fork: Lightning takes seconds to import

def images():
    pixels = torch.randint(0, 256, (120, 28, 28, 3), dtype=torch.uint8)
    half = (0.5, 0.5, 0.5)
    def split(first, last):
        rows = torch.arange(first, last)
        return MemorySplit(pixels, rows, rows % 4, half, half)
    return ImageData("noise", tuple("abcd"), None, None, split(0, 80), split(80, 100),
                     split(100, 120), half, half, 28, None, ())

def config(folder, method, ema, minutes):
    return TrainConfig(
        model=ModelConfig(method=method, width=0.1, nodes=16, clusters=3),
        optimisation=OptimisationConfig(steps=13, batch_size=16, ema=ema),  # 5 steps an epoch
        compute=ComputeConfig(accelerator="cpu"),
        run=RunConfig(run=Path(folder), log_every=1, checkpoint_minutes=minutes, tensorboard=False),
    )

def start(config):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(config, data=DATA)
            code = 0
        except Interrupted as stop:
            code = stop.exit_code
        finally:
            os._exit(code)
    return pid

def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0

ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
DATA = images()
def kill_and_continue(folder, method, ema, number):
    assert end(start(config(folder / "whole", method, ema, 5.0))) == 0
    killed, metrics = config(folder / "killed", method, ema, 1e-9), folder / "killed/metrics.jsonl"
    chance, codes = random.Random(number), []
    for _ in range(6):
        pid, goal = start(killed), lines(metrics) + chance.randint(1, 3)
        while lines(metrics) < goal and not os.waitid(os.P_PID, pid, ENDED):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(pid, number)
        codes.append(end(pid))
    codes.append(end(start(killed)))
    return codes

cases = json.loads(sys.argv[1])
print(json.dumps([kill_and_continue(Path(f), m, e, n) for f, m, e, n in cases]))
"""
SAME = ("final", "best", "memberships", "predictions")


CASES = [("blockout", 0.9, 9), ("dropout", 0.0, 9), ("blockout", 0.0, 2), ("dropconnect", 0.0, 1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[tuple, tuple[Path, list[int]]]:
    """Folders with a whole and a killed run, and the exit codes of the latter, by case."""
    folders = {case: tmp_path_factory.mktemp(case[0]) for case in CASES}
    words = json.dumps([[str(folder), *case] for case, folder in folders.items()])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    return {case: (folders[case], code) for case, code in zip(CASES, codes, strict=True)}


def steps_of(path: Path) -> list[tuple[int, bool]]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [(entry["step"], "epoch_loss" in entry) for entry in entries if "warning" not in entry]


def losses_of(path: Path) -> list[float]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [entry["loss"] for entry in entries if "loss" in entry]


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_ends_bit_identical_to_one_that_never_was(runs, case):
    folder, codes = runs[case]
    method, _, number = case
    assert codes[-1] == 0
    assert {9: -9, 2: 130, 1: 129}[number] in codes
    for name in SAME:
        path = Path(f"{name}.safetensors")
        if method != "blockout" and name == "memberships":
            assert not (folder / "whole" / path).exists()
            continue
        whole, killed = (load_file(folder / run / path) for run in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert [k for k in whole if not torch.equal(whole[k], killed[k])] == []
    for name in ("metrics.jsonl", *(["memberships.jsonl"] if method == "blockout" else [])):
        assert steps_of(folder / "killed" / name) == steps_of(folder / "whole" / name)
    metrics = [losses_of(folder / run / "metrics.jsonl") for run in ("whole", "killed")]
    assert metrics[0] == metrics[1]
