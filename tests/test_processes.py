"""Two real processes (gloo) with shared draws or draws of their own."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from blockout import BlockoutLinear, seed_draws

STEPS = 3


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    fc2 = BlockoutLinear(6, 8, 3, dtype=torch.float64)
    return nn.Sequential(
        fc2, nn.Tanh(), BlockoutLinear(8, 4, 3, inputs=fc2.outputs, dtype=torch.float64)
    )


def _gradients(net: nn.Module, x: torch.Tensor) -> list[list[torch.Tensor]]:
    steps = []
    for _ in range(STEPS):
        net.zero_grad()
        net(x).square().mean().backward()
        steps.append([p.grad.clone() for p in net.parameters()])  # pyright: ignore
    return steps


def _batch() -> torch.Tensor:
    return torch.randn(10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def _work(rank: int, folder: str, shared: bool) -> None:
    """Leaves without finalizing: a thread of gloo that frees the last exchange's tensors needs the
    interpreter's lock, and aborts the process if the interpreter is already ending."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    net = _net()
    seed_draws(net, 7 if shared else 7 + rank)
    torch.manual_seed(100 + rank)  # what else is random differs between the processes
    gradients = _gradients(DistributedDataParallel(net), _batch()[rank * 5 : rank * 5 + 5])
    drawn = [net[0].inputs.drawn, net[0].outputs.drawn, net[2].outputs.drawn]
    torch.save({"gradients": gradients, "drawn": drawn}, f"{folder}/{rank}.pt")
    dist.barrier()  # neither leaves while the other still needs it
    os._exit(0)


def _two_processes(folder, shared: bool) -> list[dict]:
    mp.start_processes(_work, (str(folder), shared), nprocs=2, start_method="spawn")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_shared_draws_give_the_gradients_of_one_process_with_the_joined_batch(tmp_path):
    results = _two_processes(tmp_path, shared=True)
    net = _net()
    seed_draws(net, 7)
    alone = _gradients(net, _batch())
    for result in results:
        for step, expected in zip(result["gradients"], alone, strict=True):
            for got, wanted in zip(step, expected, strict=True):
                torch.testing.assert_close(got, wanted)


def test_own_draws_differ_between_processes_and_gradients_are_averaged_over_both(tmp_path):
    first, second = _two_processes(tmp_path, shared=False)
    assert not torch.equal(first["drawn"][1], second["drawn"][1])
    alone = []
    for rank in range(2):
        net = _net()
        seed_draws(net, 7 + rank)
        alone.append(_gradients(net, _batch()[rank * 5 : rank * 5 + 5]))
    for step, a, b in zip(first["gradients"], *alone, strict=True):
        for got, one, other in zip(step, a, b, strict=True):
            torch.testing.assert_close(got, (one + other) / 2)
