"""Files are written whole or not at all."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from blockout.files import parsed_json, read_bytes, remove_litter, write_atomically, write_text


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def half(beside):
        beside.write_text("ne")
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        write_atomically(path, half)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match=r"cannot write .*b\.txt: No such file.*choose another file"):
        write_text(tmp_path / "missing" / "b.txt", "text")


def test_what_a_killed_process_left_is_deleted_and_what_a_living_one_writes_is_not(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    living = os.getppid()
    for name in (f".a.txt.{gone.pid}", f".a.txt.{living}", f".b.txt.{gone.pid}", ".a.txt.x", ".1"):
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "a.txt", "whole")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a.txt", f".a.txt.{living}", f".b.txt.{gone.pid}", ".a.txt.x", ".1"}
    remove_litter(tmp_path)
    assert f".b.txt.{gone.pid}" not in {path.name for path in tmp_path.iterdir()}


def test_a_file_that_another_machine_is_writing_stays(tmp_path):
    """There its process has a number that nobody has here; it holds a lock on the file."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    def write(beside):
        beside.write_text("half")
        os.rename(beside, tmp_path / f".a.txt.{gone.pid}")
        remove_litter(tmp_path, ["a.txt"])
        assert (tmp_path / f".a.txt.{gone.pid}").exists()
        os.rename(tmp_path / f".a.txt.{gone.pid}", beside)

    write_atomically(tmp_path / "a.txt", write)
    assert (tmp_path / "a.txt").read_text() == "half"


def test_a_pipe_a_device_or_a_folder_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    feeder = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"fed",), daemon=True)
    feeder.start()  # were the pipe read, this would come
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("pipe", "device", ""):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_bytes(tmp_path / name)
    read_end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    feeder.join()
    os.close(read_end)


def test_a_file_that_would_fill_the_memory_is_not_read(tmp_path):
    (tmp_path / "sparse").write_bytes(b"{}")
    assert read_bytes(tmp_path / "sparse") == b"{}"
    os.truncate(tmp_path / "sparse", 6 << 30)
    with pytest.raises(OSError, match=r"it has 6,442,450,944 bytes; at most 268,435,456 are read"):
        read_bytes(tmp_path / "sparse")


def test_a_path_without_a_name_is_a_folder():
    with pytest.raises(OSError, match=r"cannot write \.: it is a folder; choose another file"):
        write_text(Path(), "text")


def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    """Somebody with the rights for it would have lost /dev/full."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a regular file"):
        write_text(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_json_that_is_nested_too_deeply_is_damage_like_other():
    assert parsed_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 200_000, "[" * 200_000 + "]" * 200_000, "{", ""):
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
            parsed_json(text)
