"""A minute of `make torture`: every case that once failed, and some that chance draws."""

import subprocess
import sys
from pathlib import Path

import pytest

from torture import calls

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "kills": ["--only", "default", "--cases", "4"],
    "faults": ["--only", "compact", "--cases", "12"],
    "fuzz": ["--cases", "40"],
    "images": ["--cases", "20"],
}


@pytest.mark.skipif(not calls.available(), reason="needs seccomp user notification")
@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_lost_wrong_or_let_in(part):
    words = [sys.executable, "-m", "torture", part, *PARTS[part], "--workers", "1", "--no-keep"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
