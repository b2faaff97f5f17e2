"""Taxonomies from CSV files."""

import pytest

from blockout.structure.sources import read_taxonomy

ANIMALS = ("cat", "dog", "oak", "fir")


@pytest.mark.parametrize(
    "text",
    [
        "class,group\ncat,pet\ndog,pet\noak,tree\nfir,tree\n",
        'fir,tree\r\noak,tree\r\n\r\n"dog", pet\r\ncat,pet\r\nyew,tree',
        "\ufeffcat,pet\ndog,pet\noak,tree\nfir,tree\nfir,tree\n",
    ],
)
def test_a_csv_gives_each_class_its_group(text, tmp_path):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    assert read_taxonomy(tmp_path / "t.csv", ANIMALS) == ("pet", "pet", "tree", "tree")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"cat,pet\noak,tree\n", "no group for 'dog', 'fir'; it must name all 4 classes"),
        (b"cat,pet\ncat\n", "line 2 of .* must be class,group, got 'cat'"),
        (b"cat,pet,small\n", "line 1 of .* must be class,group"),
        (b"cat,\n", "line 1 of .* must be class,group"),
        (b"cat,pet\n\ncat,tree\n", "line 3 of .* puts 'cat' in 'tree', an earlier line in 'pet'"),
        (b"\xff\xfe\x00", "is not a CSV file in UTF-8"),
        (b"", "no group for 'cat'"),
    ],
)
def test_a_bad_csv_names_the_line_or_the_missing_classes(content, complaint, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        read_taxonomy(tmp_path / "t.csv", ANIMALS)
