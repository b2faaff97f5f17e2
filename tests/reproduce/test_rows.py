"""The paper's rows as data."""

import pytest

from blockout.data import DataConfig
from blockout.models import ModelConfig
from blockout.reproduce import Condition, cell_of, config_of, table, table_of
from blockout.reproduce.rows import DATA, PUBLISHED
from blockout.runs.config import TrainConfig


def test_a_row_has_the_settings_that_the_paper_gives_it():
    rows = {row.name: row for row in table("table1").rows}
    dropout = config_of(Condition("cifar100"), cell_of(rows["dropout"].settings, "transfer"), 3)
    assert (dropout.model.method, dropout.model.dropout, dropout.model.nodes) == (
        "dropout", 0.3, 512,
    )  # fmt: skip
    assert dropout.optimisation.seed == 3
    soft = cell_of(rows["soft"].settings, "cpu")
    found = config_of(Condition("cifar100", "cpu"), soft, 0)
    assert (found.model.hard, found.model.learned, found.model.clusters) == (False, True, 6)
    assert found.paper and found.model.trunk == "inception-small"
    cifar10 = {row.name: row for row in table("table3").rows}
    assert cifar10["learned"].settings["clusters"] == 2
    assert cifar10["dropout"].settings["dropout"] == 0.5
    imagenet = {row.name: row for row in table("table2").rows}
    assert imagenet["learned"].settings["nodes"] == 4096


@pytest.mark.parametrize("name", DATA)
def test_every_printed_number_stands_in_a_row(name):
    printed = {row.name: row.published for row in table(name).rows if row.published is not None}
    assert printed == PUBLISHED[name]
    assert len({row.name for row in table(name).rows}) == len(table(name).rows)


def test_the_print_is_about_its_own_data_only():
    assert all(row.published is None for row in table("table1", "grocery").rows)
    assert table("table2", "ILSVRC/imagenet-1k").rows[0].published == 73.43
    assert table_of("cifar10").name == "table3" and table_of("grocery").name == "table1"


def test_rows_with_equal_settings_share_their_runs():
    rows = {row.name: row for row in table("table1").rows}
    cells = [
        cell_of(rows[name].settings, "transfer") for name in ("learned", "clusters-6", "nodes-512")
    ]
    assert {cell.name for cell in cells} == {"learned300-k6-n512"}
    names = {
        name: cell_of(row.settings, "transfer").name for name, row in rows.items() if not row.trials
    }
    shared = {"clusters-6": "learned", "nodes-512": "learned", "learned-2048": "nodes-2048"}
    assert all(names[one] == names[other] for one, other in shared.items())
    alone = [name for name in names if name not in shared]
    assert len({names[name] for name in alone}) == len(alone)


def test_cells_of_one_name_have_one_config():
    found = {}
    for name in DATA:
        for row in table(name, "photos").rows:
            for settings in row.trials or (row.settings,):
                cell = cell_of(settings, "transfer")
                made = config_of(Condition("photos"), cell, 0)
                beside = cell.settings["given"], cell.settings["probability"]
                assert found.setdefault(cell.name, (made.recipe(), beside)) == (
                    made.recipe(),
                    beside,
                )


def test_every_tuned_method_has_five_trials():
    tuned = [row for row in table("table1").rows if row.part == "tuned"]
    assert [len({cell_of(t, "transfer").name for t in row.trials}) for row in tuned] == [5] * 6
    assert "dropout-tuned" in [row.name for row in tuned]


def test_an_unknown_row_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"baseline.*methods.*got droput"):
        table("table1").chosen(["droput"])
    chosen = table("table3").chosen(["fc", "ours"])
    assert [row.name for row in chosen] == ["fc", "guided", "alone", "pays", "small"]


def test_the_default_of_your_own_data_is_that_whatever_the_paper_has_for_a_set():
    rows = {row.name: row for row in table("table3").rows}
    cell = cell_of(rows["pays"].settings, "transfer")
    found = config_of(Condition("cifar10"), cell, 0).resolved(image_size=32, classes=10, steps=9)
    own = TrainConfig(DataConfig("animals"), ModelConfig(trunk="efficientnet-lite0")).resolved(
        image_size=32, classes=10, steps=9
    )
    assert found.model == own.model and found.guidance == own.guidance
    assert found.model.with_linear and found.guided


@pytest.mark.parametrize("scale", ["transfer", "cpu"])
def test_a_cell_says_in_its_name_whether_a_linear_classifier_stands_beside(scale):
    rows = {row.name: row for row in table("table1").rows}
    for name in ("pays", "alone", "learned"):
        cell = cell_of(rows[name].settings, scale)
        beside = config_of(Condition("cifar100", scale), cell, 0).resolved().model.with_linear
        assert ("-linear" in cell.name) == beside == cell.settings["with_linear"]


def test_scale_paper_has_the_full_models():
    learned = {row.name: row for row in table("table2").rows}["learned"]
    large = config_of(Condition("imagenet", "paper"), cell_of(learned.settings, "paper"), 0)
    assert (large.model.trunk, large.model.nodes, large.model.clusters) == ("inception-bn", 4096, 6)
    learned = {row.name: row for row in table("table1").rows}["learned"]
    small = config_of(Condition("cifar100", "paper"), cell_of(learned.settings, "paper"), 0).model
    assert (small.trunk, small.width, small.early_downsampling) == ("inception-small", 1, False)
