"""Several real processes (gloo) on a CPU: the same curve as one, sharded weights, a common stop."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blockout.training import ComputeConfig, train
from blockout.training.fabric import make_fabric

from .conftest import make_config, make_images, make_net

SCRIPT = '''
import atexit, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import make_config, make_images, make_net
import torch
from blockout.training import ComputeConfig, Interrupted, train

class Interrupting:
    """Rank 0 gets SIGTERM in the forward of step `at`."""
    def __init__(self, at): self.left = at
    def __call__(self, module, inputs):
        self.left -= module.training
        if self.left == 0 and os.environ.get("LOCAL_RANK", "0") == "0":
            os.kill(os.getpid(), signal.SIGTERM)

@atexit.register
def last_words():
    print("left" if not torch.distributed.is_initialized() else "ended while connected")

if __name__ == "__main__":
    folder, strategy, precision, at = Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
    compute = ComputeConfig("cpu", "2", strategy=strategy, precision=precision)
    paper = sys.argv[6:] != ["guided"]
    net = make_net()
    net.register_forward_pre_hook(Interrupting(at))
    try:
        train(make_config(folder, compute=compute, paper=paper), model=net, data=make_images())
    except Interrupted as stop:
        sys.exit(stop.exit_code)
'''


def run(launcher: list[str], *words: object, folder: Path) -> subprocess.CompletedProcess:
    """The script in processes of its own; without what the suite's own environment says."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, *launcher, str(script), str(Path(__file__).parent)]
    return subprocess.run(
        [*command, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        env=clean_environment(),
    )


def clean_environment() -> dict[str, str]:
    unset = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR", "NODE_RANK")
    return {k: v for k, v in os.environ.items() if k not in unset} | {"OMP_NUM_THREADS": "1"}


def curve(folder: Path, name: str = "loss") -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def alone(folder: Path, precision: str, paper: bool = True) -> Path:
    compute = ComputeConfig("cpu", "1", precision=precision)
    config = make_config(folder, compute=compute, paper=paper)
    return train(config, model=make_net(), data=make_images())


@pytest.mark.parametrize("rule", ["paper", "guided"])
def test_two_processes_have_the_loss_curve_of_one_with_the_joined_batch(tmp_path, rule):
    done = run([], tmp_path / "two", "ddp", "64-true", 0, rule, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("left") == 2
    alone(tmp_path / "one", "64-true", paper=rule == "paper")
    one, two = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert len(one) == len(two) == 20
    # Sums of 16 terms in another order: some units of the last place, grown over 20 steps.
    assert two == pytest.approx(one, rel=1e-12, abs=0)
    assert one[-1] < one[0] - 0.01
    for name in ("train_accuracy", "holdout_accuracy", "test_accuracy"):
        assert curve(tmp_path / "two", name) == curve(tmp_path / "one", name)
    predictions = [load_file(tmp_path / n / "predictions.safetensors") for n in ("one", "two")]
    assert torch.equal(predictions[0]["classes"], predictions[1]["classes"])


def test_sharded_training_stops_together_resumes_and_writes_whole_weights(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29517"]
    stopped = run(torchrun, tmp_path / "two", "fsdp2", "32-true", 8, folder=tmp_path)
    assert stopped.returncode != 0
    assert len(curve(tmp_path / "two")) == 8
    done = run([], tmp_path / "two", "fsdp2", "32-true", 0, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "from step 8" in done.stdout
    alone(tmp_path / "one", "32-true")
    # float32: rounding of 1e-7 a step
    assert curve(tmp_path / "two") == pytest.approx(curve(tmp_path / "one"), rel=1e-5)
    one, two = (load_file(tmp_path / name / "final.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_the_machine_names_the_flags():
    with pytest.raises(ValueError, match=r"--devices.*do not fit"):
        make_fabric(ComputeConfig("cpu", "two"))
    with pytest.raises(ValueError, match=r"--precision.*do not fit"):
        make_fabric(ComputeConfig("cpu", "1", precision="31-true"))


FIRST = """
import subprocess, sys, time
from blockout.training import fabric
with fabric._leaving_its_number():
    environment = {**fabric.os.environ, "LOCAL_RANK": "1"}
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=environment)
time.sleep(100)
"""
SECOND = """
import os, time
from blockout.training import fabric
fabric._GRACE_SECONDS = 0.1
with fabric._leaving_its_number():
    print(os.getpid(), flush=True)
    time.sleep(100)
"""


def test_a_process_ends_after_the_one_that_started_it():
    """Whatever it waits for: here it sleeps, in practice it may wait for others to connect."""
    words = [sys.executable, "-c", FIRST, SECOND]
    options: dict = {"stdout": subprocess.PIPE, "text": True, "env": clean_environment()}
    with subprocess.Popen(words, **options) as first:
        assert first.stdout is not None and int(first.stdout.readline()) > 0
        first.kill()
        rest, _ = first.communicate(timeout=30)  # until both have closed it
    assert rest == ""
