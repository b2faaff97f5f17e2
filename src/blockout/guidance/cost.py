"""Whether narrowing costs too much: accuracy on a hold-out before it and after."""

import math
from typing import Any

IN_A_ROW = 2
"""So many looks at the hold-out must agree: at large learning rates accuracy jumps."""
CHANCE = 2.0
"""Standard errors of the hold-out that a loss must exceed as well."""


class Cost:
    """Compares hold-out accuracy with the best that the wide network had.

    >>> cost = Cost(max_loss=1.0)
    >>> cost.wide(80.0)
    >>> [cost.is_too_high(accuracy, examples=10_000) for accuracy in (79.0, 77.0, 77.0)]
    [False, False, True]
    >>> cost.points
    3.0

    Args:
        max_loss: points of accuracy that narrowing may cost, beyond chance.
    """

    def __init__(self, max_loss: float) -> None:
        self.max_loss = max_loss
        self.best: float | None = None
        self.points = 0.0
        self.too_low = 0

    def wide(self, accuracy: float) -> None:
        """Accuracy in per cent before narrowing."""
        self.best = accuracy if self.best is None else max(self.best, accuracy)

    def is_too_high(self, accuracy: float, examples: int) -> bool:
        """Whether this and the looks just before say that narrowing costs too much."""
        if self.best is None:
            return False
        self.points = self.best - accuracy
        # One more of each than there were: all of a few right is not certainty.
        right = (self.best / 100 * examples + 1) / (examples + 2)
        chance = 100 * CHANCE * math.sqrt(right * (1 - right) / examples)
        lost = self.points > self.max_loss + chance
        self.too_low = self.too_low + 1 if lost else 0
        return self.too_low >= IN_A_ROW

    def ask_again(self) -> None:
        """After a change, earlier looks no longer count."""
        self.too_low = 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "points": self.points, "too_low": self.too_low}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.points, self.too_low = state["best"], state["points"], state["too_low"]
