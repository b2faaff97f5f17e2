"""What is damaged after it was written is noticed; what a kill leaves behind is not damaged."""

import os

import pytest
import torch

from blockout.runs import digests
from blockout.runs import folder as files
from blockout.runs.documents import read_document
from blockout.runs.errors import RunError
from blockout.runs.folder import read_tensors, write_json, write_tensors


def flip(path, place=-3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_one_flipped_bit_is_noticed(tmp_path):
    write_json(tmp_path / files.RESULT, {"steps": 41})
    write_tensors(tmp_path / files.FINAL, {"a": torch.arange(9.0)})
    assert read_document(tmp_path / files.RESULT, dict) == {"steps": 41}
    flip(tmp_path / files.RESULT, -4)
    flip(tmp_path / files.FINAL)
    with pytest.raises(RunError, match=r"result.json is damaged: it is not as the run wrote it"):
        read_document(tmp_path / files.RESULT, dict)
    with pytest.raises(RunError, match=r"final.safetensors is damaged"):
        read_tensors(tmp_path / files.FINAL)


def test_a_file_that_has_grown_is_damaged_and_not_read_to_its_end(tmp_path):
    write_tensors(tmp_path / files.FINAL, {"a": torch.arange(9.0)})
    os.truncate(tmp_path / files.FINAL, 1 << 40)
    with pytest.raises(RunError, match=r"final.safetensors is damaged: it is not as the run wrote"):
        read_tensors(tmp_path / files.FINAL)


@pytest.mark.parametrize("name", [files.RESULT, files.FINAL, files.DIGESTS])
def test_what_is_no_regular_file_is_named(tmp_path, name):
    write_json(tmp_path / files.RESULT, {})
    write_tensors(tmp_path / files.FINAL, {"a": torch.arange(9.0)})
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/null")
    read = read_tensors if name == files.FINAL else lambda path: read_document(path, dict)
    with pytest.raises(RunError, match=f"cannot read .*{name}: it is not a regular file"):
        read(tmp_path / (files.FINAL if name == files.FINAL else files.RESULT))


def test_a_file_without_digest_is_read_and_told(tmp_path):
    (tmp_path / files.RESULT).write_text("{}")
    assert read_document(tmp_path / files.RESULT, dict) == {}
    told = digests.unnoticed(tmp_path, [files.RESULT, files.MODEL])
    assert told.startswith("note: damage to result.json in ") and "\n" not in told
    write_json(tmp_path / files.RESULT, {})
    assert digests.unnoticed(tmp_path, [files.RESULT, files.MODEL]) == ""


@pytest.mark.parametrize("stops", ["replace", "fsync"])
def test_killed_between_digest_and_file_either_file_is_whole(tmp_path, monkeypatch, stops):
    path = tmp_path / files.CONFIG
    write_json(path, {"a": 1})

    def killed(*_):
        raise KeyboardInterrupt  # nothing catches it, as nothing catches a kill

    monkeypatch.setattr(os, stops, killed)
    for number in range(3):
        with pytest.raises(KeyboardInterrupt):
            write_json(path, {"a": number})
    assert read_document(path, dict) == {"a": 1}
    monkeypatch.undo()
    write_json(path, {"a": 9})
    assert read_document(path, dict) == {"a": 9}


def test_digests_that_are_a_link_to_nothing_are_refused(tmp_path):
    (tmp_path / files.DIGESTS).symlink_to("nothing")
    with pytest.raises(RunError, match=r"No such file.*digests\.txt"):
        write_json(tmp_path / files.CONFIG, {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == [files.DIGESTS]


def test_torn_and_damaged_lines_say_nothing_of_any_file(tmp_path):
    path = tmp_path / files.CONFIG
    write_json(path, {"a": 1})
    with (tmp_path / files.DIGESTS).open("ab") as file:
        file.write(b"\xff nonsense\n00ff")  # a full disk has torn the last
    write_json(path, {"a": 2})
    assert read_document(path, dict) == {"a": 2}
    assert len(digests.recorded(path)) == 2
    flip(path, -4)
    with pytest.raises(RunError, match="is damaged"):
        read_document(path, dict)


def test_a_log_may_grow_but_its_beginning_stays(tmp_path):
    path = tmp_path / files.METRICS
    path.write_bytes(b"one\n")
    digests.record(path, digests.digest_of(path))
    digests.require_beginning(path, b"one\ntwo\n", digests.recorded(path))
    for content in (b"on", b"onE\ntwo\n", b""):
        with pytest.raises(RunError, match=r"metrics.jsonl is damaged"):
            digests.require_beginning(path, content, digests.recorded(path))
