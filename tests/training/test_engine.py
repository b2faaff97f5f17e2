"""The engine: fits any module to batches, without a folder, Fabric, signals or a word."""

import copy
import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockout import BlockoutLinear, Guidance, Guide
from blockout.layers import memberships_of
from blockout.optimisation import parameter_groups
from blockout.sampling import seed_draws
from blockout.training import Diverged, Engine, Recipe, fit
from blockout.training.engine import mixed_seed, rate_schedule
from blockout.training.processes import Processes


def make_module() -> nn.Sequential:
    torch.manual_seed(0)
    fc2 = BlockoutLinear(6, 12, 3)
    last = BlockoutLinear(12, 3, 3, inputs=fc2.outputs)
    return nn.Sequential(fc2, nn.ReLU(), nn.Dropout(0.2), last).double()


def make_batches(count: int = 4, size: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Three classes, each with two features of its own that are larger."""
    chance = torch.Generator().manual_seed(1)
    y = torch.arange(count * size) % 3
    x = torch.randn(len(y), 6, generator=chance, dtype=torch.float64)
    x += 2 * F.one_hot(y, 3).repeat(1, 2)
    return list(zip(x.split(size), y.split(size), strict=True))


def accuracy(module: nn.Module) -> float:
    x, y = (torch.cat(parts) for parts in zip(*make_batches(), strict=True))
    return (module(x).argmax(1) == y).double().mean().item()


def test_fitting_learns_and_leaves_no_trace_outside_the_module(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    net, handlers = make_module(), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    state = torch.random.get_rng_state()
    losses = fit(net, make_batches(), steps=200, lr=0.1, membership_scale=30.0)
    assert accuracy(net) > 0.9
    assert sum(losses[-4:]) < sum(losses[:4]) / 2
    assert not net.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert capsys.readouterr() == ("", "")
    assert not any(Path(tmp_path).iterdir())


def test_importing_the_engine_does_not_import_lightning():
    script = "import sys, blockout.training.engine; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_step_is_algorithm_1_written_plainly():
    net, twin = make_module(), make_module()
    fit(net, make_batches(), steps=4, lr=0.05, weight_decay=1e-3, label_smoothing=0.1, seed=7)
    groups = parameter_groups(twin, 0.05, 1e-3)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    for step, (x, y) in enumerate(make_batches()):
        torch.manual_seed(mixed_seed(7, step, 0, 0))
        seed_draws(twin, mixed_seed(7, step, 0, 1 << 32))
        optimizer.zero_grad()
        F.cross_entropy(twin(x), y, label_smoothing=0.1).backward()
        for group, peak in zip(optimizer.param_groups, groups, strict=True):
            peak.setdefault("peak", peak["lr"])
            group["lr"] = peak["peak"] * [0.04, 1.0, 0.75, 0.25][step]
        optimizer.step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-9, atol=1e-12)


def test_a_moving_average_ends_drawing_where_the_network_does():
    nets = []
    for ema in (0.0, 1e-9):  # such an average is the last weights
        torch.manual_seed(0)
        net = make_module()
        guidance = Guidance(draw_on=0.4, steady=False, affinity=False)
        fit(net, make_batches(), steps=12, lr=0.05, guide=guidance, seed=7, ema=ema)
        nets.append(net)
    p = [m.probabilities for m in memberships_of(nets[1]).values()]
    assert all(set(values.unique().tolist()) <= {0.0, 1.0} for values in p)
    x = make_batches()[0][0]
    ours, averaged = (net(x) for net in nets)
    torch.testing.assert_close(averaged, ours, rtol=0.2, atol=0.2)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 9, 10, 40])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("decay", ["cosine", "exponential"])
def test_the_rate_rises_to_its_peak_and_falls_but_the_last_step_still_learns(steps, warmup, decay):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule, rates = rate_schedule(optimizer, steps, warmup, decay), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    rise = max(warmup * steps, 1.0)
    assert rates[0] == pytest.approx(0.08)
    assert all(rate > 0 for rate in rates)
    assert max(rates) <= 2.0
    before = [rate for step, rate in enumerate(rates) if step <= rise]
    after = [rate for step, rate in enumerate(rates) if step >= rise]
    assert before == sorted(before)
    assert after == sorted(after, reverse=True)


@pytest.mark.parametrize(("steps", "warmup", "peak"), [(4, 0.0, 1), (10, 0.2, 2), (40, 0.5, 20)])
def test_the_peak_comes_after_the_warmup(steps, warmup, peak):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = rate_schedule(optimizer, steps, warmup)
    for _ in range(peak):
        assert optimizer.param_groups[0]["lr"] < 1.99
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2.0)


def test_an_exponential_decay_takes_the_same_factor_in_every_step():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule, rates = rate_schedule(optimizer, 50, 0.2, "exponential"), []
    for _ in range(50):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[10] == pytest.approx(2.0)
    factors = [b / a for a, b in itertools.pairwise(rates[10:])]
    assert factors == pytest.approx([1e-3 ** (1 / 40)] * 39)


@pytest.mark.parametrize(("clip", "norm"), [(1e-3, 1e-3), (0.0, None), (1e3, None)])
def test_a_step_goes_no_farther_than_the_clipped_gradient(clip, norm):
    torch.manual_seed(0)
    net = nn.Linear(12, 4)
    x, y = torch.randn(16, 12), torch.arange(16) % 4
    gradients = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
    whole = float(torch.cat([g.flatten() for g in gradients]).norm())
    before = [p.detach().clone() for p in net.parameters()]
    engine = Engine(net, Recipe(10, 0.5, clip=clip))
    engine.step(x, y)
    after = [p.detach() for p in net.parameters()]
    moved = torch.cat([(p - q).flatten() for p, q in zip(after, before, strict=True)]).norm()
    # The first step of Nesterov momentum 0.9 is 1.9 times the rate, which is a 25th of its peak.
    assert float(moved) == pytest.approx(0.5 / 25 * 1.9 * (norm or whole), rel=1e-3)


def take(engine: Engine, first: int, last: int) -> list[float]:
    engine.train()
    batches = make_batches()
    return [engine.step(*batches[step % 4]).loss for step in range(first, last)]


@pytest.mark.parametrize(("stop", "decay"), [(1, "cosine"), (5, "exponential"), (11, "cosine")])
def test_an_engine_continues_from_its_state_to_the_bit(tmp_path, stop, decay):
    recipe = Recipe(12, 0.1, membership_scale=30.0, ema=0.9, seed=3, decay=decay)

    def engine() -> Engine:
        return Engine(make_module(), recipe, guide=lambda module: Guide(module, 12))

    whole = engine()
    losses = take(whole, 0, 12)
    first = engine()
    assert take(first, 0, stop) == losses[:stop]
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = engine()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.done == stop
    assert second.rate == first.rate
    assert take(second, stop, 12) == losses[stop:]
    for kind in ("module", "result"):
        expected = getattr(whole, kind).state_dict()
        for name, value in getattr(second, kind).state_dict().items():
            assert torch.equal(value, expected[name]), name


def test_guided_memberships_settle_and_the_guide_lets_go_of_the_module():
    net = make_module()
    fit(net, make_batches(), steps=40, lr=0.05, guide=Guidance())
    assert set(net[3].outputs.probabilities.unique().tolist()) == {0.0, 1.0}
    assert not net[3]._forward_hooks
    with pytest.raises(ValueError, match="nothing to guide"):
        fit(nn.Linear(6, 3).double(), make_batches(), steps=1, guide=Guidance())
    net = make_module()
    with pytest.raises(ValueError, match="no batches in epoch 0"):
        fit(net, [], steps=40, guide=Guidance())
    assert not net[3]._forward_hooks, "also when fitting fails"


def test_with_a_moving_average_the_module_ends_with_the_averaged_weights():
    plain, averaged = make_module(), make_module()
    fit(plain, make_batches(), steps=1, lr=0.1)
    fit(averaged, make_batches(), steps=1, lr=0.1, ema=0.5)
    first = plain[0].weight.clone()
    assert torch.equal(averaged[0].weight, first), "the average starts after the first step"
    recipe, again = Recipe(2, 0.1, ema=0.5), make_module()
    engine = Engine(again, recipe)
    take(engine, 0, 1)
    one = again[0].weight.detach().clone()
    take(engine, 1, 2)
    expected = (one + again[0].weight.detach()) / 2
    torch.testing.assert_close(engine.result[0].weight.detach(), expected)
    fitted = make_module()
    fit(fitted, make_batches(), steps=2, lr=0.1, ema=0.5)
    torch.testing.assert_close(fitted[0].weight.detach(), expected)


def test_parts_of_a_batch_and_class_weights_add_up():
    weights = torch.tensor([2.0, 0.5, 0.5], dtype=torch.float32)
    losses = []
    for parts in (1, 3):
        net = make_module()
        net[2] = nn.Identity()  # dropout differs between parts
        losses.append(fit(net, make_batches(), steps=8, accumulate=parts, class_weights=weights))
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    net = make_module()
    net[2] = nn.Identity()
    seed_draws(net, mixed_seed(0, 0, 0, 1 << 32))
    x, y = make_batches()[0]
    each = F.cross_entropy(net(x), y, reduction="none") * weights.double()[y]
    assert losses[0][0] == pytest.approx(each.mean().item(), rel=1e-12)


def test_batches_may_follow_from_the_epoch_but_must_not_run_out():
    epochs = []

    def batches(epoch: int):
        epochs.append(epoch)
        return make_batches(3)

    assert len(fit(make_module(), batches, steps=7)) == 7
    assert epochs == [0, 1, 2]
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*make_batches(1)[0]), batch_size=5, shuffle=True
    )
    first, again = (fit(make_module(), loader, steps=7) for _ in range(2))
    assert first == again
    with pytest.raises(ValueError, match="no batches in epoch 1; pass something that can be iter"):
        fit(make_module(), iter(make_batches()), steps=7)


def test_numbers_that_are_not_finite_stop_before_they_spoil_the_weights():
    net = nn.Linear(6, 3).double()
    before = copy.deepcopy(net.state_dict())
    x, y = make_batches()[0]
    with pytest.raises(Diverged, match=r"the loss is nan at step 0 \(learning rate 0.04\); try a"):
        fit(net, [(x * float("nan"), y)], steps=3, lr=1.0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    net = make_module()
    net[0].outputs.logits.data[0, 0] = float("inf")
    with pytest.raises(Diverged, match=r"the logits of P_1 are not finite at step 0"):
        fit(net, make_batches(), steps=3)


def test_a_recipe_names_what_is_wrong():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Recipe(0)
    with pytest.raises(ValueError, match="ema must be at least 0 and below 1, got 1"):
        Recipe(5, ema=1.0)


class Echo(Processes):
    """Two processes, of which the other one says and sees the same: means are as they were."""

    rank, world = 1, 2


@pytest.mark.parametrize("own_draws", [False, True])
def test_chance_is_a_function_of_seed_step_and_process(own_draws):
    def drawn(processes) -> torch.Tensor:
        net = make_module()
        engine = Engine(net, Recipe(4, 0.1, own_draws=own_draws), processes=processes)
        take(engine, 0, 1)
        return net[0].outputs.drawn

    assert torch.equal(drawn(None), drawn(Echo())) != own_draws


def test_processes_tell_each_other_what_they_want_after_the_backward_pass():
    net, told = make_module(), []
    net.register_full_backward_hook(lambda *_: told.append("backward"))
    engine = Engine(net, Recipe(4, 0.1), processes=Echo())

    def tell() -> list[float]:
        return [float(len(told)), 5.0]

    x, y = make_batches()[0]
    step = engine.step(x.requires_grad_(), y, tell=tell)
    assert step.told == (1.0, 5.0)
    assert step.examples == 2 * len(y)
