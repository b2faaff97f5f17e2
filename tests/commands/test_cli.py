"""The command as a user meets it: flags, exit codes, and one line for what can be mended."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from blockout.data.streams import in_workers
from blockout.runs import Run
from blockout.runs.folder import write_json

TINY = [
    "train", "--per-class", "8", "--width", "0.1", "--nodes", "16", "--clusters", "2",
    "--steps", "3", "--batch-size", "16", "--budget", "1", "--affinity", "false",
]  # fmt: skip


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "blockout.commands.cli", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    done = command(*TINY, "--run", str(folder / "run"), BLOCKOUT_CACHE_DIR=str(folder / "cache"))
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout and f"next: blockout evaluate {folder}" in done.stdout
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> Path:
    """A copy to damage."""
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(finished.parent / "cache"))
    return Path(shutil.copytree(finished, tmp_path / "run"))


def printed_config(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines())


def test_version_and_overview(said):
    assert said("--version")[:2] == (0, "blockout 0.1.0\n")
    code, out, _ = said("--help")
    assert code == 0 and all(f"blockout {c}" in out for c in ("train", "evaluate", "predict"))
    code, out, err = said()
    assert (code, out) == (2, "") and "usage" in err


def test_an_unknown_command_suggests(said):
    assert said("trian")[::2] == (2, "blockout: no command 'trian'; did you mean train?\n")
    assert "there is train, evaluate" in said("xyzzy")[2]


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "doctor"])
def test_help_spells_flags_with_dashes_and_shows_no_python(said, name):
    code, out, _ = said(name, "--help")
    flags = {word for word in out.replace("[", " ").split() if word.startswith("--")}
    assert code == 0 and out.startswith(f"usage: blockout {name}")
    assert not [f for f in flags - {"--print_config"} if "_" in f]
    assert not [word for word in ("<class", "null", "Literal", "Optional") if word in out]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("train --nodez 3", "no flag --nodez; did you mean --nodes?"),
        ("train --batch_sise=3", "no flag --batch-sise; did you mean --batch-size?"),
        ("train --nod 3", "no flag --nod; did you mean --nodes?"),
        ("train extra", "unexpected argument 'extra'"),
        ("train --nodes lots", "--nodes must be a whole number, got lots"),
        ("train --lr high", "--lr must be a number, got high"),
        ("train --restart=maybe", "--restart must be true or false, got maybe"),
        ("train --method foo", "--method must be one of baseline, fc, dropout, dropconnect, "
         "blockout, got foo"),
        ("train --nodes", "--nodes needs a value"),
        ("train --nodes -3", "--nodes must be at least 1, got -3"),
        ("train --lr -1e-3", "--lr must be positive, got -0.001"),
        ("train --batch-size 0", "--batch-size must be at least 1, got 0"),
        ("evaluate", "the following arguments are required: RUN"),
        ("evaluate R --draws 1", "--draws must be a whole number from 2 to 10000, got 1"),
        ("evaluate R --draws 20000", "--draws must be a whole number from 2 to 10000, got 20000"),
        ("predict R", "the following arguments are required: IMAGE"),
        ("predict R a.png --top 0", "--top must be a whole number of at least 1, got 0"),
        ("doctor x", "unexpected argument 'x'"),
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_2_and_one_line_that_names_the_flag(said, arguments, complaint):
    code, out, err = said(*arguments.split())
    name = "blockout " + arguments.split()[0]
    assert (code, out) == (2, "")
    assert err == f"{name}: {complaint}\n{name} --help explains the flags\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nodez: 3", "--config names no flag 'nodez'; did you mean nodes?"),
        ("batch-size: 3", "--config names no flag 'batch-size'; did you mean batch_size?"),
        ("nodes: lots", "--nodes must be a whole number, got lots"),
        ("epochs: 0", "--epochs must be at least 1, got 0"),
        ("weight_decay: null", "--weight-decay must be a number, got null"),
        ('run: "a\\0b"', "--run must be a path, and paths have no null characters"),
        ('cache: "\\0"', "--cache must be a path, and paths have no null characters"),
    ],
)
def test_wrong_keys_and_values_of_a_config_are_exit_2(said, tmp_path, text, complaint):
    (tmp_path / "a.yaml").write_text(text + "\n")
    code, _, err = said("train", "--config", tmp_path / "a.yaml")
    assert code == 2 and err.splitlines()[0] == f"blockout train: {complaint}"


@pytest.mark.parametrize(
    "text", [b"nodes: [3\n", b"- 1\n", b"nodes: \xf3\n", b"nodes: " + b"9" * 5000, None]
)
def test_a_config_that_cannot_be_read_is_exit_2(said, tmp_path, text):
    if text is not None:
        (tmp_path / "a.yaml").write_bytes(text)
    code, _, err = said("train", "--config", tmp_path / "a.yaml")
    assert code == 2 and len(err.splitlines()) == 2 and "onfig" in err


MULTIPLIED = "".join(
    f"{a}: &{a} [{','.join(['1' if a == 'a' else '*' + chr(ord(a) - 1)] * 9)}]\n"
    for a in "abcdefghi"
)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 200_000, "must name flags with plain values, as name: 3"),
        ("nodes: {a: {b: 3}}", "must name flags with plain values, as name: 3"),
        (MULTIPLIED, "must name flags with plain values, as name: 3"),
        ("#" * 2_000_000, "must be at most 1,048,576 bytes long"),
    ],
    ids=["deep", "nested", "multiplied", "long"],
)
def test_a_config_that_would_fill_the_memory_is_refused_unread(said, tmp_path, text, complaint):
    (tmp_path / "a.yaml").write_text(text)
    code, _, err = said("train", "--config", tmp_path / "a.yaml")
    assert code == 2 and complaint in err and err.count("\n") == 2


def test_what_is_printed_moves_no_cursor_whatever_a_folder_or_value_is_called(said, tmp_path):
    code, out, _ = said("cache", "--cache", tmp_path / "\x1b[31mred\u202e")
    assert code == 0 and "\\x1b[31mred\\u202e" in out
    for words in (("train", "--lr", "\x05"), ("structure", "R", "--top", "\x0f"), ("\x1b[2J",)):
        code, _, err = said(*words)
        assert code == 2 and not set(err) & set("\x05\x0f\x1b")


def test_a_config_that_is_no_file_is_not_waited_for(said):
    code, _, err = said("train", "--config", "/dev/null")
    assert code == 2 and "--config /dev/null is not a regular file" in err


def test_a_word_that_no_flag_needs_is_refused(said):
    code, _, err = said("train", "--nodes", "[" * 100_000)
    assert code == 2 and err.startswith("blockout train: --nodes=[[[[") and err.count("\n") == 2


def test_flags_override_a_config_wherever_it_stands(said, tmp_path):
    (tmp_path / "a.yaml").write_text("nodes: 32\nhard: false\n")
    for order in ((0, 1, 2, 3), (2, 3, 0, 1)):
        words = ["--config", tmp_path / "a.yaml", "--nodes", "64"]
        code, out, _ = said("train", *[words[i] for i in order], "--print_config")
        values = printed_config(out)
        assert (code, values["nodes"], values["hard"]) == (0, "64", "false")


def test_every_spelling_of_a_flag_means_the_same(said):
    flags = "--soft --fixed --no-tensorboard --restart --balance yes --stream --batch_size=32"
    code, out, _ = said("train", *flags.split(), "--lr", "1e-3", "--print-config=skip_default")
    assert code == 0
    assert printed_config(out) == {
        "hard": "false", "learned": "false", "tensorboard": "false", "restart": "true",
        "balance": "true", "stream": "true", "batch_size": "32", "lr": "0.001",
    }  # fmt: skip


def test_a_finished_run_says_so_and_its_own_config_repeats_it(said, run):
    code, out, _ = said("train", "--config", run / "config.json", "--run", run)
    assert code == 0 and out.startswith("this run is finished already; --restart starts over")
    assert (run / "memberships.safetensors").exists() and "memberships.safetensors" in out


def test_a_run_killed_before_its_last_page_gets_it_from_the_same_command(said, run):
    """Of the page of a checkpoint, and of a measurement that failed, nobody would know."""
    words = ("train", "--config", run / "config.json", "--run", run)
    page, drawn = run / "report.html", (run / "report.html").read_bytes()
    said(*words)
    assert page.read_bytes() == drawn
    page.write_text("of a checkpoint")
    os.utime(page, ns=(0, (run / "result.json").stat().st_mtime_ns - 1))
    said(*words)
    assert len(page.read_bytes()) > 100_000
    write_json(run / "compaction.json", {"reason": "a disk that failed"})
    code, out, _ = said(*words)
    assert code == 0 and "measuring once" in out
    assert json.loads((run / "compaction.json").read_text())["points"]


def test_evaluate_repeats_the_result_of_training(said, run):
    code, out, _ = said("evaluate", run, "--json")
    assert code == 0
    got, expected = json.loads(out), json.loads((run / "result.json").read_text())["test"]
    assert got == {"split": "test", "images": 2000, **{k: pytest.approx(v) for k, v in
                                                       expected.items()}}  # fmt: skip
    assert f"test: {expected['accuracy']:.2f} % of 2000 images right" in said("evaluate", run)[1]


def test_evaluate_refuses_images_that_are_not_the_runs(said, run):
    config = json.loads((run / "model.json").read_text())
    config["classes"] = config["classes"][::-1]
    write_json(run / "model.json", config)
    code, _, complaint = said("evaluate", run)
    assert code == 1 and "are not those of the run" in complaint


def test_evaluation_over_draws_repeats_itself(said, run):
    words = ("evaluate", run, "--split", "holdout", "--weights", "best", "--draws", "4", "--json")
    first, second = said(*words), said(*words)
    held = len(Run.open(run).images().holdout)
    assert first == second and json.loads(first[1])["images"] == held > 400


def test_an_empty_holdout_is_said(said, run):
    for name, change in (("config.json", {"holdout": 0}), ("split.json", {"holdout": []})):
        write_json(run / name, json.loads((run / name).read_text()) | change)
    code, _, err = said("evaluate", run, "--split", "holdout")
    assert code == 1 and "no images in its holdout split (--holdout 0)" in err


def test_predict_gives_an_object_a_line(said, run, tmp_path):
    Image.new("RGBA", (40, 30), (255, 0, 0, 99)).save(tmp_path / "a.png")
    code, out, _ = said("predict", run, tmp_path / "a.png", "--json", "--top", "2")
    found = json.loads(out)
    assert code == 0 and found["image"] == str(tmp_path / "a.png")
    assert len(found["classes"]) == 2 and found["probabilities"][0] >= found["probabilities"][1]
    assert len(said("predict", run, tmp_path / "a.png")[1].splitlines()) == 6


def test_predict_names_a_corrupt_file(said, run, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"\x89PNG rubbish")
    code, _, err = said("predict", run, tmp_path / "bad.png")
    assert code == 1 and len(err.splitlines()) == 1 and "bad.png" in err


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("result.json", None, "is not finished"),
        ("config.json", None, "is not the folder of a run"),
        ("config.json", b"[]", "config.json is damaged"),
        ("model.json", None, "model.json is missing"),
        ("model.json", b"{", "model.json is damaged"),
        ("model.json", b"[]", "model.json is damaged"),
        ("model.json", b'{"format": 1}', "model.json is damaged"),
        ("final.safetensors", None, "final.safetensors is missing"),
        ("final.safetensors", b"short", "final.safetensors is damaged"),
    ],
)
def test_a_damaged_run_is_exit_1_and_one_line(said, run, name, content, complaint):
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    code, out, err = said("evaluate", run)
    assert (code, out, len(err.splitlines())) == (1, "", 1) and complaint in err


def test_a_wrong_folder_is_said(said, tmp_path):
    code, _, err = said("evaluate", tmp_path / "gone")
    assert code == 1 and "there is no run folder" in err


def failing(error):
    def fail(config, **_):
        raise error

    return fail


NO_MEMORY = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 160000000000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ImportError("--trunk a/b needs transformers"), "--trunk a/b needs transformers"),
        (OSError("x"), "x"),
        (MemoryError(), "there is not enough memory"),
        (MemoryError("Unable to allocate"), "there is not enough memory: Unable to allocate"),
        (NO_MEMORY, "there is not enough memory for 160.0 GB at once; a smaller model or batch "
         "needs less"),
    ],
)  # fmt: skip
def test_what_can_be_mended_has_no_traceback(said, monkeypatch, tmp_path, error, line):
    monkeypatch.setattr("blockout.training.train", failing(error))
    assert said("train", "--run", tmp_path)[::2] == (1, f"blockout train: {line}\n")


@pytest.mark.parametrize("clusters", [2, 10**20])
def test_a_head_that_no_memory_holds_is_refused_before_anything_is_touched(said, run, clusters):
    before = (run / "result.json").read_bytes()
    code, _, err = said(
        *TINY, "--run", run, "--restart", "--nodes", 200_000, "--clusters", clusters
    )
    assert code == 1 and len(err.splitlines()) == 1
    assert f"--nodes 200000 and --clusters {clusters} need at least" in err
    assert (run / "result.json").read_bytes() == before


def test_more_processes_than_any_machine_has_are_refused(said, run):
    code, _, err = said(*TINY, "--run", run, "--devices", "9999999999999")
    assert code == 1 and "--devices must be at most" in err and len(err.splitlines()) == 1


def test_a_rate_that_overflows_is_one_line(said, tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(tmp_path))
    code, _, err = said(*TINY, "--run", tmp_path / "run", "--lr", "1e308")
    assert code == 1 and len(err.splitlines()) == 1
    assert "--lr" in err and "Traceback" not in err


def test_a_lost_process_of_several_is_one_line(tmp_path):
    """And not the traceback that gloo writes into the process that is left."""
    words = [sys.executable, "-m", "blockout", *TINY, "--steps", "5000", "--devices", "2"]
    words += ["--accelerator", "cpu", "--log-every", "1", "--run", str(tmp_path / "run")]
    unset = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR", "NODE_RANK")
    env = {k: v for k, v in os.environ.items() if k not in unset}
    env |= {"OMP_NUM_THREADS": "1", "BLOCKOUT_CACHE_DIR": str(tmp_path / "cache")}
    log = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(words, env=env, stdout=-3, stderr=-1, text=True) as first:
        while not log.exists() and first.poll() is None:
            time.sleep(0.01)
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        _, err = first.communicate(timeout=200)
    assert first.returncode == 1 and children
    said = [line for line in err.splitlines() if not line.startswith(("note:", "warning"))]
    assert len(said) == 1 and "was lost; the same command continues from" in said[0]


def test_ctrl_c_before_training_starts_is_130(said, monkeypatch, tmp_path):
    monkeypatch.setattr("blockout.training.train", failing(KeyboardInterrupt()))
    told = "\ninterrupted: what is done is kept, and the same command continues\n"
    assert said("train", "--run", tmp_path)[::2] == (130, told)


def test_processes_that_lose_each_other_while_they_connect_are_one_line(
    said, monkeypatch, tmp_path
):
    error = torch.distributed.DistNetworkError("Failed to recv, got 0 bytes")
    monkeypatch.setattr("blockout.training.train", failing(error))
    code, _, err = said("train", "--run", tmp_path)
    assert (code, err.count("\n")) == (1, 1) and "was lost while they connected" in err
    monkeypatch.setattr("blockout.commands.endings.is_first_process", lambda: False)
    assert said("train", "--run", tmp_path)[::2] == (1, "")


class EndsItself(torch.utils.data.Dataset):
    def __getitem__(self, key):
        os.kill(os.getpid(), signal.SIGKILL)


def lose_a_worker(config, **_):
    list(in_workers(EndsItself(), [0, 1], 1))


def test_a_lost_worker_is_no_mistake_of_ours(said, monkeypatch, tmp_path):
    monkeypatch.setattr("blockout.training.train", lose_a_worker)
    code, _, err = said("train", "--run", tmp_path / "run")
    assert code == 1 and len(err.splitlines()) == 1
    assert err.startswith("blockout train: a process that reads images was killed, ")


def not_ours(config, **_):
    np.zeros(3).reshape(2, 2)


@pytest.mark.parametrize(
    "fail", [failing(RuntimeError("a bug\nin two lines")), failing(TypeError("a bug")), not_ours]
)
def test_a_mistake_of_ours_is_one_line_and_a_saved_traceback(said, monkeypatch, tmp_path, fail):
    monkeypatch.setattr("blockout.training.train", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, err = said("train", "--run", tmp_path / "run")
    assert code == 1 and len(err.splitlines()) == 1
    assert err.startswith("blockout train: unexpected error, a mistake in blockout: ")
    (saved,) = tmp_path.glob("blockout-error-*.txt")
    assert f"the traceback is in {saved}; please report it" in err
    text = saved.read_text()
    assert "Traceback (most recent call last):" in text and "torch 2" in text and "Error: " in text


def test_debug_shows_the_traceback_wherever_it_stands(said, monkeypatch, tmp_path):
    monkeypatch.setattr("blockout.training.train", failing(OSError("disk")))
    for words in (("--debug", "train", "--run", tmp_path), ("train", "--run", tmp_path, "--debug")):
        code, _, err = said(*words)
        assert code == 1 and err.startswith("Traceback (most recent call last):")
        assert err.endswith("OSError: disk\nblockout train: disk\n")


def test_ctrl_c_while_the_command_is_imported_is_one_line(tmp_path):
    """torch, here one that takes long, is imported before the command can catch anything."""
    (tmp_path / "torch").mkdir()
    slow = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "torch" / "__init__.py").write_text(slow)
    (tmp_path / "blockout").write_text("from blockout.commands.cli import main\nmain()\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    for words in (["-m", "blockout"], [str(tmp_path / "blockout")]):
        done = subprocess.run(
            [sys.executable, *words, "--help"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (130, b"\ninterrupted\n")


def test_the_library_leaves_ctrl_c_alone(tmp_path):
    code = "import signal, blockout; print(signal.getsignal(2) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.stdout == b"True\n"


def test_names_that_cannot_be_printed_are_no_traceback(tmp_path):
    odd = os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xff\xfe")
    done = command("evaluate", odd, PYTHONIOENCODING="ascii")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "there is no run folder" in done.stderr


def test_a_reader_that_goes_away_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "blockout.commands.cli", "--help"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line():
    words = [sys.executable, "-m", "blockout", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=120)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert b"No space left" in done.stderr


def test_a_broken_torchvision_ends_training_in_a_line(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('no nms')\n")
    done = command("train", "--steps", "1", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "no nms" in done.stderr and "blockout doctor" in done.stderr
