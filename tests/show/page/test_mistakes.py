import dataclasses
import re

import numpy as np
import pytest
import torch

from blockout.data import MemorySplit
from blockout.runs import Run
from blockout.show.page import mistakes
from blockout.show.page.mistakes import section

from ..made import made_run
from .conftest import HALF, tinted_images


@pytest.fixture
def data_of(monkeypatch):
    """Gives a run test images with these labels."""

    def give(labels: np.ndarray) -> None:
        pixels = torch.randint(0, 255, (len(labels), 16, 16, 3), dtype=torch.uint8)
        found = torch.from_numpy(np.array(labels))
        split = MemorySplit(pixels, torch.arange(len(labels)), found, HALF, HALF)
        images = dataclasses.replace(tinted_images(("a", "b")), test=split)
        monkeypatch.setattr(Run, "images", lambda run: images)

    return give


def test_each_image_says_what_it_is_and_was_taken_for_and_how_surely(data_of):
    run = made_run()
    data_of(run.predictions.labels)
    body = section([run]).body
    assert "Confused within a learned group" in body and "Confused across learned groups" in body
    assert body.count("data:image/jpeg") == 3 + 3 + 3 + 1
    certain = 100 * np.linspace(0.9, 0.3, 40)[6]
    assert f"<bdi>cat</bdi> → <b><bdi>dog</bdi></b>, {certain:.0f} % sure</figcaption>" in body
    assert "cat ↔ dog: 4 times" in re.sub("<.*?>", "", body)
    assert 'data-class="1"><bdi>dog</bdi></button>: 4 times' in body


def test_images_say_what_misled_the_network_and_where_they_do_not_why(data_of, monkeypatch):
    run = made_run()
    data_of(run.predictions.labels)
    body = section([run]).body
    assert "misled the network is not shown, because the network cannot be used here: " in body
    assert 'class="veil' not in body
    monkeypatch.setattr(mistakes, "evidence", lambda run, pixels, said: None)
    assert "its trunk gives tokens" in section([run]).body.replace("\n", " ")
    asked = []

    def found(run, pixels, said):
        asked.extend(said)
        return [np.eye(4, dtype=np.float32) * (i > 0) for i in range(len(pixels))]

    monkeypatch.setattr(mistakes, "evidence", found)
    body = section([run]).body
    assert body.count('<img class="veil"') == 9  # nothing speaks for the first
    assert body.count('class="veils"') == 1 and "not shown" not in body
    labels, predicted, _ = run.predictions
    wrong = labels != predicted[:, 0]
    left_out = (labels == 1) & (predicted[:, 0] == 0)  # the fourth of its pair
    assert sorted(asked) == sorted(predicted[wrong & ~left_out, 0].tolist())  # not what is true


def test_without_the_data_there_are_names_and_counts_and_the_reason():
    body = section([made_run()]).body
    assert "The images are not shown, because the data cannot be read here: " in body
    told = re.sub("<.*?>", "", body)
    assert "3 of 10 cat taken for dog; 1 of 10 dog taken for cat" in told
    assert "2 of 10 fir taken for dog" in told and "0 of 10" not in told
    assert "<img" not in body


def test_images_of_data_that_has_changed_are_not_shown(data_of):
    run = made_run()
    data_of(run.predictions.labels[::-1])
    body = section([run]).body
    assert "it has changed since this run was tested" in body and "<img" not in body


def test_long_names_break_between_their_words():
    body = section([made_run(None, classes=("pine_tree", "dog", "oak", "fir"))]).body
    assert "<bdi>pine_<wbr>tree</bdi>" in body


def test_there_are_never_more_than_48_images(data_of):
    n = 40
    counts = 4 * np.ones((n, n), dtype=int)
    p = np.repeat(np.eye(2), 20, axis=0)
    run = made_run(p, classes=list(map(str, range(n))), confusion=counts)
    data_of(run.predictions.labels)
    body = section([run]).body
    assert 40 <= len(re.findall("<img loading", body)) <= 48
    assert len(re.findall('class="pair"', body)) == 16


def test_a_perfect_run_has_no_mistakes_and_needs_no_data():
    found = section([made_run(confusion=10 * np.eye(4, dtype=int))])
    assert found.body.count("No mistakes.") == 2 and "not shown" not in found.body
    assert found.lead == "All test images are right."


def test_names_are_text_and_a_run_without_blockout_has_mistakes_too():
    body = section([made_run(None, classes=("<script>", "b", "c", "d"))]).body
    assert "<script>" not in body and "&lt;script&gt;" in body
    assert "learned" not in body
