"""Which classes the network confuses while it trains, and whether that can be relied on yet."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockout.guidance.class_codes import Table, similarity_of

MEMORY = 0.05
"""Predictions per class are averaged over this share of the training run."""
FEWEST = 4
"""With fewer classes there is nothing to group, so nothing to rely on."""


class SimilarityOfClasses:
    """Mean predictions per class over the last steps, in two halves: odd and even steps.

    What is averaged are square roots of probabilities, so that classes which a sure network thinks
    improbable count as well. Two classes are similar if the network confuses them with each other
    and with the same other classes. Both halves measure the same similarity on different images, so
    their agreement says how much of it is chance.

    Args:
        classes: how many there are.
        steps: the length of the training run.
    """

    def __init__(self, classes: int, steps: int, device: torch.device | None = None) -> None:
        self.keep = math.exp(-1 / max(MEMORY * steps, 1))
        self.turn = 0
        self.sums = torch.zeros(2, classes, classes, device=device)
        self.counts = torch.zeros(2, classes, device=device)

    def add(self, predicted: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]) -> None:
        """Counts the predicted probabilities of one step, over all processes."""
        classes = self.sums.shape[1]
        seen = predicted.new_zeros(classes, classes + 1)
        counted = torch.cat([predicted.sqrt(), torch.ones_like(predicted[:, :1])], 1)
        seen.index_add_(0, labels, counted)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(seen)
        self.sums.mul_(self.keep)
        self.counts.mul_(self.keep)
        self.sums[self.turn] += seen[:, :-1]
        self.counts[self.turn] += seen[:, -1]
        self.turn = 1 - self.turn

    def table(self) -> Table:
        """The similarity of classes by all predictions."""
        return self._similarity(self.sums.sum(0), self.counts.sum(0))

    def reliability(self) -> float:
        """How far the table would agree with another from other images: 1 fully, 0 not at all.

        The correlation of the two halves, raised to the length of both (Spearman and Brown).
        """
        classes = len(self.counts[0])
        if classes < FEWEST:
            return 1.0
        beside = ~torch.eye(classes, dtype=torch.bool, device=self.sums.device)
        pair = [
            self._similarity(sums, counts)[beside]
            for sums, counts in zip(self.sums, self.counts, strict=True)
        ]
        halves = torch.stack(pair).double()
        halves -= halves.mean(1, keepdim=True)
        spread = halves.norm(dim=1).prod()
        agreement = float(halves.prod(0).sum() / spread) if spread > 0 else 0.0
        return max(2 * agreement / (1 + agreement), 0.0) if agreement > -1 else 0.0

    def told_apart(self) -> float:
        """Share of the classes whose images are on average taken for their own class most."""
        own = torch.arange(self.sums.shape[1], device=self.sums.device)
        return float((self.sums.sum(0).argmax(1) == own).float().mean())

    def _similarity(self, sums: Tensor, counts: Tensor) -> Table:
        return similarity_of(sums / counts.clamp_min(1e-12)[:, None])

    def state_dict(self) -> dict[str, Any]:
        return {"turn": self.turn, "sums": self.sums.clone(), "counts": self.counts.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turn = state["turn"]
        self.sums.copy_(state["sums"])
        self.counts.copy_(state["counts"])
