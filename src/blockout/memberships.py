"""P_j: which nodes belong to which clusters, in the paper's variants, drawn once a step."""

import math
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from blockout.masking import draw_assignments, with_gradient_to, with_two_sided_gradient_to

Estimator = Literal["eq9", "two-sided"]
SETTLED = 1000.0
"""A logit whose probability is exactly 1 (and 0 for its negative) in float32 and float64."""
LOOSENED = 0.9
"""What is left of certainty when settled memberships are to learn again."""
REMEMBERED = 64
"""Uses (layers times forwards) of a set of nodes whose draw a backward pass can still ask for."""


class _Use(NamedTuple):
    """One layer's use of the nodes in one forward."""

    drawn: Tensor
    drew: bool


class Memberships(nn.Module):
    """The probability P that each of a set of nodes belongs to each cluster.

    One ``Memberships`` is shared by all layers whose inputs or outputs are these nodes. In a
    training forward the layer that produces the nodes draws C ~ Bernoulli(P) and those that consume
    them use the same C. Nodes that no Blockout layer produces (P_0) are drawn by the first of their
    consumers. Whoever is due to draw and comes a second time begins a new forward. In eval mode all
    use P (Eq. 5).

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
        clusters: number of clusters, k; the same for neighbours.
        probability: initial P, one number or a (nodes, clusters) tensor. Learned ones must lie
            strictly between 0 and 1; fixed ones are kept exactly, 0 and 1 included.
        hard: draw C in training (True), or use P itself (False, "soft").
        learned: P is the logistic of ``logits``, a parameter; otherwise P is a buffer.
        estimator: how learned, hard memberships learn: "eq9" as the paper prints it, or "two-sided"
            (see ``masking.with_two_sided_gradient_to``). May be changed later.
        generator: draws come from it instead of torch's default generator. See ``seed_draws``.

    A forward that is recomputed for activation checkpointing sees the draw of the original, also
    when several forwards run before one backward and when neighbours are checkpointed apart: each
    use takes one number from torch's default generator (whatever the draws come from) as its mark,
    which the checkpoint repeats because it restores that generator. So keep
    ``preserve_rng_state=True``; a recomputation whose mark is unknown, or older than the last
    ``REMEMBERED`` uses, is refused.

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
        """Memberships known beforehand: zeros and ones, (nodes, clusters), never drawn or learned.

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
                f"given assignments must be 0 or 1, got {wrong[0].item():g}; "
                "for probabilities write Memberships(nodes, clusters, probability=..., "
                "learned=False)"
            )
        nodes, clusters = assignments.shape
        dtype = assignments.dtype if assignments.is_floating_point() else None
        probability = assignments.to(dtype or torch.get_default_dtype())
        return cls(
            nodes, clusters, probability=probability, hard=False, learned=False,
            device=device or assignments.device, dtype=dtype,
        )  # fmt: skip

    def reset_parameters(self) -> None:
        """Puts P back to its initial value."""
        p = self.initial.expand(self.nodes, self.clusters)
        with torch.no_grad():
            if self.learned:
                self.logits.copy_(torch.logit(p))
            else:
                self.fixed.copy_(p)

    @torch.no_grad()
    def settle(self, assignments: Float[Tensor, "nodes clusters"]) -> None:
        """P becomes these zeros and ones exactly: nothing is left to chance, and nothing to learn.

        The logits remain parameters, of gradient zero, so that optimisers, checkpoints and
        distributed training go on as before.
        """
        if assignments.shape != (self.nodes, self.clusters):
            raise ValueError(
                f"assignments must have shape ({self.nodes}, {self.clusters}), "
                f"got {tuple(assignments.shape)}"
            )
        if ((assignments != 0) & (assignments != 1)).any():
            raise ValueError("assignments must be 0 or 1; threshold probabilities first")
        if self.learned:
            self.logits.copy_((2 * assignments.to(self.logits) - 1) * SETTLED)
        else:
            self.fixed.copy_(assignments)
        self.forget()

    @torch.no_grad()
    def loosen(self) -> bool:
        """Lets learned memberships that ``settle`` has fixed learn again; whether there were any.

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
        """P, differentiable with respect to ``logits`` where it is learned."""
        return torch.sigmoid(self.logits) if self.learned else self.fixed

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        if name == "logits" and not self.learned:  # they keep P itself; infinite where it is 0 or 1
            return torch.logit(self.fixed)
        return super().__getattr__(name)

    def join(self, *, producer: bool) -> int:
        """A seat for one side of one layer; the first, 0, is that of the owner, who registers P."""
        seat = self._seats
        self._seats += 1
        if producer:
            self._producers = self._producers | {seat}
        return seat

    def assignments(self, seat: int, *, training: bool) -> Float[Tensor, "nodes clusters"]:
        """C for one forward of the layer in this seat: drawn or shared in training, P otherwise."""
        p = self.probabilities
        eager = not torch.compiler.is_compiling()
        if eager:
            self.require_finite()
        if not (self.hard and (training or self.sampling)):
            if seat in self._producers and self._drawn is not None:
                self.forget()  # nodes made with P: a consumer that trains draws for itself
            return p
        mark = int(torch.randint(2**63 - 1, (), device="cpu")) if eager else 0
        if eager and torch._C._current_graph_task_id() != -1:  # inside a backward: recomputing
            return self._with_gradient(p, self._recall(mark, p))
        draws = self._drawn is None or self._begins_a_forward(seat)
        if draws:
            self._drawn = draw_assignments(p, self.generator)
            self._used_by = frozenset()
        assert self._drawn is not None
        self._used_by = self._used_by | {seat}
        if eager:
            self._uses[mark] = _Use(self._drawn, draws)
            if len(self._uses) > REMEMBERED:
                del self._uses[next(iter(self._uses))]
        return self._with_gradient(p, self._drawn)

    def _with_gradient(self, p: Tensor, c: Tensor) -> Tensor:
        if self.learned and self.estimator == "two-sided":
            return with_two_sided_gradient_to(self.logits, c)
        return with_gradient_to(p, c)

    def _recall(self, mark: int, p: Tensor) -> Tensor:
        """The draw of the use that is recomputed; advances torch's generator as that use did."""
        if mark not in self._uses:
            raise RuntimeError(
                "a forward is recomputed inside a backward pass, but not from the random state of "
                "a forward that these memberships remember; checkpoint with preserve_rng_state="
                f"True, and let at most {REMEMBERED} uses pass before the backward"
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
        """The next training forward draws anew, whoever comes first."""
        self._drawn, self._used_by = None, frozenset()

    def require_finite(self) -> None:
        """On a CPU before every use; elsewhere that would stall the device."""
        if self.learned and self.logits.is_cpu and not self.logits.isfinite().all():
            count = int((~self.logits.isfinite()).sum())
            raise ValueError(
                f"{count} of {self.logits.numel()} membership logits are not finite; "
                "lower their learning rate (parameter_groups(..., membership_scale=...)) or load "
                "an earlier checkpoint"
            )

    def _apply(self, fn, recurse=True):  # `.to`, `.half`, `.cuda`, ...
        """Moves, but never below float32: neither steps of logits nor a fixed P survive that."""

        def at_least_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            kept = torch.promote_types(moved.dtype, torch.float32)
            return moved if moved.dtype == kept else tensor.to(moved.device)

        return super()._apply(at_least_float32, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles begin with a draw of their own."""
        return {**self.__dict__, "_drawn": None, "_used_by": frozenset(), "_uses": {}}

    def extra_repr(self) -> str:
        kind = f"hard={self.hard}, learned={self.learned}"
        return f"nodes={self.nodes}, clusters={self.clusters}, {kind}"


def require_positive(**sizes: int) -> None:
    """Each named size must be at least 1."""
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number, at least 1, got {value}")


def _initial_rows(
    probability: float | Tensor, nodes: int, clusters: int, learned: bool
) -> Float[Tensor, "nodes_or_one clusters"]:
    """The initial P on the CPU: one row where all nodes begin alike."""
    if isinstance(probability, Tensor):
        p = probability.detach().cpu()
    else:
        p = torch.full((1, clusters), probability, dtype=torch.float64, device="cpu")
    if p.shape not in ((nodes, clusters), (1, clusters)):
        raise ValueError(
            f"probability must be one number or have shape ({nodes}, {clusters}), one row a node, "
            f"got {tuple(p.shape)}"
        )
    outside = p[~((p >= 0) & (p <= 1))]
    if outside.numel():
        raise ValueError(f"probability must lie in [0, 1], got {outside[0].item():g}")
    certain = p[(p == 0) | (p == 1)]
    if learned and certain.numel():
        raise ValueError(
            f"learned memberships must start strictly between 0 and 1, got {certain[0].item():g}; "
            "write learned=False, or Memberships.given(...) for a known hierarchy"
        )
    return p
