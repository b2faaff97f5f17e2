"""A folder of photographs with the defaults: train, evaluate, predict, and what is cached."""

import csv
import json
import re
import shutil
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replaced
from PIL import Image

from blockout.commands.cli import main
from blockout.commands.train import _summarise, images_to_check, worst_classes
from blockout.runs import Run
from blockout.runs import folder as files
from blockout.runs.documents import Checks, CopiedImage, ImageCounts, Scores, as_json
from blockout.runs.split import read_split
from blockout.training import evaluate

from ..show.made import made_run


def draw(path, level: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(level, level + 60, (130, 150, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=90)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A trained run in `run`, its photographs in `photos`; everything else beside them."""
    place = tmp_path_factory.mktemp("photographs")
    for name, level in (("dark", 10), ("light", 120), ("white", 190)):
        for i in range(10):
            draw(place / "photos" / name / f"{i}.jpg", level, seed=level + i)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKOUT_CACHE_DIR", str(place / "cache"))
        patch.setattr("blockout.training.whole.BATCHES", (1, 2))  # to be measured sooner
        words = ["--data", str(place / "photos"), "--run", str(place / "run"), "--steps", "60"]
        assert main(["train", *words, "--accelerator", "cpu", "--workers", "0"]) == 0
    return place


@pytest.fixture(autouse=True)
def cache(place, monkeypatch):
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(place / "cache"))


def test_the_default_is_a_frozen_pretrained_trunk_beside_a_linear_classifier(place):
    run = Run.open(place / "run")
    assert run.config.model.trunk == "efficientnet-lite0" and run.config.model.freeze_trunk
    assert run.description.crop == 0.875 and run.description.image_size == 224
    assert run.result.test.accuracy == 100 and run.result.linear.accuracy == 100
    split = read_split(place / "run")
    most = statistics.mode(image.label for image in split.train)
    assert run.result.chance == pytest.approx(
        100 * statistics.mean(image.label == most for image in split.test)
    )


def test_what_training_says_names_the_network_and_what_stands_beside_it(place, capsys):
    main(["train", "--data", str(place / "photos"), "--run", str(place / "run"), "--steps", "60"])
    said = capsys.readouterr().out
    assert "its linear classifier alone 100.00 %, its other layers alone 100.00 %" in said
    assert f"guessing {max(100 / 3, Run.open(place / 'run').result.chance):.1f} %" in said
    assert "the same command with --finetune also trains the end of the trunk" in said


def test_training_ends_with_a_warning_of_a_hold_out_that_is_much_easier_than_the_test(capsys):
    made = made_run()
    counts, easy = ImageCounts(200, 100, 100), Scores(86.0, 99.0, 1.0)
    for holdout, times in ((easy, 1), (Scores(52.0, 99.0, 1.0), 0)):
        found = replaced(made.result, holdout=holdout, images=counts)
        _summarise(replace(made, result=found))
        said = capsys.readouterr().out
        assert said.count("warning: do not trust the hold-out: 86 % of its images") == times


def test_evaluation_through_the_trunk_agrees_with_training_on_features(place, capsys):
    assert main(["evaluate", str(place / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = Run.open(place / "run").result.test
    assert found["accuracy"] == wanted.accuracy
    assert found["loss"] == pytest.approx(wanted.loss, abs=1e-4)


def test_evaluation_on_kept_features_says_what_the_whole_network_says(place, capsys, monkeypatch):
    run = Run.open(place / "run")
    whole = evaluate(run.network().model, run.images().holdout)
    monkeypatch.setattr("blockout.training.features.fast_features", None)  # nothing passes again
    assert main(["evaluate", str(place / "run"), "--split", "holdout", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == whole.accuracy
    assert found["loss"] == pytest.approx(whole.loss, abs=1e-5)


def test_compaction_of_a_frozen_trunk_takes_kept_features_and_tunes_the_head(
    place, tmp_path, capsys, monkeypatch
):
    run = Run.open(shutil.copytree(place / "run", tmp_path / "run"))
    before = run.network().model
    monkeypatch.setattr("blockout.training.features.fast_features", None)
    monkeypatch.setattr("blockout.training.whole.BATCHES", (1,))
    assert main(["compact", str(run.folder), "--fine-tune", "1", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    small, images = run.network("compact").model, run.images()
    assert done["test"] == [evaluate(m, images.test).accuracy for m in (before, small)]
    assert done["holdout"] == [evaluate(m, images.holdout).accuracy for m in (before, small)]
    states = before.trunk.state_dict(), small.trunk.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(before.head.fc1.weight, small.head.fc1.weight)


def test_other_labelled_data_is_scored_whole_by_the_names_of_its_classes(place, tmp_path, capsys):
    for i in range(3):
        draw(tmp_path / "other" / "white" / f"{i}.jpg", 190, seed=i)
    draw(tmp_path / "other" / "dark" / "one.jpg", 190, seed=9)  # white, and labelled wrongly
    assert main(["evaluate", str(place / "run"), "--data", str(tmp_path / "other"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["images"], found["accuracy"]) == (4, 75.0)
    assert (found["trained_on"], found["left_out"]) == (0, {})


def test_images_of_a_class_that_the_run_does_not_know_are_left_out_and_named(
    place, tmp_path, capsys
):
    words = ["evaluate", str(place / "run"), "--data", str(tmp_path / "other")]
    for i in range(2):
        draw(tmp_path / "other" / "purple" / f"{i}.jpg", 50, seed=i)
    assert main(words) == 1
    assert "no image of a class that the run knows" in capsys.readouterr().err
    draw(tmp_path / "other" / "white" / "one.jpg", 190, seed=5)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "note: left out 2 images of classes that the run does not know: 'purple'" in said
    assert "other: 100.00 % of 1 images right, loss" in said  # with 3 classes nothing of five
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"purple": 2}


def test_the_runs_own_images_are_recognised_where_they_are_now(place, tmp_path, capsys):
    """Moved, renamed, one lost and one added: its test images are scored, as without --data."""
    assert main(["evaluate", str(place / "run"), "--json"]) == 0
    wanted = capsys.readouterr().out
    moved = shutil.copytree(place / "photos", tmp_path / "moved")
    trained = read_split(place / "run").train
    (moved / trained[0].name).unlink()
    (moved / trained[1].name).rename(moved / "dark" / "renamed.jpg")
    draw(moved / "white" / "new.jpg", 190, seed=77)
    words = ["evaluate", str(place / "run"), "--data", str(moved)]
    assert main([*words, "--json"]) == 0
    assert capsys.readouterr().out == wanted
    assert main([*words, "--split", "train"]) == 0
    said = capsys.readouterr().out
    assert f"note: {moved} holds the run's own images: only its train images are scored" in said
    assert "1 image is new since the run, and left out (white/new.jpg)" in said
    assert f"of {len(trained) - 1} images right" in said


def test_training_images_among_others_are_counted(place, tmp_path, capsys):
    split, other = read_split(place / "run"), tmp_path / "other"
    (other / "dark").mkdir(parents=True)
    for i, image in enumerate((*split.train[:2], split.test[0])):
        shutil.copy(place / "photos" / image.name, other / "dark" / f"copy{i}.jpg")
    draw(other / "white" / "new.jpg", 190, seed=78)
    words = ["evaluate", str(place / "run"), "--data", str(other)]
    assert main(words) == 0
    told = "2 of 4 scored images were training images of this run, so the accuracy is too high"
    assert told in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["images"], found["trained_on"]) == (4, 2)


def test_predictions_of_a_folder_are_a_table_without_what_cannot_be_read(place, tmp_path, capsys):
    draw(tmp_path / "new" / "a.jpg", 10, seed=3)
    draw(tmp_path / "new" / "b.jpg", 190, seed=4)
    (tmp_path / "new" / "c.jpg").write_bytes(b"no image")
    words = ["predict", str(place / "run"), str(tmp_path / "new"), "--top", "2"]
    assert main([*words, "--csv", str(tmp_path / "out.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    best = {row["image"].rpartition("/")[2]: row["class"] for row in rows if row["place"] == "1"}
    assert best == {"a.jpg": "dark", "b.jpg": "white"} and len(rows) == 4
    assert "skipped: cannot read" in capsys.readouterr().err
    assert main(["predict", str(place / "run"), str(tmp_path / "new" / "c.jpg")]) == 1


def test_the_cache_is_listed_and_cleaned(place, tmp_path, capsys):
    held = ["cache", "--cache", str(place / "cache"), "--json"]
    assert main(held) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (features,) = [entry for entry in found if entry["name"].startswith("features/")]
    assert features["bytes"] > 30 * 1280 * 4 and not features["deleted"]
    assert main(["cache", "--cache", str(place / "cache")]) == 0
    first, name, *_, total = capsys.readouterr().out.splitlines()
    assert re.match(r" +\d\.\d MB +today  features of \d\d images of photos", first)
    assert first.endswith(" views of 224 px) by efficientnet-lite0") and total.endswith("cache")
    assert name.strip() == features["name"]
    assert main(["cache", "--cache", str(place / "cache"), "--clean", "nothing"]) == 1
    assert main([*held, "--older-than", "1"]) == 0
    assert main([*held, "--clean", features["name"]]) == 0
    assert not (place / "cache" / features["name"]).exists()
    assert main([*held, "--clean", "results"]) == 0
    assert not list((place / "cache" / "results").iterdir())
    assert main(["cache", "--cache", str(tmp_path / "empty")]) == 0
    assert "0.0 MB in" in capsys.readouterr().out


def test_the_end_of_a_training_says_how_many_images_to_check(tmp_path):
    one = CopiedImage("a", 0, "b", 0, exact=True, similarity=1.0)
    run = made_run(folder=tmp_path)
    files.write_json(tmp_path / files.CHECKS, as_json(Checks((one,), 1, doubts_found=2)))
    wanted = "1 test image has a copy in training (1 exact); 2 images look mislabelled"
    assert images_to_check(run) == wanted
    files.write_json(tmp_path / files.CHECKS, as_json(Checks()))
    assert images_to_check(made_run(folder=tmp_path)) == ""


def test_an_unreadable_image_is_named_with_the_flag_that_leaves_it_out(place, tmp_path, capsys):
    photos = shutil.copytree(place / "photos", tmp_path / "photos")
    for name in ("bad.jpg", "worse.jpg"):  # 2 of 32
        (photos / "dark" / name).write_bytes(b"no image")
    words = ["train", "--data", str(photos), "--run", str(tmp_path / "run"), "--workers", "0"]
    assert main([*words, "--steps", "2", "--accelerator", "cpu"]) == 1
    said = capsys.readouterr().err
    assert "2 of 32 images are unreadable" in said and "worse.jpg" in said
    assert "say --skip-corrupt to leave such images out" in said
    assert not (tmp_path / "run").exists()
    shutil.rmtree(photos / "white")  # what is left is not the run's data, and all of it is scored
    for image in read_split(place / "run").test:
        (photos / image.name).unlink(missing_ok=True)
    assert main(["evaluate", str(place / "run"), "--data", str(photos)]) == 1
    said = capsys.readouterr().err
    assert "bad.jpg" in said and "say --skip-corrupt to leave such images out" in said


@pytest.mark.parametrize("split", [False, True])
def test_an_unreadable_image_among_many_is_left_out_and_named(place, tmp_path, capsys, split):
    photos = tmp_path / "photos"
    for part in ("train", "test") if split else (".",):
        shutil.copytree(place / "photos", photos / part, dirs_exist_ok=True)
    bad = ("test/" if split else "") + "dark/bad.jpg"
    (photos / bad).write_bytes(b"no image")
    words = ["train", "--data", str(photos), "--run", str(tmp_path / "run"), "--workers", "0"]
    words += ["--accelerator", "cpu", "--steps", "2"]
    assert main(words) == 0
    assert "skipped 1 unreadable image: cannot read" in capsys.readouterr().out
    run = Run.open(tmp_path / "run")
    assert run.config.data.skip_corrupt and any("bad.jpg" in note for note in run.result.notes)
    assert main(words) == 0
    assert "finished already" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run")]) == 0


def test_the_worst_classes_are_named_also_where_most_is_right():
    found = worst_classes(
        made_run(confusion=((7, 1, 0, 0), (0, 8, 0, 0), (0, 0, 9, 1), (0, 0, 0, 5)))
    )
    assert found == ["cat 88 % of 8", "oak 90 % of 10"]
