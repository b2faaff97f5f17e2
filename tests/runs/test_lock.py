"""One process at a time works on a run folder."""

import os
import subprocess
import sys

import pytest

from blockout.runs import folder as files
from blockout.runs.errors import RunError
from blockout.runs.lock import held

HOLDER = """
import sys, time
from pathlib import Path
from blockout.runs.lock import held
with held(Path(sys.argv[1]), "training"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_and_a_killed_one_does_not_block(tmp_path):
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        expected = rf"is in use by process {other.pid}, training since \d{{4}}-.*--run"
        with pytest.raises(RunError, match=expected), held(tmp_path, "training"):
            pass
        other.kill()
    with held(tmp_path, "compacting"):
        assert f'"pid":{os.getpid()}' in (tmp_path / files.LOCK).read_text()


def test_the_lock_stays_empty_when_nobody_holds_it(tmp_path):
    with held(tmp_path, "training"):
        pass
    assert (tmp_path / files.LOCK).read_bytes() == b""
    assert [path.name for path in tmp_path.iterdir()] == [files.LOCK]


def test_a_lock_that_does_not_say_who_holds_it_still_holds(tmp_path):
    with held(tmp_path, "training"):
        for content in (b"", b"[", b"[" * 100_000, b'{"pid": "me"}'):
            (tmp_path / files.LOCK).write_bytes(content)
            with pytest.raises(RunError, match="in use by another process"), held(tmp_path, ""):
                pass
