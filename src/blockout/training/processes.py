"""Where training runs: the device, the precision and the processes that share the work.

The engine asks for no more than ``Processes``, which is one process in plain torch. Lightning
Fabric, for everything else, is in ``training.fabric``.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Processes:
    """The processes that share one training run, as seen from one of them.

    Here there is only one, on one device, in the module's own precision.

    Attributes:
        device: where this process computes.
        rank: the number of this process; the first is 0.
        world: how many processes there are.
    """

    rank, world = 0, 1

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def wrap_module(self, module: nn.Module) -> nn.Module:
        """Moves the module to the device in place; returns what to call for a forward pass."""
        return module.to(self.device)

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        """Returns the object whose ``step`` and ``zero_grad`` to call."""
        return optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return nullcontext()

    def no_backward_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        """While enabled, gradients add up in each process and are not exchanged."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Computes gradients; they are averaged over the processes."""
        loss.backward()

    def clip_gradients(self, model: nn.Module, optimizer: Any, norm: float) -> None:
        """Scales the gradient of all parameters down to this norm, if it is larger.

        Args:
            model: what ``wrap_module`` returned.
            optimizer: what ``wrap_optimizer`` returned.
        """
        nn.utils.clip_grad_norm_(model.parameters(), norm)

    def all_reduce(self, tensor: Tensor, op: Literal["mean", "sum"]) -> Tensor:
        """The mean or the sum of a tensor over the processes."""
        return tensor

    def broadcast(self, value: T) -> T:
        """The first process's value, on every process."""
        return value
