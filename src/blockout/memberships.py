"""P_j: which nodes belong to which clusters, in the paper's variants, drawn once per step."""

import math
from typing import Any, NamedTuple, Self, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from blockout.masking import Assignments, Estimator, draw_assignments

SETTLED = 1000.0
"""A logit whose probability is exactly 1 in float32 and float64; for its negative, exactly 0."""
LOOSENED = 0.9
"""The probability that replaces certainty when settled memberships start to learn again."""
REMEMBERED = 64
"""How many uses, one per layer and forward pass, keep their draw for a later backward pass."""


class _Use(NamedTuple):
    """One layer's use of the nodes in one forward pass."""

    drawn: Tensor
    drew: bool


class Memberships(nn.Module):
    """The probability P that each of a set of nodes belongs to each cluster.

    All layers whose inputs or outputs are these nodes share one ``Memberships``. In a training
    forward pass, the layer that produces the nodes draws C ~ Bernoulli(P), and the layers that
    consume them use the same C. If no Blockout layer produces the nodes (P_0), the first consumer
    draws. A second call by the layer responsible for drawing starts a new forward pass. In eval
    mode, all layers use P (Eq. 5).

    ====================  =======================================  ===============================
    variant               arguments                                in training
    ====================  =======================================  ===============================
    hard, learned         the default                              C drawn, P learned by Eq. 9
    soft, learned         ``hard=False``                           C = P, plain chain rule
    hard, fixed           ``learned=False``                        C drawn, P stays as it is
    given                 ``Memberships.given(assignments)``       C = P = the given zeros and ones
    ====================  =======================================  ===============================

    Args:
        nodes: number of nodes, d_j.
        clusters: number of clusters, k; neighbouring layers must agree on it.
        probability: initial P, one number or a (nodes, clusters) tensor. A learned P must start
            strictly between 0 and 1. A fixed P is kept exactly and may be 0 or 1.
        hard: draw C in training (True), or use P itself (False, "soft").
        learned: P is the logistic of ``logits``, a parameter; otherwise P is a buffer.
        estimator: how learned, hard memberships learn: "eq9" as printed in the paper, or
            "two-sided" (see ``masking.with_two_sided_gradient_to``). You may change it later.
        generator: the source of the draws, instead of torch's default generator. See
            ``seed_draws``.

    Activation checkpointing works: a recomputed forward pass sees the draw of the original. This
    holds even if several forward passes run before one backward pass, and if neighbouring layers
    are checkpointed separately. Each use takes one number from torch's default generator as its
    mark, even if the draws come from another generator. Checkpointing restores the default
    generator and so repeats the mark. Keep ``preserve_rng_state=True``: a recomputation with a mark
    that is unknown, or older than the last ``REMEMBERED`` uses, raises an error.

    >>> m = Memberships(3, 2)
    >>> m.probabilities
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000],
            [0.5000, 0.5000]], grad_fn=<SigmoidBackward0>)
    >>> Memberships.given(torch.eye(2)).probabilities
    tensor([[1., 0.],
            [0., 1.]])
    """

    logits: Tensor
    fixed: Tensor

    def __init__(
        self,
        nodes: int,
        clusters: int,
        *,
        probability: float | Float[Tensor, "nodes clusters"] = 0.5,
        hard: bool = True,
        learned: bool = True,
        estimator: Estimator = "eq9",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive(nodes=nodes, clusters=clusters)
        self.nodes, self.clusters = nodes, clusters
        self.hard, self.learned = hard, learned
        if estimator not in get_args(Estimator):
            raise ValueError(f"estimator must be 'eq9' or 'two-sided', got {estimator!r}")
        self.estimator: Estimator = estimator
        self.generator = generator
        self.sampling = False
        self.initial = _initial_rows(probability, nodes, clusters, learned)
        # Logits stay float32 (or float64) beside bfloat16 weights: their steps would be lost.
        dtype = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        empty = torch.empty(nodes, clusters, device=device, dtype=dtype)
        if learned:
            self.logits = nn.Parameter(empty)
        else:
            self.register_buffer("fixed", empty)
        self.profile: Float[Tensor, "clusters clusters"] | None = None
        self._seats = 0
        self._producers: frozenset[int] = frozenset()
        self._drawn: Tensor | None = None
        self._used_by: frozenset[int] = frozenset()
        self._uses: dict[int, _Use] = {}
        self.reset_parameters()

    @classmethod
    def given(cls, assignments: Tensor, *, device: torch.device | str | None = None) -> Self:
        """Memberships known in advance: zeros and ones, (nodes, clusters), never drawn or learned.

        >>> superclasses = torch.tensor([0, 0, 1])  # of three classes
        >>> Memberships.given(nn.functional.one_hot(superclasses)).probabilities
        tensor([[1., 0.],
                [1., 0.],
                [0., 1.]])
        """
        if assignments.dim() != 2:
            raise ValueError(
                "given assignments must be a (nodes, clusters) matrix, "
                f"got shape {tuple(assignments.shape)}"
            )
        wrong = assignments[(assignments != 0) & (assignments != 1)]
        if wrong.numel():
            raise ValueError(
                f"given assignments must be 0 or 1, got {wrong[0].item():g}; for probabilities, "
                "use Memberships(nodes, clusters, probability=..., learned=False)"
            )
        nodes, clusters = assignments.shape
        dtype = assignments.dtype if assignments.is_floating_point() else None
        probability = assignments.to(dtype or torch.get_default_dtype())
        return cls(
            nodes,
            clusters,
            probability=probability,
            hard=False,
            learned=False,
            device=device or assignments.device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Resets P to its initial value."""
        p = self.initial.expand(self.nodes, self.clusters)
        with torch.no_grad():
            if self.learned:
                self.logits.copy_(torch.logit(p))
            else:
                self.fixed.copy_(p)

    @torch.no_grad()
    def settle(
        self, assignments: Float[Tensor, "nodes clusters"], probability: float = 1.0
    ) -> None:
        """Sets P to exactly these zeros and ones. Draws are then certain, and P stops learning.

        With a ``probability`` below 1 it replaces the ones, and memberships go on being drawn. They
        would go on learning too: settle them again after each optimiser step.

        The logits remain parameters, with zero gradient where P is certain, so optimisers,
        checkpoints and distributed training continue as before.
        """
        if not 0 < probability <= 1:
            raise ValueError(f"probability must lie above 0 and up to 1, got {probability:g}")
        if assignments.shape != (self.nodes, self.clusters):
            raise ValueError(
                f"assignments must have shape ({self.nodes}, {self.clusters}), "
                f"got {tuple(assignments.shape)}"
            )
        if ((assignments != 0) & (assignments != 1)).any():
            raise ValueError("assignments must be 0 or 1; threshold probabilities first")
        if self.learned:
            ones = math.log(probability / (1 - probability)) if probability < 1 else SETTLED
            self.logits.copy_(torch.where(assignments > 0, ones, -SETTLED))
        else:
            self.fixed.copy_(assignments * probability)
        self.forget()

    @torch.no_grad()
    def loosen(self) -> bool:
        """Lets memberships that were settled learn again. Returns whether there were any.

        >>> m = Memberships(2, 2)
        >>> m.settle(torch.eye(2)), m.loosen()
        (None, True)
        >>> m.probabilities.detach()
        tensor([[0.9000, 0.1000],
                [0.1000, 0.9000]])
        """
        if not self.learned or not bool((self.logits.abs() >= SETTLED / 2).any()):
            return False
        most = math.log(LOOSENED / (1 - LOOSENED))
        self.logits.clamp_(-most, most)
        return True

    @property
    def probabilities(self) -> Float[Tensor, "nodes clusters"]:
        """P, differentiable with respect to ``logits`` if it is learned."""
        return torch.sigmoid(self.logits) if self.learned else self.fixed

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        if name == "logits" and not self.learned:  # a fixed P is stored itself; infinite at 0 or 1
            return torch.logit(self.fixed)
        return super().__getattr__(name)

    def join(self, *, producer: bool) -> int:
        """Returns a seat for one side of one layer. Seat 0 is the owner's, which registers P."""
        seat = self._seats
        self._seats += 1
        if producer:
            self._producers = self._producers | {seat}
        return seat

    def assignments(
        self, seat: int, *, training: bool
    ) -> Assignments | Float[Tensor, "nodes clusters"]:
        """What the layer in this seat uses in one forward pass: a draw in training, otherwise P."""
        p = self.probabilities
        eager = not torch.compiler.is_compiling()
        if eager:
            self.require_finite()
        if not (self.hard and (training or self.sampling)):
            if seat in self._producers and self._drawn is not None:
                self.forget()  # these nodes were made with P: a consumer in training draws anew
            return p
        mark = int(torch.randint(2**63 - 1, (), device="cpu")) if eager else None
        if mark is not None and torch._C._current_graph_task_id() != -1:
            bits = self._recall(mark, p)  # inside a backward pass: recomputing
        else:
            bits = self._draw_or_share(seat, mark, p)
        if not self.learned:
            return Assignments(bits)
        return Assignments(bits, p if self.estimator == "eq9" else self.logits, self.estimator)

    def _draw_or_share(self, seat: int, mark: int | None, p: Tensor) -> Tensor:
        """Draws if this seat starts a forward pass, otherwise returns the current draw."""
        draws = self._drawn is None or self._begins_a_forward(seat)
        if draws:
            self._drawn = draw_assignments(p, self.generator)
            self._used_by = frozenset()
        assert self._drawn is not None
        self._used_by = self._used_by | {seat}
        if mark is not None:
            self._uses[mark] = _Use(self._drawn, draws)
            if len(self._uses) > REMEMBERED:
                del self._uses[next(iter(self._uses))]
        return self._drawn

    def _recall(self, mark: int, p: Tensor) -> Tensor:
        """The draw of the use being recomputed. Advances torch's generator as that use did."""
        if mark not in self._uses:
            raise RuntimeError(
                "cannot find the draw of a forward pass that is being recomputed for a backward "
                "pass; checkpoint with preserve_rng_state=True, and run the backward pass after at "
                f"most {REMEMBERED} uses of these memberships"
            )
        use = self._uses[mark]
        if use.drew and self.generator is None:
            draw_assignments(p)
        return use.drawn

    def _begins_a_forward(self, seat: int) -> bool:
        produced = bool(self._used_by & self._producers)
        if seat in self._producers:
            return seat in self._used_by or not produced
        return seat in self._used_by and not produced

    def forget(self) -> None:
        """Drops the current draw: the first layer to run in training draws a new one."""
        self._drawn, self._used_by = None, frozenset()

    def require_finite(self) -> None:
        """Refuses NaN and infinite logits. Checks on the CPU only: elsewhere it would be slow."""
        if self.learned and self.logits.is_cpu and not self.logits.isfinite().all():
            count = int((~self.logits.isfinite()).sum())
            raise ValueError(
                f"{count} of {self.logits.numel()} membership logits are not finite; "
                "lower their learning rate (parameter_groups(..., membership_scale=...)) or load "
                "an earlier checkpoint"
            )

    def _apply(self, fn, recurse=True):  # `.to`, `.half`, `.cuda`, ...
        """Converts, but never below float32, which would lose steps of logits and digits of P."""

        def at_least_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            kept = torch.promote_types(moved.dtype, torch.float32)
            return moved if moved.dtype == kept else tensor.to(moved.device)

        return super()._apply(at_least_float32, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do not take the current draw with them."""
        return {**self.__dict__, "_drawn": None, "_used_by": frozenset(), "_uses": {}}

    def extra_repr(self) -> str:
        kind = f"hard={self.hard}, learned={self.learned}"
        return f"nodes={self.nodes}, clusters={self.clusters}, {kind}"


def require_positive(**sizes: int) -> None:
    """Refuses a size that is not a whole number of at least 1."""
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number, at least 1, got {value}")


def _initial_rows(
    probability: float | Tensor, nodes: int, clusters: int, learned: bool
) -> Float[Tensor, "nodes_or_one clusters"]:
    """The initial P on the CPU. One row if all nodes start alike."""
    if isinstance(probability, Tensor):
        p = probability.detach().cpu()
    else:
        p = torch.full((1, clusters), probability, dtype=torch.float64, device="cpu")
    if p.shape not in ((nodes, clusters), (1, clusters)):
        raise ValueError(
            f"probability must be one number or have shape ({nodes}, {clusters}), "
            f"one row per node, got {tuple(p.shape)}"
        )
    outside = p[~((p >= 0) & (p <= 1))]
    if outside.numel():
        raise ValueError(f"probability must lie in [0, 1], got {outside[0].item():g}")
    certain = p[(p == 0) | (p == 1)]
    if learned and certain.numel():
        raise ValueError(
            f"learned memberships must start strictly between 0 and 1, got {certain[0].item():g}; "
            "use learned=False, or Memberships.given(...) for a known hierarchy"
        )
    return p
