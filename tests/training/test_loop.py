"""The loop: what a step computes, what a run leaves behind, and how it stops."""

import dataclasses
import json
import os
import signal
import warnings

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from blockout.models import ModelConfig
from blockout.optimisation import parameter_groups
from blockout.runs.lock import held
from blockout.sampling import seed_draws
from blockout.training import (
    ComputeConfig,
    Guidance,
    Interrupted,
    Run,
    RunError,
    TrainConfig,
    recalibrate,
    train,
)
from blockout.training.assembly import make_guide, require_divisible
from blockout.training.engine import mixed_seed

from .conftest import make_config, make_images, make_net

EXACT = ComputeConfig("cpu", "1", precision="64-true")


def metrics(folder, name="loss"):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def final(folder):
    return load_file(folder / "final.safetensors")


def test_steps_are_algorithm_1_written_plainly(tmp_path, images):
    config = make_config(tmp_path, steps=4, compute=EXACT, weight_decay=1e-3, label_smoothing=0.1)
    train(config, model=make_net(), data=images)
    net = make_net().double()
    groups = parameter_groups(net, 0.05, 1e-3, membership_scale=30.0)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    peaks, losses = [group["lr"] for group in groups], []
    # One cycle over 4 steps with warm-up 0.2: up in 0.8 steps (here one), then down a cosine.
    factors = [0.04, 1.0, 0.75, 0.25]
    for step, (x, y) in zip(range(4), images.train.batches(16, train=True, seed=0), strict=False):
        seed_draws(net, mixed_seed(0, step, 0, 1 << 32))
        loss = F.cross_entropy(net(x.double()), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factors[step]
        optimizer.step()
        losses.append(loss.item())
    assert metrics(tmp_path) == pytest.approx(losses, rel=1e-12)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(final(tmp_path)[name], value, rtol=1e-9, atol=1e-12)


def test_parts_of_a_batch_add_up_to_the_batch(tmp_path, images):
    train(make_config(tmp_path / "one", compute=EXACT), model=make_net(), data=images)
    parts = make_config(tmp_path / "four", compute=EXACT, accumulate=4)
    train(parts, model=make_net(), data=images)
    assert metrics(tmp_path / "four") == pytest.approx(metrics(tmp_path / "one"), rel=1e-12)


def test_class_weights_weigh_images_and_parts_still_add_up(tmp_path, images):
    weighed = dataclasses.replace(images, class_weights=torch.tensor([2.0, 1.0, 0.5, 0.5]))
    for parts in (1, 2):
        config = make_config(tmp_path / str(parts), compute=EXACT, accumulate=parts, steps=3)
        train(config, model=make_net(), data=weighed)
    one, two = metrics(tmp_path / "1"), metrics(tmp_path / "2")
    assert two == pytest.approx(one, rel=1e-12)
    net = make_net().double()
    seed_draws(net, mixed_seed(0, 0, 0, 1 << 32))
    x, y = next(images.train.batches(16, train=True, seed=0))
    each = F.cross_entropy(net(x.double()), y, reduction="none")
    expected = (each * weighed.class_weights[y]).sum() / 16
    assert one[0] == pytest.approx(expected.item(), rel=1e-9)


def test_the_moving_average_is_evaluated_and_saved(tmp_path, images):
    train(make_config(tmp_path / "a", steps=1, ema=0.9), model=make_net(), data=images)
    first = final(tmp_path / "a")
    # The average begins as a copy of the weights after the first step.
    train(make_config(tmp_path / "b", steps=1), model=make_net(), data=images)
    assert all(torch.equal(first[name], value) for name, value in final(tmp_path / "b").items())
    train(make_config(tmp_path / "c", steps=20, ema=0.9), model=make_net(), data=images)
    train(make_config(tmp_path / "d", steps=20), model=make_net(), data=images)
    name = "head.2.weight"
    assert not torch.equal(final(tmp_path / "c")[name], final(tmp_path / "d")[name])
    state = torch.load(tmp_path / "c" / "checkpoint.pt", weights_only=True)
    assert torch.equal(state["engine"]["averaged"][f"module.{name}"], final(tmp_path / "c")[name])
    assert torch.equal(state["engine"]["weights"][name], final(tmp_path / "d")[name])


def test_training_leaves_random_numbers_and_warnings_as_they_were(tmp_path, images, net):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    filters = list(warnings.filters)
    train(make_config(tmp_path, steps=2), model=net, data=images)
    assert torch.equal(torch.rand(3), expected)
    assert warnings.filters == filters
    assert torch.get_default_dtype() == torch.float32


def test_a_run_folder_holds_all_that_was_promised(tmp_path, images):
    model = ModelConfig(width=0.1, nodes=16, clusters=3)
    config = dataclasses.replace(make_config(tmp_path / "run", tensorboard=True), model=model)
    folder = train(config, data=make_images(size=28))
    found = {path.name for path in folder.iterdir()}
    assert found == {
        ".lock",
        "digests.txt",
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "memberships.jsonl",
        "checkpoint.pt",
        "final.safetensors",
        "best.safetensors",
        "memberships.safetensors",
        "model.json",
        "predictions.safetensors",
        "thumbnails.png",
        "checks.json",
        "result.json",
        "split.json",
        "tensorboard",
    }
    assert any((folder / "tensorboard").iterdir())
    assert json.loads((folder / "config.json").read_text())["nodes"] == 16
    trained = Run.open(folder).network()
    p = load_file(folder / "memberships.safetensors")
    for name, memberships in trained.model.memberships().items():
        assert torch.equal(p[name], memberships.probabilities.detach())
    lines = (folder / "memberships.jsonl").read_text().splitlines()
    histogram = json.loads(lines[-1])["P_1"]["histogram"]
    assert len(lines) == 20 and sum(histogram) == 16 * 3
    with torch.no_grad():
        x = next(make_images(size=28).test.batches(21, train=False))[0]
        probabilities, classes = trained.model(x).softmax(1).sort(descending=True)
    predictions = load_file(folder / "predictions.safetensors")
    torch.testing.assert_close(predictions["probabilities"], probabilities)
    assert torch.equal(predictions["classes"], classes)
    result = json.loads((folder / "result.json").read_text())
    right = (classes[:, 0] == images.test.labels).double().mean().item()
    assert result["test"]["accuracy"] == pytest.approx(100 * right)


def test_a_finished_run_is_not_trained_again_and_restart_begins_anew(tmp_path, images):
    config = make_config(tmp_path, steps=2)
    train(config, model=make_net(), data=images)
    before = (tmp_path / "final.safetensors").stat().st_mtime_ns
    train(config, model=nn.Identity(), data=images)
    assert (tmp_path / "final.safetensors").stat().st_mtime_ns == before
    (tmp_path / "note.txt").write_text("mine")
    anew = make_config(tmp_path, steps=3, restart=True)
    train(anew, model=make_net(), data=images)
    assert metrics(tmp_path, "lr") and len(metrics(tmp_path)) == 3
    assert (tmp_path / "note.txt").read_text() == "mine"
    assert json.loads((tmp_path / "config.json").read_text())["restart"] is False


def test_another_config_in_the_same_folder_is_refused_and_nothing_changes(tmp_path, images):
    train(make_config(tmp_path, steps=2), model=make_net(), data=images)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunError, match=r"steps was 2 and is 3.*--run.*--restart"):
        train(make_config(tmp_path, steps=3), model=make_net(), data=images)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_loss_that_is_no_number_stops_with_step_rate_and_advice(tmp_path, images):
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
    with pytest.raises(RunError, match=r"loss is .* at step \d+ \(learning rate .*lower --lr"):
        train(make_config(tmp_path, lr=1e37), model=net, data=images)
    assert not (tmp_path / "result.json").exists()


def test_memberships_that_have_run_away_stop_with_step_rate_and_advice(tmp_path, images, net):
    with torch.no_grad():
        net.head[0].outputs.logits[0, 0] = float("inf")
    with pytest.raises(RunError, match=r"logits of P_1 are not finite at step 0 .*lower --lr"):
        train(make_config(tmp_path), model=net, data=images)


def test_a_damaged_checkpoint_is_refused_with_what_to_do(tmp_path, images):
    train(make_config(tmp_path, steps=2), model=make_net(), data=images)
    (tmp_path / "result.json").unlink()
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(RunError, match=r"checkpoint.pt is damaged.*--restart"):
        train(make_config(tmp_path, steps=2), model=make_net(), data=images)


def test_a_guide_that_waits_with_p_at_one_is_not_warned_of(tmp_path, images):
    train(make_config(tmp_path, steps=10, paper=False), model=make_net(), data=images)
    assert "near one" not in (tmp_path / "metrics.jsonl").read_text()


def test_a_guide_that_gave_up_is_a_warning_of_the_run(tmp_path, images, capsys):
    folder = train(make_config(tmp_path, steps=10, paper=False), model=make_net(), data=images)
    run = Run.open(folder)
    (warning,) = [w.warning for w in run.warnings if w.warning.startswith("the guide left the net")]
    assert capsys.readouterr().out.count(warning) == 1 and "train longer" in warning
    assert run.whole and "left whole" in run.result.warnings


def test_a_mistake_of_ours_is_not_called_damage(tmp_path, images, monkeypatch):
    train(make_config(tmp_path, steps=2), model=make_net(), data=images)
    (tmp_path / "result.json").unlink()

    def mistake(engine, state):
        raise AttributeError("ours")

    monkeypatch.setattr("blockout.training.engine.Engine.load_state_dict", mistake)
    with pytest.raises(AttributeError, match="ours"):
        train(make_config(tmp_path, steps=2), model=make_net(), data=images)


def test_a_checkpoint_of_before_continues(tmp_path, images):
    """Its identity counted steps that are whole epochs, and called a hub model by its last name."""
    with pytest.raises(Interrupted):
        train(make_config(tmp_path), model=interrupted_net(), data=images)
    path = tmp_path / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    assert state["identity"]["steps"] is None and state["identity"]["epochs"] == 4
    state["format"] = 4
    state["identity"] |= {"steps": 20, "epochs": None, "trunk": "another"}
    torch.save(state, path)
    (tmp_path / "digests.txt").unlink()
    train(make_config(tmp_path), model=make_net(), data=images)
    assert (tmp_path / "result.json").exists()


def flip_one_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_one_flipped_bit_in_the_checkpoint_stops_a_run_that_continues(tmp_path, images):
    """Without a digest torch.load reads it and the run ends with other weights."""
    with pytest.raises(Interrupted):
        train(make_config(tmp_path), model=interrupted_net(), data=images)
    flip_one_bit(tmp_path / "checkpoint.pt")
    with pytest.raises(RunError, match=r"checkpoint.pt is damaged: it is not as the run wrote it"):
        train(make_config(tmp_path), model=make_net(), data=images)
    train(make_config(tmp_path, restart=True), model=make_net(), data=images)


@pytest.mark.parametrize("name", ["metrics.jsonl", "memberships.jsonl"])
def test_a_run_does_not_continue_past_a_damaged_line_and_erases_nothing(tmp_path, images, name):
    with pytest.raises(Interrupted):
        train(make_config(tmp_path), model=interrupted_net(step=7), data=images)
    path = tmp_path / name
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], b"x" + lines[2][1:], *lines[3:]])
    for content, complaint in (
        (damaged, "is damaged at line 3"),
        (b"".join(lines[:2] + lines[3:]), "is damaged: it is not as the run wrote it"),
    ):
        path.write_bytes(content)
        with pytest.raises(RunError, match=f"{name} {complaint}"):
            train(make_config(tmp_path), model=make_net(), data=images)
        assert path.read_bytes() == content
    (tmp_path / "digests.txt").unlink()
    with pytest.raises(RunError, match=rf"{name} has {len(lines) - 1} of the {len(lines)} entries"):
        train(make_config(tmp_path), model=make_net(), data=images)
    assert path.read_bytes() == content


def test_a_lost_checkpoint_is_not_taken_for_a_run_that_has_just_begun(tmp_path, images):
    with pytest.raises(Interrupted):
        train(make_config(tmp_path), model=interrupted_net(step=7), data=images)
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(RunError, match=r"checkpoint.pt is missing.*--restart"):
        train(make_config(tmp_path), model=make_net(), data=images)


def test_a_run_does_not_end_with_best_weights_that_are_damaged_or_lost(tmp_path, images):
    """Where no later weights are better, the file stays as it is; a lost one became the last."""
    with pytest.raises(Interrupted):
        train(make_config(tmp_path), model=interrupted_net(step=7), data=images)
    flip_one_bit(tmp_path / "best.safetensors")
    with pytest.raises(RunError, match=r"best.safetensors is damaged.*--restart"):
        train(make_config(tmp_path), model=make_net(), data=images)
    (tmp_path / "best.safetensors").unlink()
    with pytest.raises(RunError, match=r"best.safetensors is missing.*--restart"):
        train(make_config(tmp_path), model=make_net(), data=images)


def test_a_run_of_before_without_digests_and_counts_continues(tmp_path, images, capsys):
    train(make_config(tmp_path / "whole"), model=make_net(), data=images)
    with pytest.raises(Interrupted):
        train(make_config(tmp_path / "old"), model=interrupted_net(step=7), data=images)
    (tmp_path / "old" / "digests.txt").unlink()
    state = torch.load(tmp_path / "old" / "checkpoint.pt", weights_only=True)
    del state["tally"]["logged"]
    torch.save(state, tmp_path / "old" / "checkpoint.pt")
    capsys.readouterr()
    train(make_config(tmp_path / "old"), model=make_net(), data=images)
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("note: damage to best.safetensors, checkpoint.pt")
    assert metrics(tmp_path / "old") == metrics(tmp_path / "whole")
    old, whole = final(tmp_path / "old"), final(tmp_path / "whole")
    assert all(torch.equal(old[name], whole[name]) for name in whole)


def test_a_folder_in_which_another_training_works_is_refused(tmp_path, images):
    train(make_config(tmp_path, steps=2), model=make_net(), data=images)
    with held(tmp_path, "training"):
        for values in ({}, {"restart": True, "seed": 5}):
            with pytest.raises(RunError, match=f"in use by process {os.getpid()}, training since"):
                train(make_config(tmp_path, steps=2, **values), model=make_net(), data=images)
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 0


def test_a_training_holds_its_folder_until_it_ends(tmp_path, images):
    def try_to_train(folder):
        tried.append(folder)
        with pytest.raises(RunError, match="in use by process"):
            train(make_config(folder, restart=True), model=make_net(), data=images)

    tried: list = []
    train(make_config(tmp_path), model=make_net(), data=images, after_save=try_to_train)
    assert tried == [tmp_path] * 4
    train(make_config(tmp_path, restart=True), model=make_net(), data=images)


def test_a_run_starts_from_an_earlier_one(tmp_path, images, capsys):
    train(make_config(tmp_path / "a", steps=5), model=make_net(), data=images)
    later = make_config(tmp_path / "b", steps=1, lr=1e-30, init_from=tmp_path / "a")
    torch.manual_seed(9)
    train(later, model=type(make_net())(), data=images)
    assert all(torch.equal(final(tmp_path / "a")[k], v) for k, v in final(tmp_path / "b").items())
    assert "tensors taken from" in capsys.readouterr().out
    with pytest.raises(RunError, match=r"--init-from .*nowhere holds no final"):
        train(
            make_config(tmp_path / "c", init_from=tmp_path / "nowhere"),
            model=make_net(),
            data=images,
        )


def test_a_trunk_of_ones_own_is_trained_under_the_configured_head_and_reloads(tmp_path, images):
    def trunk() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU())

    config = dataclasses.replace(
        make_config(tmp_path, steps=3), model=ModelConfig(nodes=16, clusters=3)
    )
    train(config, trunk=trunk(), data=images)
    trained = Run.open(tmp_path).network(trunk=trunk())
    x = next(images.test.batches(21, train=False))[0]
    top = trained.model(x).softmax(1).max(1).values
    predictions = load_file(tmp_path / "predictions.safetensors")
    torch.testing.assert_close(predictions["probabilities"][:, 0], top.detach())
    with pytest.raises(RunError, match="custom trunk"):
        Run.open(tmp_path).network()


def test_collapses_are_said_while_they_happen(tmp_path, images, capsys):
    net = make_net()
    with torch.no_grad():
        net.head[2].outputs.logits.fill_(-9.0)
    train(make_config(tmp_path, steps=5, lr=1e-6), model=net, data=images)
    said = capsys.readouterr().out
    assert "4 of 4 classes belong to no cluster (red, green, blue, ...)" in said
    assert said.index("warning:") < said.index("epoch 1"), "while it happens"
    warned = metrics(tmp_path, "warning")
    assert any("--membership-scale" in text for text in warned)


def test_a_run_does_not_continue_on_other_images(tmp_path, images):
    with pytest.raises(Interrupted):
        train(make_config(tmp_path), model=interrupted_net(), data=images)
    other = dataclasses.replace(images, train=make_images(84).train)
    with pytest.raises(RunError, match=r"another config \(images changed\)"):
        train(make_config(tmp_path), model=make_net(), data=other)


def interrupted_net(step=1):
    """Asks for a stop in this training step."""
    net, steps = make_net(), []

    def interrupt(module, _inputs):
        steps.extend([1] * module.training)
        if module.training and len(steps) == step:
            os.kill(os.getpid(), signal.SIGINT)

    net.register_forward_pre_hook(interrupt)
    return net


def test_a_model_whose_last_blockout_layer_gives_no_classes_is_guided_and_finishes(
    tmp_path, images
):
    grouped = dataclasses.replace(images, groups=(0, 1, 0, 1), group_names=("even", "odd"))
    net = make_net()
    net.head[2] = nn.Linear(16, 4)
    train(make_config(tmp_path, paper=False), model=net, data=grouped)
    assert json.loads((tmp_path / "result.json").read_text())["groups"] is None
    assert set(load_file(tmp_path / "memberships.safetensors")["P_1"].unique().tolist()) == {0, 1}


def test_a_parameter_that_gets_no_gradient_does_not_hinder_continuing(tmp_path, images):
    def idle(net):
        net.unused = nn.Parameter(torch.ones(3))
        return net

    with pytest.raises(Interrupted):
        train(make_config(tmp_path), model=idle(interrupted_net()), data=images)
    train(make_config(tmp_path), model=idle(make_net()), data=images)
    assert torch.equal(final(tmp_path)["unused"], torch.ones(3))


def test_memberships_of_an_earlier_run_that_are_settled_learn_again(tmp_path, images, capsys):
    train(make_config(tmp_path / "a", paper=False), model=make_net(), data=images)
    later = make_config(tmp_path / "b", steps=4, init_from=tmp_path / "a")
    train(later, model=make_net(), data=images)
    assert "3 sets of memberships that were settled learn again" in capsys.readouterr().out
    p = load_file(tmp_path / "b" / "memberships.safetensors")["P_1"]
    assert ((p > 0.001) & (p < 0.999)).all() and p.unique().numel() > 2


def test_guided_memberships_settle_also_in_the_moving_average(tmp_path, images, capsys):
    grouped = dataclasses.replace(images, groups=(0, 1, 0, 1), group_names=("even", "odd"))
    for ema in (0.0, 0.99):
        folder = tmp_path / str(ema)
        config = make_config(folder, paper=False, ema=ema, affinity_from="groups")
        train(config, model=make_net(), data=grouped)
        said = capsys.readouterr().out
        assert "step 9: the guide narrowed from step 3 to step 9 of 20: 4 classes in" in said
        found = load_file(folder / "memberships.safetensors")
        assert set(torch.cat([p.flatten() for p in found.values()]).tolist()) == {0.0, 1.0}
        assert (found["P_2"].sum(1) >= 1).all()


def test_the_guide_hears_the_holdout_after_every_epoch_and_what_it_does_is_said(
    tmp_path, images, capsys, monkeypatch
):
    monkeypatch.setattr("blockout.guidance.cost.CHANCE", -100.0)  # any accuracy is a loss
    grouped = dataclasses.replace(images, groups=(0, 1, 0, 1), group_names=("even", "odd"))
    config = make_config(tmp_path, paper=False, affinity_from="groups", steps=40)
    train(config, model=make_net(), data=grouped)  # narrows from step 6 to 18
    said = [line for line in capsys.readouterr().out.splitlines() if "so from step" in line]
    wide, _, _, narrow, *_ = metrics(tmp_path, "holdout_accuracy")
    assert said[0].startswith("step 20: the guide narrows from step 6 to step 32 of 40")
    assert f"narrowing cost {wide - narrow:.1f} points on the hold-out" in said[0]
    assert "from step 20 on hidden nodes got up to 3 clusters on average" in said[0]


def test_affinity_from_groups_follows_the_data_and_needs_them(tmp_path, images):
    grouped = dataclasses.replace(images, groups=(0, 1, 0, 1), group_names=("even", "odd"))
    config = make_config(tmp_path / "a", paper=False, affinity_from="groups", steps=60)
    config = dataclasses.replace(config, guidance=Guidance(class_budget=1))
    train(config, model=make_net(), data=grouped)
    p = load_file(tmp_path / "a" / "memberships.safetensors")["P_2"]
    shared = p @ p.T
    assert shared[0, 2] and shared[1, 3] and not shared[0, 1] and not shared[2, 3]
    with pytest.raises(ValueError, match="--affinity-from groups: noise has no groups of classes"):
        train(
            make_config(tmp_path / "b", paper=False, affinity_from="groups"),
            model=make_net(),
            data=images,
        )


def test_guidance_and_sharded_memberships_exclude_each_other():
    config = TrainConfig(compute=ComputeConfig(strategy="fsdp2"))
    with pytest.raises(ValueError, match="say --paper"):
        make_guide(config, make_net(), make_images(), 10)


def test_recalibrated_statistics_are_those_of_the_expected_weights(images):
    net = nn.Sequential(make_net(), nn.BatchNorm1d(4))
    net(next(images.train.batches(80, train=True))[0])
    modes = [module.training for module in net.modules()]
    assert recalibrate(net, images.train, batch_size=16)
    assert [module.training for module in net.modules()] == modes
    means, variances = [], []
    for x, _ in images.train.batches(16, train=True, seed=0):
        y = net[0].eval()(x).detach().double()
        means.append(y.mean(0))
        variances.append(y.var(0))
    torch.testing.assert_close(net[1].running_mean.double(), torch.stack(means).mean(0))
    torch.testing.assert_close(net[1].running_var.double(), torch.stack(variances).mean(0))
    assert net[1].momentum == 0.1


def test_a_batch_that_cannot_be_dealt_out_names_the_flags():
    with pytest.raises(ValueError, match=r"--batch-size must be a multiple .* = 3, got 16"):
        require_divisible(16, 3)


def test_short_trainings_are_logged_more_often(tmp_path, images):
    folder = train(make_config(tmp_path / "run", steps=90, log_every=None), data=images)
    said = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in said if "loss" in line][:3] == [2, 4, 6]


def test_many_short_epochs_are_evaluated_a_few_at_a_time(tmp_path, images, monkeypatch):
    """Four epochs in two rounds; a stop where nothing is evaluated loses nothing."""
    monkeypatch.setattr("blockout.training.recording.MOST_ROUNDS", 2)
    train(make_config(tmp_path / "whole"), model=make_net(), data=images)
    assert metrics(tmp_path / "whole", "epoch_loss") == [
        pytest.approx(sum(metrics(tmp_path / "whole")[first : first + 10]) / 10)
        for first in (0, 10)
    ]
    with pytest.raises(Interrupted):
        train(make_config(tmp_path / "two"), model=interrupted_net(5), data=images)
    assert (tmp_path / "two" / "checkpoint.pt").exists()
    train(make_config(tmp_path / "two"), model=make_net(), data=images)
    assert metrics(tmp_path / "two", "epoch_loss") == metrics(tmp_path / "whole", "epoch_loss")
    for name, value in final(tmp_path / "whole").items():
        assert torch.equal(final(tmp_path / "two")[name], value), name
