"""P_j: which nodes belong to which clusters, in the paper's variants, drawn once per step."""

import math
import operator
from typing import Self, SupportsIndex, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from blockout.draws import Draws
from blockout.masking import Assignments, Estimator, draw_assignments

SETTLED = 1000.0
"""A logit whose probability is exactly 1 in float32 and float64; for its negative, exactly 0."""
LOOSENED = 0.9
"""The probability that replaces certainty when settled memberships start to learn again."""


class Memberships(nn.Module):
    """The probability P that each of a set of nodes belongs to each cluster.

    All layers whose inputs or outputs are these nodes share one ``Memberships``. In a training
    forward pass, the layer that makes the nodes draws C ~ Bernoulli(P), and the layers that read
    them use the same C (see below). If no Blockout layer makes the nodes (P_0), their first reader
    draws. A second call of the layer that draws starts a new forward pass. In eval mode, all layers
    use P (Eq. 5), and draws stay as they are.

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

    **Which draw a layer reads with.** The one its own nodes were made with. It is found by walking
    back through the autograd graph of the input, so the order of calls, other threads and passes in
    eval mode make no difference. An input made with two draws (``b(a(x1) + a(x2))``) is refused.
    Nodes that no Blockout layer makes have one draw per tensor. An input without a graph (made
    under ``no_grad``, detached, from reentrant checkpointing or a compiled graph) is read with the
    last draw of this thread, and refused if that may be the wrong one: if nodes were made twice, or
    in training and then in eval mode, before they were read, or if the layer has read them already.
    ``blockout.one_draw(model)`` gives all calls inside one draw, ``forget`` drops draws that nobody
    will read. Compiled code cannot tell threads apart: compile whole forward passes.

    **Activation checkpointing.** A recomputed forward pass sees the draw of the original. This
    holds even if several forward passes run before one backward pass, and if neighbouring layers
    are checkpointed separately. Each use takes one number from torch's default generator as its
    mark, even if the draws come from another generator. Checkpointing restores the default
    generator and so repeats the mark. Keep ``preserve_rng_state=True``: a recomputation with a mark
    that is unknown, or older than the last 64 uses (``draws.REMEMBERED``), raises an error.

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
        nodes, clusters = positive_integers(nodes=nodes, clusters=clusters)
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
        self.draws = Draws()
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
    def put(self, p: Float[Tensor, "nodes clusters"]) -> None:
        """Sets P; zeros and ones exactly.

        >>> m = Memberships(1, 3)
        >>> m.put(torch.tensor([[0.0, 0.25, 1.0]]))
        >>> m.probabilities.tolist()
        [[0.0, 0.25, 1.0]]
        """
        if p.shape != (self.nodes, self.clusters):
            raise ValueError(
                f"P must have shape ({self.nodes}, {self.clusters}), got {tuple(p.shape)}"
            )
        if self.learned:
            certain = torch.where(p > 0.5, SETTLED, -SETTLED).to(self.logits)
            between = (p > 0) & (p < 1)
            self.logits.copy_(torch.where(between, p.to(self.logits).logit(), certain))
        else:
            self.fixed.copy_(p)

    @torch.no_grad()
    def settle(self, assignments: Float[Tensor, "nodes clusters"]) -> None:
        """Sets P to exactly these zeros and ones. Draws are then certain, and P stops learning.

        The logits remain parameters, with zero gradient where P is certain, so optimisers,
        checkpoints and distributed training continue as before.
        """
        if ((assignments != 0) & (assignments != 1)).any():
            raise ValueError("assignments must be 0 or 1; threshold probabilities first")
        self.put(assignments)
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

    @property
    def drawn(self) -> Float[Tensor, "nodes clusters"] | None:
        """The last draw for these nodes, in whatever thread; None if there is none."""
        return self.draws.latest.bits

    def assignments(
        self, seat: int, *, training: bool, nodes: Tensor | None = None
    ) -> Assignments | Float[Tensor, "nodes clusters"]:
        """What the layer in this seat uses in one forward pass: a draw in training, otherwise P.

        ``nodes`` are the values that a layer reads; their draw is found through them.
        """
        p = self.probabilities
        eager = not torch.compiler.is_compiling()
        if eager:
            self.require_valid()
        if not (self.hard and (training or self.sampling)):
            if seat in self.draws.producers:
                self.draws.made_in_eval_mode()
            return p
        mark = int(torch.randint(2**63 - 1, (), device="cpu")) if eager else None
        if mark is not None and torch._C._current_graph_task_id() != -1:
            bits = self._recomputed(mark, p)  # inside a backward pass
        else:
            bits = self._used(seat, mark, p, nodes)
        if not self.learned:
            return Assignments(bits)
        return Assignments(bits, p if self.estimator == "eq9" else self.logits, self.estimator)

    def _used(self, seat: int, mark: int | None, p: Tensor, nodes: Tensor | None) -> Tensor:
        def sample() -> Tensor:
            return draw_assignments(p, self.generator)

        if seat in self.draws.producers:
            use = self.draws.make(seat, sample)
        else:
            use = self.draws.read(seat, nodes, sample)
        if mark is not None:
            self.draws.remember(mark, use)
        return use[0]

    def _recomputed(self, mark: int, p: Tensor) -> Tensor:
        """The draw of the use being recomputed. Advances torch's generator as that use did."""
        bits, drew = self.draws.recall(mark)
        if drew and self.generator is None:
            draw_assignments(p)
        return bits

    def made(self, nodes: Tensor, c: Assignments | Tensor) -> None:
        """Says that a layer has made these nodes with c, for the layers that read them."""
        bits = c.bits if isinstance(c, Assignments) else None
        if self.draws.seats < 2 or (bits is None and not (self.hard and nodes.requires_grad)):
            return
        if not torch.compiler.is_compiling():
            self.draws.made(nodes, bits)

    def forget(self) -> None:
        """Drops all draws: the next layer to run in training draws again, whatever its input."""
        self.draws.forget()

    def require_valid(self) -> None:
        """Refuses logits that are not finite, and a fixed P outside [0, 1].

        Looks at values on the CPU only: elsewhere it would stall the device.
        """
        values = self.logits if self.learned else self.fixed
        in_vmap = torch._C._functorch.is_batchedtensor(values)  # pyright: ignore
        if not values.is_cpu or in_vmap:
            return
        if not self.learned:
            wrong = _outside(values)
            if wrong is not None:
                raise ValueError(f"{wrong}; load or set other values")
        elif not values.isfinite().all():
            count = int((~values.isfinite()).sum())
            raise ValueError(
                f"{count} of {values.numel()} membership logits are not finite; "
                "lower their learning rate (parameter_groups(..., membership_scale=...)) or load "
                "an earlier checkpoint"
            )

    def _load_from_state_dict(self, state_dict, prefix, *rest) -> None:
        """Loads values of low precision as float32; refuses a fixed P outside [0, 1]."""
        key, errors = prefix + ("logits" if self.learned else "fixed"), rest[-1]
        if key in state_dict:
            value = state_dict[key]
            wide = torch.promote_types(value.dtype, torch.float32)
            if value.dtype != wide:
                value = state_dict[key] = value.detach().to(wide)
            wrong = None if self.learned or value.is_meta else _outside(value)
            if wrong is not None:
                errors.append(f"{key}: {wrong}")
                return
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _apply(self, fn, recurse=True):  # `.to`, `.half`, `.cuda`, ...
        """Converts, but never below float32, which would lose steps of logits and digits of P."""

        def at_least_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            kept = torch.promote_types(moved.dtype, torch.float32)
            return moved if moved.dtype == kept else tensor.to(moved.device)

        return super()._apply(at_least_float32, recurse)

    def extra_repr(self) -> str:
        kind = f"hard={self.hard}, learned={self.learned}"
        return f"nodes={self.nodes}, clusters={self.clusters}, {kind}"


def positive_integers(**sizes: SupportsIndex) -> list[int]:
    """The sizes as plain integers; refuses what is not a whole number of at least 1.

    >>> positive_integers(nodes=3, clusters=torch.tensor(2))
    [3, 2]
    """
    found = []
    for name, value in sizes.items():
        try:
            number = 0 if _is_bool(value) else operator.index(value)
        except TypeError:
            number = 0
        if number < 1:
            raise ValueError(f"{name} must be a whole number, at least 1, got {value}")
        found.append(number)
    return found


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool)


def _outside(p: Tensor) -> str | None:
    """Says which value of P is not a probability, if any."""
    low, high = (float(value) for value in p.detach().aminmax())
    if low >= 0 and high <= 1:
        return None
    wrong = p[~((p >= 0) & (p <= 1))][0].item()
    return f"probability must lie in [0, 1], got {wrong:g}"


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
    wrong = _outside(p)
    if wrong is not None:
        raise ValueError(wrong)
    certain = p[(p == 0) | (p == 1)]
    if learned and certain.numel():
        raise ValueError(
            f"learned memberships must start strictly between 0 and 1, got {certain[0].item():g}; "
            "use learned=False, or Memberships.given(...) for a known hierarchy"
        )
    return p
