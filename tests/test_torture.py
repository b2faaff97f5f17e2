"""A minute of the standing attack, `make torture`: kills, failing writes, damaged files, images."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torture import server


def test_a_minute_of_the_torture_finds_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "torture", "--short", "--no-keep", "--workers", "1"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    if "needs Linux" in done.stderr:
        pytest.skip(done.stderr.strip())
    rows = [line.split() for line in done.stdout.splitlines()[-5:]]
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[0] for row in rows] == ["kills", "faults", "fuzz", "images", "all"]
    assert all(int(cases) >= 3 and failed == missed == "0" for _, cases, failed, missed, *_ in rows)


def test_results_of_large_cases_stay_whole_where_workers_share_a_pipe():
    cases = [{"number": n, "text": "x" * 100_000} for n in range(200)]

    def work(case: dict[str, Any]) -> dict[str, Any]:
        return {"problem": "\U0001f600" * 300, "length": len(case["text"]) + case["number"]}

    found = list(server.in_parallel(work, cases, workers=4))
    assert {one["length"] for one in found} == {100_000 + n for n in range(200)}
    assert all(one["length"] == 100_000 + one["case"]["number"] for one in found)
