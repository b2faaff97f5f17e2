"""Records of runs, shared by processes."""

import json
import threading

import pytest

from blockout.reproduce import Condition, Records
from blockout.reproduce.records import RunRecord
from blockout.runs.errors import RunError

HERE = Condition("path/to/photos", per_class=5, changes=(("epochs", 3),))


def made(seed: int = 0, test: float = 50.0, **more) -> RunRecord:
    values = {"holdout": 40.0, "train": 99.0, "steps": 10, "seconds": 1.0, "took": 1.5, "images": 9}
    curve = {"curve_steps": [5, 10], "curve_test": [30.0, test], "curve_loss": [1.0, 0.5]}
    return RunRecord(seed=seed, test=test, **{**values, **curve, **more})


def test_what_is_added_is_read_back_with_its_config_and_condition(tmp_path):
    records = Records(tmp_path)
    for seed, rate in ((1, 0.1), (0, 0.2), (2, 0.1)):
        records.add(HERE, "fc-n512", made(seed, 50 + seed), {"lr": rate}, {"commit": "a"})
    found = records.read(HERE.name, "fc-n512")
    assert found is not None
    assert [run.seed for run in found.runs] == [0, 1, 2]
    assert [found.configs[run.config] for run in found.runs] == [
        {"lr": 0.2},
        {"lr": 0.1},
        {"lr": 0.1},
    ]
    assert len(found.configs) == 2 and found.environments == [{"commit": "a"}]
    assert (found.data, found.scale, found.per_class, found.changes) == (
        "photos", "transfer", 5, {"epochs": 3},
    )  # fmt: skip
    assert records.conditions() == {"photos-transfer-5-epochs=3": {"fc-n512": found}}


def test_records_added_at_the_same_time_are_all_kept(tmp_path):
    def add(seed: int) -> None:
        Records(tmp_path).add(HERE, "baseline", made(seed), {}, {})

    threads = [threading.Thread(target=add, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Records(tmp_path).read(HERE.name, "baseline")
    assert found is not None and [run.seed for run in found.runs] == list(range(12))


def test_a_run_is_claimed_once_and_not_again_when_it_has_a_record(tmp_path):
    one, two = Records(tmp_path), Records(tmp_path)
    with one.claimed(HERE.name, "fc", 0) as first, two.claimed(HERE.name, "fc", 0) as second:
        assert (first, second) == (True, False)
        with two.claimed(HERE.name, "fc", 1) as other:
            assert other
    with two.claimed(HERE.name, "fc", 0) as later:
        assert later
        two.add(HERE, "fc", made(0), {}, {})
    with one.claimed(HERE.name, "fc", 0) as done:
        assert not done


def test_a_damaged_record_is_named(tmp_path):
    records = Records(tmp_path)
    records.add(HERE, "fc", made(), {}, {})
    path = tmp_path / HERE.name / "fc.json"
    values = json.loads(path.read_text())
    values["runs"][0]["test"] = "good"
    path.write_text(json.dumps(values))
    with pytest.raises(RunError, match=r"fc\.json is damaged.*test"):
        records.read(HERE.name, "fc")
