import io

import pytest
from PIL import Image

from blockout.data import DataError
from blockout.data.columns import table_of
from blockout.data.tables import HOLDOUT, TEST, TRAIN

datasets = pytest.importorskip("datasets")


def split_of(image: str = "image", **columns: tuple) -> "datasets.Dataset":
    """A split with an image column and others; a value is (type, list)."""
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    count = len(next(iter(columns.values()))[1])
    return datasets.Dataset.from_dict(
        {image: [{"bytes": file.getvalue(), "path": None}] * count}
        | {name: values for name, (_, values) in columns.items()},
        features=datasets.Features(
            {image: datasets.Image()} | {name: kind for name, (kind, _) in columns.items()}
        ),
    )


NAMES = datasets.ClassLabel(names=["cat", "dog"])
INT, TEXT = datasets.Value("int64"), datasets.Value("string")


def test_the_names_of_the_data_are_the_classes() -> None:
    table = table_of("it", {"train": split_of(label=(NAMES, [1, 0, 1]))})
    assert table.catalogue.classes == ("cat", "dog")
    assert table.catalogue.labels.tolist() == [1, 0, 1] and len(table.rows) == 3
    assert table.rows.image(2).size == (4, 4)


@pytest.mark.parametrize(
    ("kind", "values", "classes"),
    [(TEXT, ["pear", "fig", "pear"], ("fig", "pear")), (INT, [10, 9, 10], ("9", "10"))],
)
def test_values_without_names_are_sorted_classes(
    kind: object, values: list, classes: tuple
) -> None:
    catalogue = table_of("it", {"train": split_of(label=(kind, values))}).catalogue
    assert catalogue.classes == classes and catalogue.labels.tolist() == [1, 0, 1]


def test_a_column_of_plain_bytes_may_be_the_image() -> None:
    split = split_of(label=(NAMES, [0, 1])).cast_column("image", datasets.Image(decode=False))
    bare = datasets.Dataset.from_dict(
        {"bytes": [row["bytes"] for row in split["image"]], "label": [0, 1]}
    )
    assert table_of("it", {"train": bare}).rows.image(1).size == (4, 4)


def test_fine_and_coarse_labels_give_classes_and_groups() -> None:
    fine = datasets.ClassLabel(names=["bee", "cat", "dog"])
    coarse = datasets.ClassLabel(names=["pets", "insects"])
    split = split_of("img", fine_label=(fine, [0, 1, 2, 1]), coarse_label=(coarse, [1, 0, 0, 0]))
    catalogue = table_of("it", {"train": split}).catalogue
    assert catalogue.classes == ("bee", "cat", "dog")
    assert catalogue.groups == (1, 0, 0) and catalogue.group_names == ("pets", "insects")


def test_a_class_in_two_groups_leaves_the_groups_out_with_a_note() -> None:
    split = split_of(label=(NAMES, [0, 0, 1]), group=(INT, [0, 1, 1]))
    catalogue = table_of("it", {"train": split}).catalogue
    assert catalogue.groups is None and "column group is not used" in catalogue.notes[0]


def test_an_unlabelled_test_split_makes_the_validation_split_the_test() -> None:
    train, hidden = split_of(label=(NAMES, [0, 1])), split_of(label=(NAMES, [-1, -1]))
    parts = table_of("it", {"train": train, "validation": train, "test": hidden}).catalogue.parts
    assert parts.tolist() == [TRAIN, TRAIN, TEST, TEST]
    parts = table_of("it", {"test": train, "validation": train, "train": train}).catalogue.parts
    assert parts.tolist() == [TRAIN] * 2 + [HOLDOUT] * 2 + [TEST] * 2


def test_a_single_split_of_any_name_is_the_training_set() -> None:
    table = table_of("it", {"everything": split_of(label=(NAMES, [0, 1]))})
    assert table.catalogue.parts.tolist() == [TRAIN, TRAIN]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (lambda: {"train": split_of(tag=(NAMES, [0, 1]))}, "columns image, tag; .* called label"),
        (
            lambda: {"train": split_of(label=(NAMES, [0, 1])).remove_columns("image")},
            "the columns label; expected one of them to hold images",
        ),
        (
            lambda: {s: split_of(label=(NAMES, [0, 1])) for s in ("north", "south")},
            "has the splits north, south; expected one of them to be train",
        ),
        (
            lambda: {"train": split_of(label=(TEXT, ["a", None, "b"]))},
            "1 rows have no label; remove them",
        ),
        (
            lambda: {"train": split_of(label=(NAMES, [0, 1, -1]))},
            "1 rows have a label outside its 2 classes",
        ),
        (
            lambda: {
                "train": split_of(label=(NAMES, [0, 1])),
                "test": split_of("photo", label=(NAMES, [0, 1])),
            },
            "the test split of it has no column 'image'",
        ),
        (lambda: {"train": split_of(label=(NAMES, []))}, "the train split of it holds no images"),
        (
            lambda: {"train": split_of(label=(NAMES, [-1, -1]))},
            "the train split of it has no labels",
        ),
    ],
)
def test_data_that_cannot_be_used_says_what_is_wrong(splits, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table_of("it", splits())
