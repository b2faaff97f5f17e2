"""Records under results/ say what they were made with, so that a later default changes nothing."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DECIDED = (
    "image_size",
    "trunk",
    "freeze_trunk",
    "nodes",
    "clusters",
    "dropout",
    "batch_size",
    "lr",
    "paper",
    "stream",
    "log_every",
)


def configs(record: dict) -> list[dict]:
    """Of every training run in a record."""
    entries = [record, *record.get("runs", []), *record.get("rows", [])]
    found = [entry.get("config") for entry in entries if isinstance(entry, dict)]
    found += record.get("configs", [])  # of `blockout reproduce`
    return [config for config in found if isinstance(config, dict) and "method" in config]


RECORDS = {
    str(path.relative_to(ROOT / "results")): found
    for path in sorted((ROOT / "results").rglob("*.json"))
    if (found := configs(json.loads(path.read_text())))
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_recorded_config_leaves_nothing_open(name):
    for config in RECORDS[name]:
        assert [value for value in DECIDED if config.get(value, 0) in (None, "auto")] == []
        assert (config["epochs"] is None) != (config["steps"] is None)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "results").rglob("*.json")), ids=lambda p: f"{p.parent.name}/{p.name}"
)
def test_a_record_names_no_path_of_one_machine(path):
    text = path.read_text()
    assert "/home/" not in text and "/root/" not in text and "/work/" not in text
