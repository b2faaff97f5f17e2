"""A run keeps its split, whatever becomes of the folder of its images."""

import json

import numpy as np
import pytest
from PIL import Image

from blockout.commands.cli import main
from blockout.runs import Run, RunError
from blockout.runs import folder as files
from blockout.runs.split import read_split


def draw(path, colour: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 120, (28, 28, 3), np.uint8)
    pixels[..., colour] += 100
    Image.fromarray(pixels).save(path)


def train(place, *more: str) -> int:
    words = ["--width", "0.1", "--nodes", "16", "--clusters", "2", "--steps", "4"]
    words += ["--batch-size", "8", "--accelerator", "cpu", "--tensorboard", "false"]
    data = ["--data", str(place / "photos"), "--cache", str(place / "cache")]
    return main(["train", *data, *words, *more])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("split")
    for number, name in enumerate(("ant", "bee")):
        for i in range(20):
            draw(place / "photos" / name / f"{i}.png", number, 100 * number + i)
    assert train(place, "--run", str(place / "run")) == 0
    return place


def evaluated(place, capsys, *more: str) -> dict:
    capsys.readouterr()
    assert main(["evaluate", str(place / "run"), "--cache", str(place / "cache"), *more]) == 0
    return json.loads(capsys.readouterr().out) if "--json" in more else {}


def test_added_photographs_change_nothing_for_a_run(trained, capsys, monkeypatch, tmp_path):
    before = evaluated(trained, capsys, "--json")
    for i in range(15):
        draw(trained / "photos" / "ant" / f"new{i}.png", 0, 500 + i)
    monkeypatch.chdir(tmp_path)  # the run says where its data was
    assert evaluated(trained, capsys, "--json") == before
    assert main(["evaluate", str(trained / "run"), "--cache", str(trained / "cache")]) == 0
    said = capsys.readouterr().out
    assert "note: 15 images are new since the run, and left out (ant/new0.png, ...)" in said
    assert not Run.open(trained / "run").has_changed(Run.open(trained / "run").images())
    assert train(trained, "--run", str(trained / "run")) == 0
    said = capsys.readouterr().out
    assert "finished already" in said
    assert "the folder has 15 new photographs: --restart trains on them too" in said


def test_a_new_run_on_more_photographs_takes_no_training_image_for_its_test(trained):
    """Nor does one that starts from the first run with another seed for the split."""
    was = read_split(trained / "run")
    for i in range(15):
        draw(trained / "photos" / "bee" / f"more{i}.png", 1, 700 + i)
    start = ("--init-from", str(trained / "run"), "--data-seed", "5")
    for name, more in (("later", ()), ("from", start)):
        assert train(trained, "--run", str(trained / name), *more) == 0
        now = read_split(trained / name)
        known = {image.content for image in was.train}
        assert known <= {image.content for image in now.train}
        assert len(now.train) + len(now.holdout) + len(now.test) > 50


def test_a_run_that_continues_says_again_what_is_doubtful_about_its_split(trained, capsys):
    """It is in the result as well; a split of before, without notes, is read as it is."""
    folder = trained / "again"
    assert train(trained, "--run", str(folder)) == 0
    first = Run.open(folder).result.notes
    (folder / files.RESULT).unlink()  # as if killed just before the end
    capsys.readouterr()
    assert train(trained, "--run", str(folder)) == 0
    assert "note: no test split: took" in capsys.readouterr().out
    assert Run.open(folder).result.notes == first and len(first) > 1
    split = json.loads((folder / files.SPLIT).read_text())
    del split["notes"]
    files.write_json(folder / files.SPLIT, split)
    assert len(Run.open(folder).images().train) == len(split["train"])


def test_photographs_that_are_gone_are_said_and_the_run_does_not_go_on(trained, capsys):
    split = read_split(trained / "run")
    gone = trained / "photos" / split.train[0].name
    kept = gone.read_bytes()
    gone.unlink()
    evaluated(trained, capsys)
    assert train(trained, "--run", str(trained / "run")) == 1
    assert f"1 image of the run is gone ({split.train[0].name})" in capsys.readouterr().err
    gone.write_bytes(kept)
    evaluated(trained, capsys)


def test_no_file_but_the_split_names_the_place_of_the_images(trained):
    assert read_split(trained / "run").data == str(trained / "photos")
    run = Run.open(trained / "run")
    assert str(trained) not in json.dumps([run.recipe, run.data_name])
    text = (trained / "run" / files.MODEL).read_text() + (
        trained / "run" / files.RESULT
    ).read_text()
    assert str(trained) not in text


def test_a_run_whose_images_were_moved_says_where_they_were(trained, capsys):
    place = trained / "photos"
    moved = place.rename(trained / "moved")
    code = main(["evaluate", str(trained / "run")])
    moved.rename(place)
    said = capsys.readouterr().err
    assert code == 1 and f"its images were in {place}, which is gone; say --data FOLDER" in said


def test_a_damaged_split_is_named(trained):
    path = trained / "run" / files.SPLIT
    kept = path.read_text()
    path.write_text(kept.replace("ant", "art", 1))
    with pytest.raises(RunError, match=r"split.json is damaged"):
        Run.open(trained / "run").images()
    path.write_text(kept)


def test_a_published_split_that_lacks_classes_trains_to_the_page(tmp_path, capsys):
    for number, name in enumerate(("ant", "bee", "cat")):
        for i in range(8):
            draw(tmp_path / "photos" / "train" / name / f"{i}.png", number, 100 * number + i)
    for i in range(4):
        draw(tmp_path / "photos" / "val" / "ant" / f"{i}.png", 0, 900 + i)
        draw(tmp_path / "photos" / "test" / "bee" / f"{i}.png", 1, 950 + i)
    assert train(tmp_path, "--run", str(tmp_path / "run")) == 0
    said = capsys.readouterr().out
    assert "val has no image of 'bee', 'cat'" in said and "could not be drawn" not in said
    assert main(["compact", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")]) == 0
    assert (tmp_path / "run" / files.REPORT).exists()
