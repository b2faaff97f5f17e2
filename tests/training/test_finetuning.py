"""Fine-tuning: the last stages of a frozen trunk learn on from a finished run."""

import contextlib
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from blockout import training
from blockout.commands.cli import main
from blockout.commands.flags import train_flags
from blockout.runs import Run, RunError, TrainConfig
from blockout.runs.documents import Result, Scores, Tuning
from blockout.show.page.summary import _tuned
from blockout.training import Evaluation, OptimisationConfig, evaluate, finetuning

SMALL = [
    "--trunk",
    "efficientnet-lite0",
    "--image-size",
    "64",
    "--steps",
    "20",
    "--nodes",
    "16",
    "--views",
    "2",
]
WORDS = [*SMALL, "--accelerator", "cpu", "--workers", "0", "--no-tensorboard"]


def draw(path: Path, level: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(level, level + 90, (70, 80, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A finished run in `run`, fine-tuned in `run-finetuned`; its photographs in `photos`."""
    place = tmp_path_factory.mktemp("finetuning")
    for name, level in (("dark", 10), ("grey", 40), ("light", 70)):
        for i in range(20):
            draw(place / "photos" / name / f"{i}.png", level, seed=level + i)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKOUT_CACHE_DIR", str(place / "cache"))
        patch.setattr("blockout.training.whole.BATCHES", (1,))
        assert main(train(place)) == 0
        shutil.copytree(place / "run", place / "alone")
        assert main(train(place, "--finetune", "2", "--finetune-epochs", "3")) == 0
    return place


def train(place, *words: str, run: str = "run") -> list[str]:
    where = ["--data", str(place / "photos"), "--run", str(place / run)]
    return ["train", *where, *WORDS, *words]


@pytest.fixture(autouse=True)
def cache(place, monkeypatch):
    monkeypatch.setenv("BLOCKOUT_CACHE_DIR", str(place / "cache"))
    monkeypatch.setattr("blockout.training.whole.BATCHES", (1,))


def tensors(folder: Path, name: str = "final") -> dict[str, torch.Tensor]:
    return load_file(folder / f"{name}.safetensors")


def tuned_weights(place) -> tuple[dict, dict]:
    """Before, and after the last step, whichever was kept."""
    state = torch.load(place / "run-finetuned" / "checkpoint.pt", weights_only=True)
    return tensors(place / "run"), state["engine"]["weights"]


def test_only_the_last_stages_and_the_head_learn(place):
    before, after = tuned_weights(place)
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    of_trunk = {name for name in changed if name.startswith("trunk.")}
    assert of_trunk and all(n.startswith(("trunk.blocks.stage7", "trunk.head")) for n in of_trunk)
    assert not any(".norm." in name for name in of_trunk)
    assert {"head.fc1.weight", "head.classifier.weight"} < changed
    assert not any("logits" in name for name in changed)


def test_one_command_from_nothing_ends_like_two(place):
    assert main(train(place, "--finetune", "2", "--finetune-epochs", "3", run="once")) == 0
    assert same(tensors(place / "once"), tensors(place / "run"))
    assert same(tensors(place / "once-finetuned"), tensors(place / "run-finetuned"))


def test_a_finished_run_is_left_as_it_is(place):
    for path in (place / "alone").iterdir():
        assert path.read_bytes() == (place / "run" / path.name).read_bytes(), path.name


def test_split_and_settings_are_those_of_the_start(place):
    split = (place / "run" / "split.json").read_bytes()
    assert (place / "run-finetuned" / "split.json").read_bytes() == split
    run, start = Run.open(place / "run-finetuned"), Run.open(place / "run")
    assert run.config.before.recipe() == start.config.recipe()
    assert (run.config.epochs, run.config.steps, run.result.steps) == (3, None, 3)
    assert run.result.tuning.stages == ("blocks.stage7", "head")


def test_the_data_is_looked_at_by_the_features_of_the_frozen_trunk(place, monkeypatch):
    """Which are kept: nothing passes through the trunk again."""
    tuned, frozen = (Run.open(place / name) for name in ("run-finetuned", "run"))
    assert tuned.checks.skipped == "" and tuned.checks == frozen.checks
    images = frozen.images()
    start = finetuning.begin(frozen.network().model, frozen.folder, 2)
    monkeypatch.setattr("blockout.training.features.fast_features", None)
    config = replace(frozen.data_config, views=2)
    found = finetuning.as_before(start, frozen.network().model, images, config, print)
    expected = frozen.network().model.features(next(images.test.batches(4, train=False))[0])
    torch.testing.assert_close(found.test.features[:4, 0], expected, atol=1e-3, rtol=1e-3)
    assert found.train.features.shape[:2] == (len(images.train), 2)


def test_where_both_are_right_as_often_but_for_chance_the_loss_is_said_to_decide():
    def told(kept: str, *holdout: tuple[float, float]) -> tuple[str, str]:
        held = tuple(Scores(accuracy=a, top5=100.0, loss=loss) for a, loss in holdout)
        tuning = Tuning("run", ("head",), held, held, kept, chance=3.0)
        result = Result(test=held[0], steps=1, seconds=1.0, tuning=tuning)
        return str(finetuning.Judgement({}, {}, tuning)), _tuned(result)[0]

    line, sentence = told("tuned", (80.0, 0.5), (80.0, 0.4))
    assert line.endswith(
        "Both get equally many of the hold-out right, so the loss decides: the fine-tuned network "
        "is kept"
    )
    assert "both do equally well but for chance; by the loss, the network of after" in sentence
    line, _ = told("tuned", (82.0, 0.5), (80.0, 0.4))
    assert line.endswith(
        "Both differ no more than by chance on the hold-out, so the loss decides: the fine-tuned "
        "network is kept"
    )
    line, sentence = told("start", (80.0, 0.4), (80.0, 0.5))
    assert line.endswith("so the loss decides: the network of run is kept")
    assert "by the loss, the network of before was kept" in sentence
    line, sentence = told("start", (80.0, 0.4), (70.0, 0.5))
    assert line.endswith("By the hold-out, the network of run is kept")
    assert sentence.endswith("; by the hold-out, the network of before was kept.")
    assert "kept" not in told("tuned", (70.0, 0.4), (80.0, 0.5))[1]


def test_stopped_and_continued_it_ends_as_if_never_stopped(place, monkeypatch):
    (place / "killed").mkdir()
    shutil.copytree(place / "run", place / "killed" / "run")
    words = train(place, "--finetune", "2", "--finetune-epochs", "3", run="killed/run")
    with monkeypatch.context() as patch:
        patch.setattr("blockout.commands.train.Drawing.__call__", stop)
        assert main(words) == 1
    assert not (place / "killed" / "run-finetuned" / "result.json").exists()
    assert main(words) == 0
    whole, killed = place / "run-finetuned", place / "killed" / "run-finetuned"
    for name in ("final", "best", "predictions"):
        assert same(tensors(whole, name), tensors(killed, name)), name


def stop(*_) -> None:
    raise RunError("stopped")


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_result_is_what_the_whole_network_does(place, capsys):
    run = Run.open(place / "run-finetuned")
    whole = evaluate(run.network().model, run.images().test)
    assert run.result.test.accuracy == whole.accuracy
    assert run.result.test.loss == pytest.approx(whole.loss, abs=1e-4)
    assert main(["evaluate", str(run.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss"] == pytest.approx(run.result.test.loss, abs=1e-6)


def test_statistics_of_the_head_fit_what_the_tuned_trunk_says(place):
    """Draws change the variance, so what a training step saw does not fit; see `recalibrate`."""
    _, after = tuned_weights(place)
    tuned = Run.open(place / "run").network().model
    tuned.load_state_dict(tensors(place / "run") | after)
    split = Run.open(place / "run").images().train
    inputs = torch.cat([tuned.features(x) for x, _ in split.batches(8, train=False)])
    seen = tuned.head.fc1(inputs).detach()
    norm = tuned.head.norm1
    assert norm.running_var.mean() == pytest.approx(seen.var(0).mean().item(), rel=0.2)


def test_what_does_worse_on_the_hold_out_is_not_kept(place, capsys):
    shutil.copytree(place / "run", place / "bad")
    assert main(train(place, "--finetune", "2", "--finetune-lr", "20", run="bad")) == 0
    said = capsys.readouterr().out
    assert "fine-tuning starts from the finished run in" in said
    assert "the network of bad is kept" in said
    assert "fine-tuning did not help, so this is still it" in said
    assert "finished already" not in said
    tuning = Run.open(place / "bad-finetuned").result.tuning
    assert tuning.kept == "start" and tuning.holdout[1].loss > tuning.holdout[0].loss
    for name in ("final", "best"):
        assert same(tensors(place / "bad-finetuned", name), tensors(place / "run"))
    result, start = (Run.open(place / name).result for name in ("bad-finetuned", "run"))
    assert result.test.loss == pytest.approx(start.test.loss, abs=1e-5)
    assert result.best is None


def test_the_start_stays_ahead_where_fewer_are_right_or_as_many_with_a_higher_loss():
    def scores(accuracy: float, loss: float) -> Evaluation:
        return Evaluation(accuracy, accuracy, loss, torch.empty(0, 1), torch.empty(0, 1))

    start = scores(80.0, 0.5)
    worse = [scores(79.0, 0.1), scores(80.0, 0.6), scores(0.0, math.nan), scores(80.0, math.nan)]
    assert all(finetuning._is_worse(one, start, 0.0) for one in worse)
    better = [start, scores(81.0, 0.9), scores(80.0, 0.4)]
    assert not any(finetuning._is_worse(one, start, 0.0) for one in better)
    assert not finetuning._is_worse(scores(79.0, 0.4), start, 1.0)
    assert finetuning._is_worse(scores(81.0, 0.6), start, 1.0)
    assert not finetuning._is_worse(scores(81.5, 0.6), start, 1.0)


def test_only_images_that_one_of_both_gets_right_say_what_is_chance():
    def classes(*found: int) -> Evaluation:
        return Evaluation(0.0, 0.0, 0.0, torch.tensor(found)[:, None], torch.empty(len(found), 1))

    labels = torch.tensor([0, 1, 2, 3, 4])
    same = classes(0, 1, 9, 9, 9), classes(0, 1, 8, 8, 9)
    assert finetuning._chance(*same, labels) == 0
    assert finetuning._chance(classes(0, 1, 2, 9, 9), classes(9, 9, 2, 3, 4), labels) == 40


def test_images_too_many_to_keep_pass_through_the_trunk_in_every_epoch(place, monkeypatch):
    monkeypatch.setattr(finetuning, "LARGEST", 0)
    shutil.copytree(place / "run", place / "large")
    assert main(train(place, "--finetune", "1", "--finetune-epochs", "1", run="large")) == 0
    path = place / "large-finetuned" / "checkpoint.pt"
    after = torch.load(path, weights_only=True)["engine"]["weights"]
    before = tensors(place / "run")
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert {name for name in changed if name.startswith("trunk.")} == {"trunk.head.conv.weight"}


def test_timing_a_step_leaves_no_trace(place):
    run = Run.open(place / "run")
    model = run.network().model
    finetuning.unfreeze(model, 2)
    model.train()
    assert finetuning.seconds_per_image(model, run.images().train, 8) > 0
    assert all(weight.grad is None for weight in model.parameters())
    assert same(model.state_dict(), tensors(place / "run"))


def test_later_commands_take_the_result(place, tmp_path, capsys):
    folder = str(shutil.copytree(place / "run-finetuned", tmp_path / "run"))
    assert main(["compact", folder, "--json"]) == 0
    assert main(["export", folder, "--format", "pt2", "--out", str(tmp_path / "net.pt2")]) == 0
    assert main(["report", folder, str(place / "run"), "--out", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "16 nodes, fine-tuned" in page and "Before the trunk was fine-tuned" in page
    image = str(place / "photos" / "dark" / "0.png")
    assert main(["predict", folder, image]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--finetune", "--freeze-trunk", "false"], "(efficientnet-lite0) learns from the start"),
        (["--finetune", "9"], "--finetune must be at most 8, got 9"),
        (["--finetune", "-1"], "--finetune must be at least 0, got -1"),
        (["--finetune", "2", "--finetune-lr", "0"], "--finetune-lr must be positive"),
        (["--finetune", "2", "--finetune-epochs", "0"], "--finetune-epochs must be at least 1"),
        (["--finetune", "3", "--finetune-epochs", "3"], "holds another run (finetune was 2 and"),
    ],
)
def test_wrong_use_is_said_in_one_line(place, capsys, words, said):
    with contextlib.suppress(SystemExit):
        assert main(train(place, *words)) != 0
    first, *rest = capsys.readouterr().err.strip().splitlines()
    assert said in first and rest in ([], ["blockout train --help explains the flags"])


def test_a_trunk_of_one_piece_and_your_own_are_refused(place, monkeypatch, capsys):
    config = TrainConfig(optimisation=OptimisationConfig(finetune=1))
    images = Run.open(place / "run").images()
    with pytest.raises(ValueError, match="not for your own"):
        training.train(config, trunk=nn.Identity(), data=images)
    monkeypatch.setattr(finetuning, "build_trunk", lambda *_: nn.Conv2d(3, 4, 3))
    assert main(train(place, "--finetune")) == 1
    assert "has no stages to choose from" in capsys.readouterr().err


def test_the_flag_alone_means_three_stages():
    assert train_flags(["--finetune"])["finetune"] == 3
    assert train_flags(["--finetune", "--seed", "2"])["finetune"] == 3
    assert train_flags(["--finetune", "1"])["finetune"] == 1
    assert train_flags([])["finetune"] == 0
