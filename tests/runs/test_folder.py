"""Files are whole or not there; what stands in the way is said, and what was there stays."""

import json
import resource
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from blockout.runs.folder import (
    RunError,
    append_line,
    forget_after,
    read_json,
    read_lines,
    write_json,
    write_tensors,
)

FULL = """
import resource, sys, torch
from pathlib import Path
from blockout.runs.folder import RunError, append_line, write_checkpoint, write_tensors
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
folder, big = Path(sys.argv[1]), torch.ones(10_000)
for work in (lambda: write_checkpoint(folder / "checkpoint.pt", {"a": big}),
             lambda: write_tensors(folder / "final.safetensors", {"a": big}),
             lambda: append_line(folder / "metrics.jsonl", {"a": "b" * 30_000})):
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


def test_entries_after_the_checkpoint_and_a_torn_last_line_are_forgotten(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 2, 3):
        append_line(path, {"step": step})
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    forget_after(path, 2)
    assert read_lines(path) == [{"step": 1}, {"step": 2}, {"step": 2}]
    assert path.read_text().endswith('{"step": 2}\n')


def test_tied_weights_and_names_in_any_script_are_written(tmp_path):
    shared = torch.arange(4.0)
    write_tensors(tmp_path / "a.safetensors", {"one": shared, "two": shared, "part": shared[::2]})
    found = load_file(tmp_path / "a.safetensors")
    assert found["two"].tolist() == [0, 1, 2, 3] and found["part"].tolist() == [0, 2]
    write_json(tmp_path / "a.json", {"classes": ["Äpfel", '"quoted"', "猫"]})
    assert read_json(tmp_path / "a.json")["classes"] == ["Äpfel", '"quoted"', "猫"]


def test_damaged_json_is_named(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": 1})[:-1])
    with pytest.raises(RunError, match=r"a.json is damaged"):
        read_json(tmp_path / "a.json")
    with pytest.raises(RunError, match=r"cannot read .*b.json"):
        read_json(tmp_path / "b.json")
