"""Control over draws: seeds for several processes, and predictions averaged over draws."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from blockout.dropconnect import DropConnectLinear
from blockout.layers import memberships_of
from blockout.memberships import Memberships


def seed_draws(model: nn.Module, seed: int) -> None:
    """Gives every ``Memberships`` of the model its own generator, seeded from ``seed``.

    Draws then depend neither on the device nor on other uses of random numbers. DropConnect masks
    are not affected: like Dropout's, they come from torch's default generator.

    If you train with several processes, call this once after building the model:

    - ``seed_draws(model, seed)``, with the same seed in all processes: in each step, all processes
      train the same drawn architecture. Gradients are those of one process with the joint batch.
    - ``seed_draws(model, seed + rank)``: each process draws its own architecture, and each step
      averages their gradients.

    ``torch.compile(fullgraph=True)`` supports only torch's default generator. To get equal draws
    there, call ``torch.manual_seed`` with the same seed in all processes instead.
    """
    root = torch.Generator().manual_seed(seed)
    for memberships in _memberships(model):
        own_seed = int(torch.randint(2**63 - 1, (), generator=root))
        memberships.generator = torch.Generator().manual_seed(own_seed)


@contextmanager
def one_draw(model: nn.Module) -> Iterator[None]:
    """Inside, every set of nodes of the model is drawn at most once, by this thread.

    Use it if a layer runs several times in a forward pass and all its uses shall have one draw, or
    where it cannot be told which draw belongs to an input (see ``Memberships``). Start over for
    every forward pass.

    >>> from blockout import BlockoutLinear
    >>> shared = BlockoutLinear(8, 8, clusters=2)
    >>> with one_draw(shared):
    ...     h = shared(shared(torch.randn(4, 8)).relu())
    """
    with ExitStack() as stack:
        for memberships in _memberships(model):
            stack.enter_context(memberships.draws.held())
        yield


class SampledPrediction(NamedTuple):
    """A model's mean output over drawn architectures, and how much they differ."""

    mean: Float[Tensor, "*shape"]
    spread: Float[Tensor, "*shape"]
    """Standard deviation over draws, from the unbiased variance."""


@torch.no_grad()
def sample_predictions(
    model: nn.Module,
    *inputs: Tensor,
    draws: int = 32,
    transform: Callable[[Tensor], Tensor] | None = None,
) -> SampledPrediction:
    """Mean and spread of the outputs over ``draws`` sampled architectures.

    This is the average that Eq. 5 approximates by one forward pass with expected weights. Only the
    memberships and DropConnect masks are drawn; batch normalisation and Dropout run in eval mode.
    Afterwards the model is as it was, including the state of its own generators.

    Args:
        inputs: the inputs of the model.
        draws: number of architectures, at least 2.
        transform: a function applied to each output before averaging, for example a softmax.

    >>> from blockout import BlockoutLinear
    >>> net = BlockoutLinear(8, 3, clusters=2)
    >>> mean, spread = sample_predictions(net, torch.randn(4, 8), transform=lambda y: y.softmax(-1))
    >>> mean.shape, bool((spread > 0).any())
    (torch.Size([4, 3]), True)
    """
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to give a spread, got {draws}")
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
            squares = squares + step * (y - mean)  # Welford's method avoids cancellation
    assert mean is not None and squares is not None
    return SampledPrediction(mean, (squares / (draws - 1)).sqrt())


class SampledModel(nn.Module):
    """A model that returns the logarithm of its mean probabilities over sampled architectures.

    Use it for evaluation in place of the model: ``SampledModel(net, draws=32)(x).argmax(1)``.
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
    """Eval mode for everything except memberships and DropConnect masks, which are drawn."""
    memberships = _memberships(model)
    drawing = [*memberships, *(m for m in model.modules() if isinstance(m, DropConnectLinear))]
    if not any(isinstance(m, DropConnectLinear) or m.hard for m in drawing):
        raise ValueError(
            "the model draws nothing (it has no hard memberships and no DropConnect layers), so "
            "there is nothing to average; call it in eval mode instead"
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
    """All memberships that the model registers or that its layers refer to."""
    registered = [m for m in model.modules() if isinstance(m, Memberships)]
    return list(dict.fromkeys([*registered, *memberships_of(model).values()]))
