"""Files are whole or not there; what stands in the way is said, and what was there stays."""

import os
import resource
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from blockout.runs import folder as files
from blockout.runs.documents import read_document
from blockout.runs.errors import RunError
from blockout.runs.folder import read_tensors, write_json, write_tensors

FULL = """
import resource, sys, torch
from pathlib import Path
from blockout.runs.errors import RunError
from blockout.runs.folder import write_checkpoint, write_tensors
from blockout.runs.logs import append
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
folder, big = Path(sys.argv[1]), torch.ones(10_000)
for work in (lambda: write_checkpoint(folder / "checkpoint.pt", {"a": big}),
             lambda: write_tensors(folder / "final.safetensors", {"a": big}),
             lambda: append(folder / "metrics.jsonl", {"a": "b" * 30_000})):
    try:
        work()
    except RunError as error:
        print(error)
"""


def test_a_full_disk_is_said_and_the_file_before_stays_whole(tmp_path):
    (tmp_path / "checkpoint.pt").write_text("the one before")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    for line, name in zip(lines, ("checkpoint.pt", "final.safetensors", "metrics"), strict=True):
        assert line.startswith(f"cannot write {tmp_path / name}") and "free some space" in line
    assert (tmp_path / "checkpoint.pt").read_text() == "the one before"
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", "metrics.jsonl"}
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 20_000


def test_tied_weights_and_names_in_any_script_are_written(tmp_path):
    shared = torch.arange(4.0)
    write_tensors(tmp_path / "a.safetensors", {"one": shared, "two": shared, "part": shared[::2]})
    found = load_file(tmp_path / "a.safetensors")
    assert found["two"].tolist() == [0, 1, 2, 3] and found["part"].tolist() == [0, 2]
    write_json(tmp_path / "a.json", {"classes": ["Äpfel", '"quoted"', "猫"]})
    assert read_document(tmp_path / "a.json", dict)["classes"] == ["Äpfel", '"quoted"', "猫"]


def test_tensors_that_are_missing_or_damaged_are_named(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"123")
    for name, problem in {"a": "damaged", "b": "missing"}.items():
        with pytest.raises(RunError, match=rf"{name}.safetensors is {problem}"):
            read_tensors(tmp_path / f"{name}.safetensors")


def test_only_files_that_a_run_reads_back_get_a_digest(tmp_path):
    write_json(tmp_path / "cifar100.json", {})
    files.write_atomically(tmp_path / files.REPORT, lambda path: path.write_text("page"))
    assert not (tmp_path / files.DIGESTS).exists()
    write_json(tmp_path / files.CONFIG, {})
    assert (tmp_path / files.DIGESTS).read_text().endswith("  3  config.json\n")


def test_any_write_into_the_folder_takes_what_killed_processes_left(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (".model.pt2", ".compaction.json", ".mine"):
        (tmp_path / f"{name}.{gone.pid}").write_text("half")
    (tmp_path / f".checkpoint.pt.{os.getppid()}").write_text("another process is at it")
    files.write_atomically(tmp_path / files.REPORT, lambda path: path.write_text("page"))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f".mine.{gone.pid}", f".checkpoint.pt.{os.getppid()}", files.REPORT}
