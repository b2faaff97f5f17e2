"""Runs on Ray, started on this machine. Ray is an extra: without it these tests are skipped."""

import importlib.util
import json
import os
import signal
import threading
import time

import pytest

from .test_command import WHOLE, runs_of

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = pytest.importorskip("ray")
    yield ray
    ray.shutdown()


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_a_run_whose_worker_is_killed_goes_on_from_its_checkpoint(cluster, reproduce, tmp_path):
    killed, first_lines = [], []

    def kill_once() -> None:
        while not killed:
            time.sleep(0.05)
            for lock in (tmp_path / "work").glob("*/baseline-0/.lock"):
                text = lock.read_text()
                if text and (lock.parent / "checkpoint.pt").exists():
                    first_lines.append((lock.parent / "metrics.jsonl").read_text().split("\n")[0])
                    killed.append(json.loads(text)["pid"])
                    os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_once, daemon=True)
    thread.start()
    words = ("--scale", "cpu", "--rows", "baseline", "fc", "--seeds", 1, "--engine", "ray")
    changes = tuple(x.replace("epochs=2", "epochs=30") for x in WHOLE)
    code, out, complaint = reproduce(*words, changes=changes)
    assert code == 0 and "2 runs done" in out, complaint
    assert len(killed) == 1 and killed[0] != os.getpid()
    found = runs_of(tmp_path)
    assert set(found) == {"baseline", "fc-n512"}
    # a run that began again would have measured another speed in its first line
    (log,) = (tmp_path / "work").glob("*/baseline-0/metrics.jsonl")
    assert "images_per_second" in first_lines[0] and log.read_text().startswith(first_lines[0])
    run = found["baseline"][0]
    assert run.curve_steps == sorted(set(run.curve_steps)) and run.curve_steps[-1] == run.steps


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_without_ray_it_says_what_to_install(reproduce):
    code, _, complaint = reproduce("--rows", "baseline", "--seeds", 1, "--engine", "ray")
    assert code == 1 and "pip install 'blockout[ray]'" in complaint and "--jobs" in complaint
