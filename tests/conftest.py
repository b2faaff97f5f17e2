"""Settings for the whole suite: one thread, seeded chance, bounded hypothesis."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")
torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other


@pytest.fixture
def said(capsys):
    """Runs the command in this process: exit code, standard output, complaint."""

    def run_here(*arguments: object) -> tuple[int, str, str]:
        from blockout.cli import main

        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run_here


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
