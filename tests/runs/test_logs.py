"""Logs: only a torn last line is forgiven; what is lost is said."""

import pytest

from blockout.runs.errors import RunError
from blockout.runs.logs import append, read_lines, rewind, seal


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 2, 3):
        append(path, {"step": step})
    return path


def steps(path):
    return [int(line.split()[-1].strip(b"}")) for line in read_lines(path)]


def test_only_a_torn_last_line_is_left_out(log):
    with log.open("a") as file:
        file.write('{"step": 4, "lo')
    assert steps(log) == [1, 2, 2, 3]
    log.write_text(log.read_text().replace('{"step": 2}', '{"step" 2}', 1))
    with pytest.raises(RunError, match=r"metrics.jsonl is damaged at line 2: "):
        read_lines(log)


def test_entries_after_the_checkpoint_are_removed_by_their_number(log):
    with log.open("a") as file:
        file.write('{"step": 2, "lo')
    rewind(log, 3, 2)
    assert log.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 2}\n'
    append(log, {"step": 3})
    assert steps(log) == [1, 2, 2, 3]


def test_a_checkpoint_that_does_not_count_rewinds_to_its_step(log):
    rewind(log, None, 2)
    assert steps(log) == [1, 2, 2]
    log.write_text('{"step": 1}\n{"at": 2}\n')
    with pytest.raises(RunError, match="damaged at line 2"):
        rewind(log, None, 2)


@pytest.mark.parametrize("lose", ["a line", "the file"])
def test_lost_entries_are_noticed_and_nothing_is_erased(log, lose):
    whole = log.read_text()
    log.write_text(whole[12:]) if lose == "a line" else log.unlink()
    before = log.read_text() if log.exists() else None
    with pytest.raises(RunError, match=rf"has {3 if before else 0} of the 4 entries.*--restart"):
        rewind(log, 4, 3)
    assert (log.read_text() if log.exists() else None) == before


def test_without_a_checkpoint_a_log_starts_over_whatever_it_holds(log):
    log.write_text("nonsense\n\n")
    rewind(log, 0, 0)
    assert log.read_text() == ""


def test_a_sealed_log_is_checked_up_to_the_seal(log):
    seal(log)
    append(log, {"step": 4})
    assert steps(log) == [1, 2, 2, 3, 4]
    log.write_text(log.read_text().replace("1", "0", 1))
    with pytest.raises(RunError, match=r"metrics.jsonl is damaged: it is not as the run wrote it"):
        read_lines(log)


def test_rewinding_moves_the_seal(log):
    seal(log)
    rewind(log, 2, 2)  # of an earlier checkpoint: the last one was never written
    assert steps(log) == [1, 2]
    append(log, {"step": 3})
    assert steps(log) == [1, 2, 3]
