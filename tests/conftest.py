"""Settings for the whole suite: one thread, seeded chance, bounded hypothesis."""

import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from blockout.kernels import library

settings.register_profile(
    "suite", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")
torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell in the background: not for children
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _compiled_apart(tmp_path_factory):
    """Whatever the suite compiles, it compiles once per process and in a folder of its own."""
    library._folder = lambda: tmp_path_factory.getbasetemp() / "native"


@pytest.fixture
def said(capsys):
    """Runs the command in this process: exit code, standard output, complaint."""

    def run_here(*arguments: object) -> tuple[int, str, str]:
        from blockout.commands.cli import main

        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run_here


@pytest.fixture
def folder_of_a_run():
    """Writes what a finished run leaves behind, as far as its structure is concerned."""

    def write(folder: Path, classes, memberships, *, method="blockout", groups=None) -> Path:
        from blockout.runs import TrainConfig
        from blockout.runs import folder as files
        from blockout.runs.documents import FORMAT, Description, Result, Scores, as_json

        folder.mkdir(parents=True)
        about = Description(
            format=FORMAT,
            model={"head": {"method": method}},
            classes=classes,
            groups=groups,
            group_names=None if groups is None else ("pet", "tree"),
            data="made",
            image_size=32,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
        )
        result = Result(test=Scores(accuracy=50.0, top5=100.0, loss=1.0), steps=1, seconds=1.0)
        config = TrainConfig().flat() | {"method": method}
        documents = {
            files.MODEL: as_json(about),
            files.RESULT: as_json(result),
            files.CONFIG: config,
        }
        for name, content in documents.items():
            files.write_json(folder / name, content)
        files.write_tensors(folder / files.MEMBERSHIPS, memberships)
        return folder

    return write


@pytest.fixture
def _patience():
    """Ends a test that would wait for ever after twenty seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError("still waiting")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
