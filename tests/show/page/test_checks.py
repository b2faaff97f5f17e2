"""Images to check: each beside its twin, with names and labels; nothing where nothing was found."""

import dataclasses
import re

import pytest
import torch

from blockout.data import MemorySplit
from blockout.runs import Run, RunError
from blockout.runs import folder as files
from blockout.runs.documents import Checks, CopiedImage, DoubtedLabel, as_json
from blockout.show.page import checks
from blockout.show.page.checks import section
from blockout.show.verdict import bad_news, copies_in_words

from ..made import made_run
from .conftest import HALF, tinted_images

COPY = CopiedImage("1", 0, "2", 1, exact=True, similarity=1.0)
NEAR = CopiedImage("3", 2, "0", 2, exact=False, similarity=0.913)
DOUBT = DoubtedLabel("4", "train", 3, 0, "2", 0.9)


def run_with(folder, **found) -> Run:
    run = made_run(folder=folder)
    files.write_json(folder / files.CHECKS, as_json(Checks(**found)))
    return run


@pytest.fixture
def data(monkeypatch):
    """Six images of another colour each in every split, named after their places."""
    pixels = torch.arange(6, dtype=torch.uint8)[:, None, None, None].repeat(1, 16, 16, 3) * 40
    split = MemorySplit(pixels, torch.arange(6), torch.arange(6) % 4, HALF, HALF)
    images = dataclasses.replace(tinted_images(("a", "b")), train=split, holdout=split, test=split)
    monkeypatch.setattr(Run, "images", lambda run: images)


def words(markup) -> str:
    return " ".join(re.sub("<.*?>", " ", str(markup)).split())


def test_pairs_stand_side_by_side_with_their_labels(tmp_path, data):
    run = run_with(tmp_path, copies=(COPY, NEAR), copies_found=2, doubts=(DOUBT,), doubts_found=1)
    body = section([run]).body
    assert body.count("data:image/jpeg") == 6
    told = words(body)
    assert "Exact copy, with another label Test image, labelled cat 1 Training image" in told
    assert "Near copy cosine of their features 0.91 Test image, labelled oak" in told
    assert "Labels that look wrong: 1" in told
    assert "Looks like cat Training image, labelled fir 4 Training image, labelled cat 2" in told


def test_nothing_is_shown_where_nothing_was_found_or_looked_for(tmp_path):
    assert section([run_with(tmp_path, skipped="too many")]) is None
    (tmp_path / files.CHECKS).unlink()
    assert section([made_run(folder=tmp_path)]) is None


def test_long_lists_are_cut_and_say_where_the_rest_is(tmp_path, data, monkeypatch):
    monkeypatch.setattr(checks, "SHOWN", 1)
    body = section([run_with(tmp_path, copies=(COPY, NEAR), copies_found=40)]).body
    assert body.count("<figure>") == 2
    assert "copy in training: 40 (the first 1 are here, more in checks.csv)" in body


def test_without_the_data_there_are_names_and_the_reason(tmp_path):
    body = section([run_with(tmp_path, copies=(COPY,), copies_found=1)]).body
    assert "The images are not shown, because the data cannot be read here: " in body
    assert "<img" not in body and "labelled" in body


def test_names_of_files_are_text(tmp_path, data):
    found = CopiedImage("<script>", 0, "2", 0, exact=True, similarity=1.0)
    assert "<script>" not in section([run_with(tmp_path, copies=(found,), copies_found=1)]).body


def test_a_class_without_a_name_is_damage(tmp_path):
    run = run_with(tmp_path, doubts=(DoubtedLabel("4", "test", 3, 9, "2", 1.0),), doubts_found=1)
    with pytest.raises(RunError, match="a class that has no name"):
        _ = run.checks


def test_copies_are_bad_news_in_words(tmp_path):
    run = run_with(tmp_path, copies=(COPY, NEAR), copies_found=2)
    said = "2 test images have a copy in training (1 exact, 1 with another label)"
    assert any(text.startswith(f"{said}, so the test is easier") for text in bad_news(run))
    assert copies_in_words(Checks((NEAR,), 1)) == "1 test image has a near copy in training"
    assert copies_in_words(Checks((NEAR,), 7)) == "7 test images have a copy in training"
    assert copies_in_words(Checks()) == ""
