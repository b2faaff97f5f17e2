"""Fig. 11."""

from dataclasses import replace

import msgspec
import numpy as np

from blockout.runs import folder as files
from blockout.show.classes import expected_clusters, quartiles
from blockout.show.figures.classes import classes
from blockout.show.figures.examples import telling_classes
from blockout.show.figures.nodes import nodes

from .made import P_2, make_run, text_of


def test_fig_11_shows_clusters_per_class_with_median_and_quartiles(tmp_path, run):
    wide = make_run(tmp_path / "more", width=16)
    figure = classes([run, wide])
    first, second = (axes for axes in figure.axes if axes.patches)
    assert [bar.get_height() for bar in first.patches[:6]] == [1, 1, 1, 2, 2, 3]
    assert [line.get_ydata()[0] for line in first.lines] == [1.0, 1.5, 2.0]
    assert [line.get_linestyle() for line in first.lines] == [":", "-", ":"]
    assert first.get_ylabel() == "expected clusters"
    assert "r = 1.00 with (a)" in [note.get_text() for note in second.texts]
    assert first.patches[6].get_height() == 3  # the first example has the most clusters


def test_fig_11_keeps_the_order_of_the_first_run(tmp_path, run):
    wide = make_run(tmp_path / "more", width=16)
    turned = replace(wide, memberships=wide.memberships | {"P_2": wide.class_memberships[::-1]})
    _, second = (axes for axes in classes([run, turned]).axes if axes.patches)
    assert [bar.get_height() for bar in second.patches[:6]] == [3, 2, 2, 1, 1, 1]
    assert second.get_xlabel() == "6 classes, in the order of (a)"


def test_two_classes_one_cluster_and_no_groups_are_drawn_too(run):
    p = {"P_0": np.ones((4, 1)), "P_1": np.zeros((4, 1)), "P_2": np.array([[0.2], [0.7]])}
    model = {"head": {"classes": 2}}
    described = msgspec.structs.replace(
        run.description, model=model, classes=("yes", "no"), groups=None
    )
    (run.folder / files.THUMBNAILS).unlink()  # of other classes
    small = replace(run, description=described, memberships=p)
    assert telling_classes(small) == [0, 1]
    assert [bar.get_height() for bar in classes([small]).axes[0].patches[:2]] == [0.2, 0.7]
    assert "1. yes" in text_of(nodes([small]))


def test_expected_clusters_and_their_quartiles():
    assert expected_clusters(P_2).tolist() == [1, 1, 1, 2, 2, 3]
    assert quartiles(expected_clusters(P_2)) == (1.0, 1.5, 2.0)
