"""Documents of a run fit together inside, or are refused by the name of their file."""

import pytest

from blockout.runs import folder as files
from blockout.runs.documents import SplitImages, read_description, read_document
from blockout.runs.errors import RunError

IMAGE = ["ant/1.png", 1, "0" * 32]
SPLIT = {"data": "photos", "classes": ["ant", "bee"], "train": [IMAGE], "holdout": [], "test": []}
ABOUT = {
    "format": 1,
    "model": {"head": {"classes": 3}},
    "classes": ["ant", "bee", "oak"],
    "groups": [0, 0, 1],
    "group_names": ["insect", "tree"],
    "data": "photos",
    "image_size": 32,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


@pytest.mark.parametrize("part", ["train", "holdout", "test"])
def test_an_image_of_a_split_has_a_class_with_a_name_and_a_digest(tmp_path, part):
    path = tmp_path / files.SPLIT
    files.write_json(path, SPLIT)
    assert read_document(path, SplitImages).train[0].name == "ant/1.png"
    for image, problem in (
        (["bee/2.png", 2, "0" * 32], "belongs to a class that has no name"),
        (["bee/2.png", -1, "0" * 32], "Expected `int` >= 0"),
        (["bee/2.png", 1, "0" * 31], "Expected `str` matching regex"),
    ):
        files.write_json(path, SPLIT | {part: [image]})
        with pytest.raises(RunError, match=rf"split\.json is damaged: .*{problem}"):
            read_document(path, SplitImages)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"classes": ["ant", "bee"]}, "2 classes are named and 3 predicted"),
        ({"groups": [0, 1]}, "2 of 3 classes have a group"),
        ({"groups": [0, 1, 2]}, "a class belongs to a group that has no name"),
        ({"crop": 0}, r"Expected `float` > 0"),
        ({"std": [0.5, 0.5, 0.0]}, "Expected `float` >= 1e-06"),
    ],
)
def test_a_description_names_as_many_classes_as_are_predicted_and_their_groups(
    tmp_path, changes, problem
):
    path = tmp_path / files.MODEL
    files.write_json(path, ABOUT)
    found = read_description(path)
    assert found.known_groups == ("insect", "insect", "tree") and found.crop == 1
    files.write_json(path, ABOUT | changes)
    with pytest.raises(RunError, match=rf"model\.json is damaged: .*{problem}"):
        read_description(path)
