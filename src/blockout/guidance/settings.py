"""What a guide aims for, and when; each field's docstring is its --help."""

import math
from dataclasses import dataclass, replace

NOISE = ((30, 0.3), (80, 0.5))
"""Numbers of classes and the ``draw_on`` that suits them on a frozen trunk."""


@dataclass(frozen=True)
class Guidance:
    """What a ``Guide`` aims for, and when; times are shares of the training run."""

    budget: float = 2.0
    """Final mean number of clusters per hidden node; fewer make the network smaller."""
    class_budget: float = 1.5
    """Largest final mean number of clusters per class; each class has at least one."""
    affinity: bool = True
    """Gives similar classes the same clusters; if false, classes are divided evenly."""
    narrow_from: float = 0.15
    """When the network may start to narrow. It starts later if similarity of classes cannot be
    relied on by then."""
    narrow_until: float = 0.45
    """When to stop waiting for reliable similarity; the network then stays whole."""
    narrowing: float = 0.3
    """How long memberships move to their codes."""
    max_loss: float = 1.0
    """Points of accuracy on the hold-out that narrowing may cost, beyond chance. Where it costs
    more, hidden nodes get more clusters, if need be all; inf never asks."""
    draw_on: float | None = None
    """Probability of every membership at the start, and of those a hidden node keeps. Below 1 they
    are drawn to the last step, and that noise regularises; then they become certain, without a
    change for inference. Default: 1; on a frozen trunk 0.3 for up to 30 classes, 0.5 from 80 on."""
    steady: bool | None = None
    """Keeps scale and learning speed of masked weights those of a plain layer, however thin the
    masks. Default: true; false on a frozen trunk, where layers that learn slowly overfit less."""

    def __post_init__(self) -> None:
        if not 0 <= self.narrow_from <= self.narrow_until <= 1:
            raise ValueError(
                "narrow_from and narrow_until must be shares of the training run, in this order "
                f"and between 0 and 1, got {self.narrow_from:g} and {self.narrow_until:g}"
            )
        if not 0 <= self.narrowing <= 1:
            raise ValueError(f"narrowing must lie between 0 and 1, got {self.narrowing:g}")
        if self.draw_on is not None and not 0 < self.draw_on <= 1:
            raise ValueError(f"draw_on must lie above 0 and up to 1, got {self.draw_on:g}")
        if not self.max_loss >= 0:
            raise ValueError(f"max_loss must be at least 0 points, got {self.max_loss:g}")
        for name, value in (("budget", self.budget), ("class_budget", self.class_budget)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number of clusters, got {value:g}")

    def resolved(self, *, frozen: bool = False, classes: int | None = None) -> "Guidance":
        """With nothing left open, for layers on a trunk that is frozen or learns with them."""
        fitting = fitting_probability(classes) if frozen else 1.0
        draw_on = fitting if self.draw_on is None else self.draw_on
        steady = not frozen if self.steady is None else self.steady
        return replace(self, draw_on=draw_on, steady=steady)


def fitting_probability(classes: int | None) -> float:
    """``draw_on`` for so many classes: the fewer, the more noise the layers stand.

    >>> [fitting_probability(classes) for classes in (10, 30, 50, 81, 1000)]
    [0.3, 0.3, 0.4, 0.5, 0.5]
    """
    (few, low), (many, high) = NOISE
    share = math.log((classes or many) / few) / math.log(many / few)
    return round(low + (high - low) * min(max(share, 0), 1), 2)
