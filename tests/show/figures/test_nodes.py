"""Fig. 10."""

import numpy as np

from blockout.show.figures import encoded
from blockout.show.figures.nodes import nodes
from blockout.show.nodes import principal_components

from .made import make_run, text_of


def test_fig_10_places_nodes_by_their_components_and_numbers_classes(tmp_path, run):
    wide = make_run(tmp_path / "more", width=16)
    figure = nodes([wide, run], ["oak", "cat"])
    panels = [axes for axes in figure.axes if axes.collections]
    assert len(panels) == 6  # the narrow run first
    at = np.unique(principal_components(run.memberships["P_0"]).points.round(2), axis=0)
    offsets = np.array(sorted(map(tuple, panels[0].collections[0].get_offsets())))
    np.testing.assert_allclose(offsets, at)
    numbered = [t.get_text() for t in panels[2].texts]
    assert {"1", "2"} <= set(numbered)
    text = text_of(figure)
    assert "1. oak" in text and "2. cat" in text and "16 nodes" in text


def test_nodes_of_the_same_p_are_one_dot_as_large_as_they_are_many(run):
    dots = nodes([run]).axes[2].collections[0]
    assert len(dots.get_offsets()) == 4
    sizes = np.sort(dots.get_sizes())
    np.testing.assert_allclose(sizes, 3 + 700 * np.array([1, 1, 2, 2]) / 6)


def test_many_nodes_stay_a_small_file(tmp_path):
    run = make_run(tmp_path / "huge", width=4096)
    assert len(encoded(nodes([run]), "svg")) < 300_000
