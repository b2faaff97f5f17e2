"""`blockout report`, and the page that `blockout train` keeps up to date."""

import json
import shutil
from dataclasses import replace

import pytest

from blockout.runs import Run
from blockout.runs import folder as files
from blockout.runs.start import open_folder
from blockout.show.page.page import as_html
from blockout.training import TrainConfig, train

from .conftest import NAMES, tinted_images

TINY = ["train", "--per-class", "4", "--width", "0.1", "--nodes", "16", "--clusters", "2",
        "--batch-size", "16", "--epochs", "2", "--no-tensorboard"]  # fmt: skip


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copied")


def test_the_page_is_written_into_the_first_run(said, copied, baseline):
    code, out, err = said("report", copied, baseline)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "measuring once how small and how fast copied becomes ...",
        f"written to {copied / 'report.html'}; open it in a browser",
    ]
    text = (copied / files.REPORT).read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "copied and 1 more" in text
    assert not (baseline / files.REPORT).exists()


def test_the_page_is_written_where_it_is_asked_for(said, copied, tmp_path):
    out = tmp_path / "page.html"
    assert said("report", copied, "--out", out)[0] == 0
    assert out.exists() and not (copied / files.REPORT).exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("{tmp}/gone", "there is no run folder {tmp}/gone; `blockout train` makes one"),
        ("{tmp}", "{tmp} is not the folder of a run: there is no config.json in it"),
        ("{run} --out {tmp}", "--out {tmp} is a folder; name a file in it"),
        ("{run} --out {tmp}/a/b.html", "there is no folder {tmp}/a to write b.html to"),
    ],
)
def test_what_a_user_can_mend_is_exit_1_and_one_line(said, run, tmp_path, arguments, complaint):
    words = arguments.format(tmp=tmp_path, run=run).split()
    code, out, err = said("report", *words)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("blockout report: ") and complaint.format(tmp=tmp_path) in err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", b'{"method": "blockout"}'),
        ("config.json", b'{"data": "shapes", "method": "foo"}'),
        ("config.json", b'{"data": "shapes", "method": "blockout", "nodes": "x"}'),
        ("metrics.jsonl", b"null\n"),
        ("memberships.jsonl", b'{"step": 1, "P_0": {}}\n'),
        ("result.json", b'{"steps": 3}'),
        ("model.json", b"{"),
        ("result.json", b"nonsense"),
        ("memberships.safetensors", b"short"),
        ("predictions.safetensors", b"short"),
    ],
)
@pytest.mark.parametrize("command", ["report", "figures"])
def test_a_damaged_file_is_named(said, copied, tmp_path, command, name, content):
    (copied / name).write_bytes(content)
    out = tmp_path / ("page.html" if command == "report" else "figures")
    code, _, err = said(command, copied, "--out", out)
    assert code == 1 and err.count("\n") == 1
    assert name in err or str(copied) in err


@pytest.mark.parametrize("command", ["report", "figures"])
def test_a_run_named_twice_is_shown_once(said, copied, tmp_path, command):
    out = tmp_path / ("page.html" if command == "report" else "figures")
    words = (command, copied, copied / ".." / copied.name, "--out", out)
    code, told, _ = said(*words, *(() if command == "report" else ("--only", 8)))
    assert code == 0 and "is named twice and shown once" in told
    assert command == "figures" or "and 1 more" not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["model.json", "predictions.safetensors", "memberships.safetensors"]
)
def test_what_a_finished_run_has_lost_is_said(said, copied, name):
    (copied / name).unlink()
    code, out, err = said("report", copied)
    assert (code, out) == (1, "") and f"{name} is missing" in err
    (copied / files.DIGESTS).unlink()  # a run of before, or one of the user's own model
    assert said("report", copied)[0] == 0
    told = (copied / files.REPORT).read_text(encoding="utf-8")
    assert f"The run folder holds no {name}, so part of the page is missing." in told


def test_wrong_usage_is_exit_2(said):
    assert said("report")[::2] == (
        2,
        "blockout report: the following arguments are required: RUN\n"
        "blockout report --help explains the flags\n",
    )


def test_training_leaves_a_page_and_names_it(said, tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(tmp_path / "cache"))
    code, out, err = said(*TINY, "--run", tmp_path / "run")
    assert code == 0, err
    assert (
        "report.html" in out and "open it in a browser" in out and "could not be drawn" not in out
    )
    page = (tmp_path / "run" / files.REPORT).read_text(encoding="utf-8")
    assert '"renewal":0' in page
    before = json.loads((tmp_path / "run" / files.RESULT).read_text())
    (tmp_path / "run" / files.REPORT).write_text("another's")
    assert said(*TINY, "--run", tmp_path / "run")[0] == 0
    assert (tmp_path / "run" / files.REPORT).read_text() == "another's"  # it is finished: no change
    assert json.loads((tmp_path / "run" / files.RESULT).read_text()) == before


def test_a_page_that_cannot_be_drawn_loses_no_training(said, tmp_path, monkeypatch):
    def fail(views, out):
        raise ZeroDivisionError("no figure")

    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("blockout.show.page.page.write_page", fail)
    code, out, _ = said(*TINY, "--run", tmp_path / "run")
    assert code == 0 and "test accuracy" in out
    assert out.count("note: report.html could not be drawn: no figure") == 1


@pytest.mark.parametrize(("minutes", "times"), [(5.0, [1, 2, 3]), (1e-9, [0] * 4 + [1] * 5)])
def test_after_each_checkpoint_the_folder_can_be_drawn(run, tmp_path, minutes, times):
    epochs = []

    def seen(folder):
        view = Run.open(folder)
        assert not view.finished and as_html([view])
        epochs.append(len(view.epochs))

    config = json.loads((run / files.CONFIG).read_text())
    config |= {"run": str(tmp_path / "run"), "checkpoint_minutes": minutes}
    data = tinted_images(NAMES, (0, 0, 1, 1, 2, 2))
    train(TrainConfig.from_flat(config), data=data, after_save=seen)
    assert epochs[: len(times)] == times and epochs[-1] == 3


def test_a_restart_deletes_the_page(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / files.REPORT).write_text("of before")
    config = Run.open(folder).config
    again = replace(config, run=replace(config.run, restart=True))
    with open_folder(folder, again, tinted_images(NAMES)):
        assert not (folder / files.REPORT).exists()
