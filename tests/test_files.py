"""Files are written whole or not at all."""

import pytest

from blockout.files import write_atomically, write_text


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
