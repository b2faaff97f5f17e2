"""Which runs count as the same method, and what they are called."""

from pathlib import Path

from blockout.report.methods import by_method
from blockout.report.section import PALETTE
from blockout.report.view import RunView
from blockout.training import TrainConfig


def view(name: str, **config) -> RunView:
    flat = TrainConfig().flat() | {"data": "cifar100"} | config
    return RunView(Path(name), name, flat, {}, {}, {}, [], [], {}, {})


def labels(*views: RunView) -> list[tuple[str, list[str]]]:
    return [(group.label, [v.name for v in group.runs]) for group in by_method(views)]


def test_runs_that_differ_in_the_seed_and_in_how_they_ran_are_one_method():
    runs = view("a", seed=0), view("b", method="dropout"), view("c", seed=1, devices="2")
    assert labels(*runs) == [
        ("Blockout, paper's rule, 512 nodes", ["a", "c"]),
        ("Dropout, 512 nodes", ["b"]),
    ]
    assert [group.colour for group in by_method(runs)] == list(PALETTE[:2])


def test_more_methods_than_colours_have_different_symbols():
    found = by_method([view(str(nodes), nodes=nodes) for nodes in range(1, 12)])
    assert [group.colour for group in found] == [*PALETTE, *PALETTE[:3]]
    assert len({(group.colour, group.symbol) for group in found}) == 11


def test_what_is_left_open_is_what_training_takes():
    open_ones = view("a"), view("b", method="dropout")
    given = (
        view("c", paper=True, nodes=512, clusters=6, epochs=10, batch_size=256, lr=0.4),
        view("d", method="dropout", dropout=0.3),
    )
    assert [names for _, names in labels(*open_ones, *given)] == [["a", "c"], ["b", "d"]]


def test_a_longer_training_is_not_taken_for_a_better_method():
    runs = view("a", epochs=20), view("b", method="dropout"), view("c", data="shapes")
    assert [label for label, _ in labels(*runs)] == [
        "cifar100, Blockout, paper's rule, 512 nodes, epochs 20",
        "cifar100, Dropout, 512 nodes, epochs 10",
        "shapes, Blockout, guided, 512 nodes",
    ]


def test_methods_of_one_name_are_told_apart_by_what_differs():
    runs = view("a", epochs=6), view("b"), view("c", epochs=6, weight_decay=0.001)
    assert [label for label, _ in labels(*runs)] == [
        "Blockout, paper's rule, 512 nodes, epochs 6, weight decay 0.0001",
        "Blockout, paper's rule, 512 nodes, epochs 10, weight decay 0.0001",
        "Blockout, paper's rule, 512 nodes, epochs 6, weight decay 0.001",
    ]


def test_guidance_counts_for_guided_runs_only():
    by_the_paper = labels(view("a", budget=1.0), view("b", budget=2.0))
    assert [names for _, names in by_the_paper] == [["a", "b"]]
    guided = labels(view("a", paper=False, budget=1.0), view("b", paper=False, budget=2.0))
    assert [label for label, _ in guided] == [
        "Blockout, guided, 512 nodes, budget 1",
        "Blockout, guided, 512 nodes, budget 2",
    ]


def test_names_say_variant_and_data_where_they_matter():
    runs = (
        view("a", hard=False),
        view("b", learned=False, nodes=64),
        view("c", method="baseline", nodes=64),
        view("d", data="some/where/birds/"),
    )
    assert [label for label, _ in labels(*runs)] == [
        "cifar100, Blockout (soft, learned), paper's rule, 512 nodes",
        "cifar100, Blockout (hard, fixed), 64 nodes",
        "cifar100, Baseline",
        "birds, Blockout, guided, 512 nodes",
    ]
