"""Figs. 1 to 3."""

import numpy as np

from blockout.show.figures.architectures import architectures, layered

from .made import text_of


def test_fig_1_names_the_classes_of_a_learned_structure():
    structure = layered([(0,), (0,), (1,)], [(0, 1), (1,)], classes=["cat", "dog"])
    assert structure.costs[0].pairs_after == 4
    text = text_of(architectures(structure))
    assert "a learned hierarchy" in text and "cat" in text and "dog" in text


def test_fig_1_says_what_grey_boxes_are_only_if_there_are_some():
    assert "rare codes" not in text_of(architectures())
    bits = np.random.default_rng(0).random((300, 6)) < 0.4
    codes = [tuple(np.flatnonzero(row).tolist()) for row in bits]
    assert "grey: nodes of rare codes" in text_of(architectures(layered(codes, [(0,), (5,)])))
