"""Classes that a figure points at."""

from dataclasses import replace

import msgspec

from blockout.runs import Run
from blockout.runs import folder as files
from blockout.show.figures.examples import pictures, telling_classes
from blockout.show.figures.nodes import nodes

from .made import GROUPS, P_2, text_of


def test_telling_classes_are_near_and_far_ones_of_a_group(run):
    first, second, third, fourth = telling_classes(run)
    assert {GROUPS[c] for c in (first, second, fourth)} == {1} and GROUPS[third] == 0
    assert (P_2[first] == P_2[second]).all() and (P_2[first] != P_2[fourth]).any()
    alone = replace(run, description=msgspec.structs.replace(run.description, groups=None))
    assert len(telling_classes(alone)) == 3


def test_pictures_are_those_of_the_class(tmp_path, run):
    (images,) = pictures(run, [3])
    assert len(images) == 4 and all((image == 30).all() for image in images)
    (run.folder / files.THUMBNAILS).unlink()
    without = Run.open(run.folder)
    assert pictures(without, [3]) == [[]]
    assert "1. oak" in text_of(nodes([without], ["oak"]))
