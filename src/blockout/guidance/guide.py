"""Guided training, beyond the paper: few, meaningful memberships that settle before the end.

The paper's loss alone leaves the network nearly dense and its groups of classes arbitrary. A
``Guide`` adds three things on a schedule:

- a **budget**: it shifts the logits so that a node belongs to a given number of clusters on
  average, which falls from its initial value to a target;
- **affinity**: it gives classes that the network confuses the same clusters;
- **settling**: it sets memberships to zeros and ones and keeps the structure for the rest of the
  training run, so that cutting the network apart afterwards changes nothing.

All times are shares of the training run, so they mean the same for short and long runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from blockout.guidance.class_codes import balanced, fitting_codes, similarity_of
from blockout.layers import BlockoutLayer, memberships_of
from blockout.masking import masked_weight
from blockout.memberships import SETTLED, Estimator, Memberships

Shift = Literal["all", "cluster", "both"]
MEMORY = 0.05
"""Predictions per class are averaged over this share of the training run."""
LOOK_AGAIN = 0.05
"""The codes of classes are chosen again after this share of the training run."""
FEW_STEPS = 500
"""Shorter training runs learn later which classes are similar."""
FARTHEST = 100.0
"""The largest shift of logits; P is 0 or 1 there."""


@dataclass(frozen=True)
class Guidance:
    """What a ``Guide`` aims for, and when; times are shares of the training run."""

    budget: float = 1.15
    """Final mean number of clusters per hidden node; fewer make the network smaller."""
    class_budget: float = 1.5
    """Largest final mean number of clusters per class; each class has at least one."""
    shift: Shift = "both"
    """How logits are shifted to meet the budget: all logits of a set of nodes together (all), per
    cluster, which makes clusters equal in size (cluster), or per node and per cluster in turn
    (both)."""
    affinity: bool = True
    """Gives similar classes the same clusters; if false, the loss alone decides."""
    learn_from: float = 0.05
    """When memberships start to learn; before that, features are mostly noise."""
    budget_by: float = 0.3
    """When the budget is reached; it falls linearly until then."""
    settle_at: float = 0.35
    """When memberships become zeros and ones; 1 means never."""
    draw_on: float = 1.0
    """The probability that replaces the ones of hidden nodes when they settle. Below 1, for example
    0.5, they go on being drawn within their clusters, and that noise regularises."""
    group_at: float | None = None
    """Until when classes may change their clusters, while the network learns which are similar.
    Default: 0.5, or 0.6 for training runs of fewer than 500 steps, which learn this later."""
    estimator: Estimator = "two-sided"
    """How memberships learn from the loss: eq9, as in the paper, or two-sided."""

    def __post_init__(self) -> None:
        times = (self.learn_from, self.budget_by, self.settle_at)
        if not 0 <= self.learn_from < self.budget_by <= self.settle_at <= 1:
            raise ValueError(
                "learn_from, budget_by and settle_at must be shares of the training run, in this "
                f"order and between 0 and 1, got {', '.join(f'{t:g}' for t in times)}"
            )
        if self.group_at is not None and not 0 <= self.group_at <= 1:
            raise ValueError(f"group_at must lie between 0 and 1, got {self.group_at:g}")
        if not 0 < self.draw_on <= 1:
            raise ValueError(f"draw_on must lie above 0 and up to 1, got {self.draw_on:g}")
        for name, value in (("budget", self.budget), ("class_budget", self.class_budget)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number of clusters, got {value:g}")
        for name, value, known in (
            ("shift", self.shift, get_args(Shift)),
            ("estimator", self.estimator, get_args(Estimator)),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    def resolved(self, steps: int) -> "Guidance":
        """With nothing left open, for a training run of so many steps."""
        if self.group_at is not None:
            return self
        return replace(self, group_at=0.6 if steps < FEW_STEPS else 0.5)


class Guide:
    """Guides the learned memberships of a model through a training run of ``steps`` steps.

    Call ``step`` after each optimiser step, with the labels of the examples since the last call:

    >>> from blockout import BlockoutLinear, parameter_groups
    >>> net = nn.Sequential(BlockoutLinear(8, 16, clusters=2), nn.ReLU(), nn.Linear(16, 4))
    >>> net[2] = BlockoutLinear(16, 4, clusters=2, inputs=net[0].outputs)
    >>> guide = Guide(net, steps=20)
    >>> optimizer = torch.optim.SGD(parameter_groups(net, lr=0.1))
    >>> for _ in range(20):
    ...     x, y = torch.randn(32, 8), torch.randint(4, (32,))
    ...     nn.functional.cross_entropy(net(x), y).backward()
    ...     optimizer.step()
    ...     guide.step(y)
    >>> net[2].outputs.probabilities.unique().tolist()
    [0.0, 1.0]

    Args:
        model: has learned Blockout layers, which are changed in place.
        steps: the length of the whole training run.
        guidance: what to aim for.
        classes: the memberships of the classes, by default the outputs of the last Blockout layer.
            None if that layer does not give the classes; there is no affinity then.
        similarity: a known similarity of classes (classes, classes), or the known group of each
            class, such as its superclass. By default the guide measures it: the cosine of the
            centred mean predictions per class, so classes are similar if the network confuses them
            with each other and with the same other classes.

    With several processes (``torch.distributed``), means are taken over all of them. ``state_dict``
    holds what a checkpoint needs.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        guidance: Guidance | None = None,
        *,
        classes: Memberships | Literal["last"] | None = "last",
        similarity: Float[Tensor, "classes classes"] | Sequence[int] | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError(
                f"steps must be at least 1, the length of the training run, got {steps}"
            )
        self.guidance = (guidance or Guidance()).resolved(steps)
        self.steps, self.done = steps, 0
        self.layers = [m for m in model.modules() if isinstance(m, BlockoutLayer)]
        found = list(memberships_of(model).values())
        self.classes = (found[-1] if found else None) if classes == "last" else classes
        self.sets = [m for m in found if m.learned]
        if not self.sets:
            raise ValueError("the model has no learned memberships; there is nothing to guide")
        for m in self.sets:
            m.estimator = self.guidance.estimator
        self.start = [m.logits.detach().clone() for m in self.sets]
        self._predicted: Tensor | None = None
        self.sums: Tensor | None = None
        self.counts: Tensor | None = None
        self.codes: Tensor | None = None
        self.similarity = None if similarity is None else _given(similarity, self.classes)
        self._hooks: list[RemovableHandle] = []
        self._observes = self.similarity is None and self._has_affinity
        if self._observes:
            says_classes = next(m for m in self.layers if m.outputs is self.classes)
            self._hooks.append(says_classes.register_forward_hook(self._observe))

    @property
    def _has_affinity(self) -> bool:
        return self.guidance.affinity and self.classes in self.sets

    @property
    def settled(self) -> bool:
        """Whether all memberships are final."""
        return self.settled_sets == len(self.sets)

    @property
    def settled_sets(self) -> int:
        """How many sets of nodes have their final memberships."""
        return sum(self.done >= self._due(m) for m in self.sets)

    def _due(self, m: Memberships) -> float:
        """The step after which a set of nodes keeps its memberships."""
        if self._is_led(m):
            return max(self._grouping, self._settling)
        return self._settling if self.guidance.settle_at < 1 else math.inf

    @property
    def _grouping(self) -> int:
        """The step after which classes keep their clusters."""
        assert self.guidance.group_at is not None
        return self._at(self.guidance.group_at)

    @property
    def _settling(self) -> int:
        """The step that settles; in the shortest training runs, the first step that learns."""
        g = self.guidance
        return max(self._at(g.settle_at), self._at(g.learn_from) + 1)

    def _is_led(self, m: Memberships) -> bool:
        """Whether similarity decides, and neither the loss nor the budget."""
        return self._has_affinity and m is self.classes

    def close(self) -> None:
        """Stops reading predictions; call it if you stop before the structure has settled."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def step(self, labels: Int64[Tensor, "n"] | None = None) -> None:
        """After an optimiser step: records predictions, moves the logits, settles when due."""
        if self._observes and not self.settled:
            self._learn_from_predictions(labels)
        self.done += 1
        learning, fixing = self.done > self._at(self.guidance.learn_from), {}
        for m, start in zip(self.sets, self.start, strict=True):
            if self.done > self._due(m):
                self._stay_settled(m)
            elif not learning:
                m.logits.copy_(start)
            elif self._is_led(m):
                fixing |= self._lead(m, start)
            else:
                self._meet_budget(m, start)
                fixing |= {m: self._chosen(m)} if self.done == self._due(m) else {}
        if (
            fixing
        ):  # all at once: rescaling one set after another can make weights arbitrarily large
            settle(self.layers, fixing, {m: self._final_probability(m) for m in fixing})
        if self.settled:
            self.close()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training run needs."""
        names = ("done", "sums", "counts", "codes", "similarity", "start")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the state of a ``Guide`` of the same model, onto this guide's device."""
        device = self.start[0].device
        self.done, self.start = state["done"], [t.to(device) for t in state["start"]]
        self.sums, self.counts, self.codes, self.similarity = (
            None if state[name] is None else state[name].to(device)
            for name in ("sums", "counts", "codes", "similarity")
        )
        if self.settled:
            self.close()

    # --- which classes are similar --------------------------------------------------------------

    def _observe(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keeps what the network predicts in training. Also runs inside compiled graphs."""
        eager = not torch.compiler.is_compiling()
        recomputing = eager and torch._C._current_graph_task_id() != -1
        if layer.training and not recomputing:
            logits = output.detach()
            logits = logits.mean((2, 3)) if logits.dim() == 4 else logits
            wide = torch.promote_types(logits.dtype, torch.float32)
            new, before = logits.to(wide).softmax(1), self._predicted
            self._predicted = new if before is None else torch.cat([before, new])

    def _learn_from_predictions(self, labels: Tensor | None) -> None:
        assert self.classes is not None
        n = self.classes.nodes
        predicted = torch.empty(0, n) if self._predicted is None else self._predicted
        self._predicted = None
        if labels is None or len(labels) != len(predicted):
            got = "none" if labels is None else str(len(labels))
            raise ValueError(
                f"guide.step needs the labels of the {len(predicted)} examples since the last "
                f"step, got {got}; without labels use Guidance(affinity=False)"
            )
        if int(labels.min()) < 0 or int(labels.max()) >= n:
            raise ValueError(
                f"labels must lie between 0 and {n - 1}, got {int(labels.min())} to "
                f"{int(labels.max())}; if the last Blockout layer does not give the classes, "
                "use Guide(..., classes=None)"
            )
        sums = predicted.new_zeros(n, n).index_add_(0, labels, predicted)
        counts = torch.bincount(labels, minlength=n).to(sums)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
            torch.distributed.all_reduce(counts)
        keep = math.exp(-1 / max(MEMORY * self.steps, 1))
        self.sums = sums if self.sums is None else self.sums.mul_(keep).add_(sums)
        self.counts = counts if self.counts is None else self.counts.mul_(keep).add_(counts)

    def _alike(self) -> Tensor:
        if self.similarity is not None:
            return self.similarity
        assert self.sums is not None and self.counts is not None
        return similarity_of(self.sums / self.counts.clamp_min(1e-12)[:, None])

    def _lead(self, m: Memberships, start: Tensor) -> dict[Memberships, Tensor]:
        """Moves P linearly to the best codes; after settling, jumps whenever the codes change.

        Returns what to settle.
        """
        begin, old = self._at(self.guidance.learn_from), self.codes
        looks = (self.done - begin) % max(self._at(LOOK_AGAIN), 1) == 0
        if old is None or looks or self.done == self._due(m):
            budget = max(self.guidance.class_budget, 1)
            self.codes = fitting_codes(self._alike(), m.clusters, budget, near=old).to(m.logits)
        assert self.codes is not None
        share = (self.done - begin) / (self._settling - begin)
        if share < 1:
            first = start.sigmoid()
            m.logits.copy_((first + share * (self.codes - first)).logit())
        elif share == 1 or old is None or not torch.equal(old, self.codes):
            return {m: self.codes}
        else:
            self._stay_settled(m)
        return {}

    def _final_probability(self, m: Memberships) -> float:
        """What replaces the ones when a set of nodes settles."""
        return 1.0 if m is self.classes else self.guidance.draw_on

    def _stay_settled(self, m: Memberships) -> None:
        """Undoes what gradients, momentum or weight decay moved."""
        probability = self._final_probability(m)
        between = 0.0 if probability == 1 else -SETTLED / 2
        m.settle((m.logits > between).to(m.logits), probability)

    # --- how many clusters ----------------------------------------------------------------------

    def _meet_budget(self, m: Memberships, start: Tensor) -> None:
        g, is_classes = self.guidance, m is self.classes
        begin, reach = self._at(g.learn_from), self._at(g.budget_by)
        share = min((self.done - begin) / max(reach - begin, 1), 1)
        first = float(start.sigmoid().sum(1).mean())
        goal = min(g.class_budget if is_classes else g.budget, first)
        goal = max(goal, 1) if is_classes else goal
        target = first + (goal - first) * share
        if g.shift == "all":
            shift_to(m.logits, target * m.nodes, dims=(0, 1))
        if g.shift == "both":
            shift_to(m.logits, target, dims=(1,))
        if g.shift in ("cluster", "both"):
            shift_to(m.logits, target * m.nodes / m.clusters, dims=(0,))
        if is_classes:
            poor = m.probabilities.sum(1) < 1
            if poor.any():
                rows = m.logits[poor]
                shift_to(rows, 1, dims=(1,))
                m.logits[poor] = rows

    def _chosen(self, m: Memberships) -> Tensor:
        """The most probable nodes of each cluster, as many as P has there; each class in one."""
        p = m.probabilities
        counts = p.sum(0).round().long()
        rank = p.argsort(dim=0, descending=True, stable=True).argsort(dim=0)
        chosen = (rank < counts).to(p)
        if m is self.classes:
            homeless = chosen.sum(1) == 0
            chosen[homeless, p[homeless].argmax(1)] = 1
        return chosen

    def _at(self, share: float) -> int:
        return round(share * self.steps)


@torch.no_grad()
def settle(
    layers: Sequence[BlockoutLayer],
    assignments: dict[Memberships, Tensor],
    probabilities: dict[Memberships, float] | None = None,
) -> None:
    """Sets memberships to zeros and ones, or to zeros and a probability per set of nodes.

    W~ is rescaled so that the weights of Eq. 5 stay the same wherever two nodes still share a
    cluster.
    """
    expected = [layer.expected_weight() for layer in layers]
    for memberships, c in assignments.items():
        memberships.settle(c, (probabilities or {}).get(memberships, 1.0))
    for layer, weight in zip(layers, expected, strict=True):
        p_out, p_in = layer.outputs.probabilities, layer.inputs.probabilities
        mask = masked_weight(torch.ones_like(weight), p_out, p_in)
        layer.weight.copy_(torch.where(mask > 0, weight / mask.clamp_min(1e-12), layer.weight))


def shift_to(logits: Tensor, total: float, dims: tuple[int, ...]) -> None:
    """Adds one number along ``dims``, in place, so that the probabilities sum to ``total`` there.

    >>> logits = torch.tensor([[-1., 0., 2.]])
    >>> shift_to(logits, 1.5, dims=(1,))
    >>> round(float(logits.sigmoid().sum()), 4)
    1.5
    """
    low = torch.full_like(logits.sum(dims, keepdim=True), -FARTHEST)
    high = -low
    for _ in range(32):
        middle = (low + high) / 2
        too_many = (logits + middle).sigmoid().sum(dims, keepdim=True) > total
        low, high = torch.where(too_many, low, middle), torch.where(too_many, middle, high)
    logits.add_((low + high) / 2)


def _given(similarity: Tensor | Sequence[int], classes: Memberships | None) -> Tensor:
    if classes is None:
        raise ValueError("a similarity of classes needs classes; use classes='last'")
    table = torch.as_tensor(similarity)
    if table.dim() == 1:
        table = (table[:, None] == table[None]).float()
    if table.shape != (classes.nodes, classes.nodes):
        raise ValueError(
            f"similarity must be one known group per class ({classes.nodes}) or a table "
            f"({classes.nodes}, {classes.nodes}), got shape {tuple(table.shape)}"
        )
    if not table.isfinite().all():
        raise ValueError("similarity must be finite numbers")
    return balanced(table.to(classes.logits))
