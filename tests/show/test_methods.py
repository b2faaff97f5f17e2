"""Which runs count as the same method, and what they are called."""

from blockout.models.config import METHODS as ALL_METHODS
from blockout.runs import Run
from blockout.show.colours import OF_GROUPS
from blockout.show.methods import METHOD_NAMES, by_method, labels

from .made import bare_run as run


def groups(*runs: Run) -> list[tuple[str, list[str]]]:
    return [(group.label, [one.name for one in group.runs]) for group in by_method(runs)]


def test_runs_that_differ_in_the_seed_and_in_how_they_ran_are_one_method():
    runs = run("a", seed=0), run("b", method="dropout"), run("c", seed=1, devices="2")
    assert groups(*runs) == [
        ("Blockout, paper's rule, 512 nodes", ["a", "c"]),
        ("Dropout, 512 nodes", ["b"]),
    ]
    assert [group.colour for group in by_method(runs)] == list(OF_GROUPS[:2])


def test_more_methods_than_colours_have_different_symbols():
    found = by_method([run(str(nodes), nodes=nodes) for nodes in range(1, 12)])
    assert [group.colour for group in found] == [*OF_GROUPS, *OF_GROUPS[:4]]
    assert len({(group.colour, group.symbol) for group in found}) == 11


def test_what_is_left_open_is_what_training_takes():
    open_ones = run("a"), run("b", method="dropout")
    given = (
        run("c", paper=True, nodes=512, clusters=6, epochs=10, batch_size=256, lr=0.4),
        run("d", method="dropout", dropout=0.3),
    )
    assert [names for _, names in groups(*open_ones, *given)] == [["a", "c"], ["b", "d"]]


def test_a_longer_training_is_not_taken_for_a_better_method():
    runs = run("a", epochs=20), run("b", method="dropout"), run("c", data="shapes")
    assert [label for label, _ in groups(*runs)] == [
        "cifar100, Blockout, paper's rule, 512 nodes, epochs 20",
        "cifar100, Dropout, 512 nodes, epochs 10",
        "shapes, Blockout, guided, 512 nodes",
    ]


def test_methods_of_one_name_are_told_apart_by_what_differs():
    runs = run("a", epochs=6), run("b"), run("c", epochs=6, weight_decay=0.001)
    assert [label for label, _ in groups(*runs)] == [
        "Blockout, paper's rule, 512 nodes, epochs 6, weight decay 0.0001",
        "Blockout, paper's rule, 512 nodes, epochs 10, weight decay 0.0001",
        "Blockout, paper's rule, 512 nodes, epochs 6, weight decay 0.001",
    ]


def test_guidance_counts_for_guided_runs_only():
    by_the_paper = groups(run("a", budget=1.0), run("b", budget=2.0))
    assert [names for _, names in by_the_paper] == [["a", "b"]]
    guided = groups(run("a", paper=False, budget=1.0), run("b", paper=False, budget=2.0))
    assert [label for label, _ in guided] == [
        "Blockout, guided, 512 nodes, budget 1",
        "Blockout, guided, 512 nodes, budget 2",
    ]


def test_names_say_variant_and_data_where_they_matter():
    runs = (
        run("a", hard=False),
        run("b", learned=False, nodes=64),
        run("c", method="baseline", nodes=64),
        run("d", data="some/where/birds/"),
    )
    assert [label for label, _ in groups(*runs)] == [
        "cifar100, Blockout (soft), paper's rule, 512 nodes",
        "cifar100, Blockout (fixed), 64 nodes",
        "cifar100, Baseline",
        "birds, Blockout, guided, 512 nodes",
    ]


def test_each_run_is_called_after_its_group():
    runs = run("a"), run("b", method="dropout"), run("c", seed=7)
    assert labels(runs) == [
        "Blockout, paper's rule, 512 nodes",
        "Dropout, 512 nodes",
        "Blockout, paper's rule, 512 nodes",
    ]


def test_every_method_has_a_name():
    assert set(METHOD_NAMES) == set(ALL_METHODS)


def test_where_a_run_was_computed_makes_no_other_method():
    runs = run("a", strategy="ddp", workers=3), run("b", seed=1, cache="elsewhere", log_every=3)
    assert [names for _, names in groups(*runs)] == [["a", "b"]]
