"""A head that this machine cannot hold is refused, and one that it just holds is not."""

import pytest

from blockout.models import ModelConfig
from blockout.runs import TrainConfig
from blockout.training import memory as module
from blockout.training.memory import memory, require_memory


@pytest.mark.parametrize(
    ("method", "numbers"),
    [("fc", 100 * (100 + 10)), ("blockout", 100 * (100 + 10) + (100 + 100 + 10) * 6)],
)
@pytest.mark.parametrize("copies", [1, 3])
def test_weights_of_the_head_and_their_copies_must_fit(monkeypatch, method, numbers, copies):
    config = TrainConfig(model=ModelConfig(method=method, nodes=100, clusters=6))
    needed = 4 * numbers * copies
    monkeypatch.setattr(module, "memory", lambda: needed)
    require_memory(config, 10, copies=copies)
    monkeypatch.setattr(module, "memory", lambda: needed - 1)
    with pytest.raises(ValueError, match=r"--nodes 100.* need at least .*choose fewer"):
        require_memory(config, 10, copies=copies)


def test_the_limit_of_a_container_counts(monkeypatch, tmp_path):
    limits = [tmp_path / name for name in ("max", "limit")]
    monkeypatch.setattr(module, "LIMITS", tuple(map(str, limits)))
    whole = memory()
    limits[0].write_text("max\n")
    assert memory() == whole > 1_000_000
    limits[1].write_text("1000000\n")
    assert memory() == 1_000_000


def test_a_number_of_nodes_that_is_no_float_is_refused_in_words():
    config = TrainConfig(model=ModelConfig(method="fc", nodes=10**400, clusters=6))
    with pytest.raises(ValueError, match=r"need at least 1e\+18 TB"):
        require_memory(config, 10, copies=3)
