"""What the doctor finds, and what counts as a problem."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from blockout.commands import doctor


def states(findings) -> dict[str, str]:
    return {finding.text: finding.state for finding in findings}


def test_a_broken_torchvision_is_a_problem_and_does_not_break_the_doctor(tmp_path):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('no operator torchvision::nms')\n")
    environment = {
        **os.environ, "PYTHONPATH": str(tmp_path), "BLOCKOUT_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-m", "blockout.commands.cli", "doctor"],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (line,) = [line for line in run.stdout.splitlines() if "PROBLEM" in line]
    assert "torchvision::nms" in line and "pip uninstall torchvision" in line
    assert run.returncode == 1 and "Traceback" not in run.stderr


def test_a_missing_package_is_a_problem_only_where_it_is_needed(monkeypatch):
    def version(name: str) -> str:
        if name in ("lightning", "wandb"):
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.metadata, "version", version)
    found = states(doctor._packages())
    assert found["lightning is missing; pip install 'blockout[train]'"] == "problem"
    assert found["wandb is not installed (optional)"] == "note"
    assert list(found.values()).count("problem") == 1


@pytest.mark.parametrize("value", [None, ""])
def test_no_data_folder_is_a_note(monkeypatch, value):
    monkeypatch.delenv("BLOCKOUT_DATA_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("BLOCKOUT_DATA_DIR", value)
    (finding,) = doctor._cifar("BLOCKOUT_DATA_DIR")
    assert finding.state == "note" and "not set" in finding.text


def test_cifar_is_looked_for_in_the_data_folder(monkeypatch, tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "train.parquet").touch()
    monkeypatch.setenv("BLOCKOUT_DATA_DIR", str(tmp_path))
    ten, hundred = doctor._cifar("BLOCKOUT_DATA_DIR")
    assert (ten.state, hundred.state) == ("ok", "note")
    assert "cifar10 found" in ten.text and "cifar100 not found" in hundred.text


def test_a_data_folder_that_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("BLOCKOUT_DATA_DIR", str(tmp_path / "gone"))
    (finding,) = doctor._cifar("BLOCKOUT_DATA_DIR")
    assert finding.state == "note" and "no folder" in finding.text


def test_a_cache_that_cannot_be_made_is_a_problem(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    *_, finding = doctor._data()
    assert finding.state == "problem" and "BLOCKOUT_CACHE_DIR" in finding.text
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(tmp_path / "new" / "cache"))
    *_, finding = doctor._data()
    assert finding.state == "ok" and not (tmp_path / "new").exists()
