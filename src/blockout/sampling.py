"""Draws under control: seeded for several processes, and averaged for predictions with a spread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from blockout.layers import DropConnectLinear, memberships_of
from blockout.memberships import Memberships


def seed_draws(model: nn.Module, seed: int) -> None:
    """Gives every ``Memberships`` of the model a generator of its own, seeded from ``seed``.

    Draws then no longer depend on what else consumes random numbers, nor on the device (DropConnect
    masks still do: they follow torch's default generator, as Dropout's). With
    several processes this is the choice to make, once, after building the model:

    - ``seed_draws(model, seed)`` with one seed everywhere: all processes train the same drawn
      architecture in a step, and gradients are those of one process with the joined batch.
    - ``seed_draws(model, seed + rank)``: each process draws its own, and a step averages the
      gradients of as many architectures as there are processes.

    ``torch.compile(fullgraph=True)`` takes torch's default generator only; there seed all processes
    alike with ``torch.manual_seed`` instead, for equal draws.
    """
    root = torch.Generator().manual_seed(seed)
    for memberships in _memberships(model):
        own_seed = int(torch.randint(2**63 - 1, (), generator=root))
        memberships.generator = torch.Generator().manual_seed(own_seed)


class SampledPrediction(NamedTuple):
    """What a model says on average over drawn architectures, and how much they differ."""

    mean: Float[Tensor, "*shape"]
    spread: Float[Tensor, "*shape"]
    """Standard deviation over draws (unbiased)."""


@torch.no_grad()
def sample_predictions(
    model: nn.Module,
    *inputs: Tensor,
    draws: int = 32,
    transform: Callable[[Tensor], Tensor] | None = None,
) -> SampledPrediction:
    """Mean and spread of the outputs over ``draws`` sampled architectures.

    The explicit average that Eq. 5 approximates by one forward with expected weights. Everything
    but the draws (batch normalisation, Dropout) is in eval mode, and the model is left as it was,
    generators of its own included.

    Args:
        inputs: what the model takes.
        draws: number of architectures, at least 2.
        transform: applied to each output before averaging, for example a softmax.

    >>> from blockout import BlockoutLinear
    >>> net = BlockoutLinear(8, 3, clusters=2)
    >>> mean, spread = sample_predictions(net, torch.randn(4, 8), transform=lambda y: y.softmax(-1))
    >>> mean.shape, bool((spread > 0).any())
    (torch.Size([4, 3]), True)
    """
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to have a spread, got {draws}")
    mean = squares = None
    with _sampling(model) as memberships:
        for n in range(1, draws + 1):
            for m in memberships:
                m.forget()
            y = model(*inputs)
            y = y if transform is None else transform(y)
            y = y.to(torch.promote_types(y.dtype, torch.float32))
            if mean is None or squares is None:
                mean, squares = torch.zeros_like(y), torch.zeros_like(y)
            step = y - mean
            mean = mean + step / n
            squares = squares + step * (y - mean)  # Welford: no cancellation
    assert mean is not None and squares is not None
    return SampledPrediction(mean, (squares / (draws - 1)).sqrt())


class SampledModel(nn.Module):
    """A model whose outputs are the logarithm of the mean probability over sampled architectures.

    For evaluation wherever a model is called: ``SampledModel(net, draws=32)(x).argmax(1)``.
    """

    def __init__(self, model: nn.Module, draws: int = 32) -> None:
        super().__init__()
        self.model, self.draws = model, draws

    def forward(self, *inputs: Tensor) -> Tensor:
        mean, _ = sample_predictions(
            self.model, *inputs, draws=self.draws, transform=lambda y: y.softmax(-1)
        )
        return mean.log()


@contextmanager
def _sampling(model: nn.Module) -> Iterator[list[Memberships]]:
    """Eval mode, in which memberships and DropConnect masks are drawn all the same."""
    memberships = _memberships(model)
    drawing = [*memberships, *(m for m in model.modules() if isinstance(m, DropConnectLinear))]
    if not any(isinstance(m, DropConnectLinear) or m.hard for m in drawing):
        raise ValueError(
            "the model draws nothing (no hard memberships, no DropConnect), so there is nothing to "
            "average over; call it in eval mode instead"
        )
    modes = {module: module.training for module in model.modules()}
    generators = [m.generator for m in memberships if m.generator is not None]
    states = [generator.get_state() for generator in generators]
    model.eval()
    for module in drawing:
        module.sampling = True
    try:
        yield memberships
    finally:
        for module, training in modes.items():
            module.training = training
        for module in drawing:
            module.sampling = False
        for m in memberships:
            m.forget()
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _memberships(model: nn.Module) -> list[Memberships]:
    """All that the model registers or that its layers refer to."""
    registered = [m for m in model.modules() if isinstance(m, Memberships)]
    return list(dict.fromkeys([*registered, *memberships_of(model).values()]))
