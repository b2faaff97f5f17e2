"""Memberships under guidance, beyond the paper: few, meaningful, and settled before the end.

The paper's loss alone leaves the network nearly dense and its groups of classes arbitrary. A
``Guide`` adds, along a schedule of the training,

- a **budget**: logits are shifted so that a node belongs to so many clusters on average, falling
  from where they start to a target;
- an **affinity**: classes that the network takes for each other are put into the same clusters;
- **settling**: memberships become zeros and ones, and the rest of the training has a fixed
  structure, so that cutting the network along it afterwards changes nothing.

All is measured in shares of the training, so that a choice means the same for short and long runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from blockout.affinity import balanced, fitting_codes, similarity_of
from blockout.layers import BlockoutLayer, memberships_of
from blockout.masking import block_mask
from blockout.memberships import Estimator, Memberships

Shift = Literal["all", "cluster", "both"]
MEMORY = 0.05
"""Share of the training over which the predictions for a class are averaged."""
LOOK_AGAIN = 0.05
"""Share of the training after which the codes of classes are chosen anew."""
FEW_STEPS = 500
"""A shorter training learns later which classes are alike."""
FARTHEST = 100.0
"""No shift of logits is larger: P is 0 or 1 there."""


@dataclass(frozen=True)
class Guidance:
    """What a ``Guide`` aims at, and when; times are shares of the training."""

    budget: float = 1.15
    """Clusters that a hidden node belongs to on average in the end; fewer make it smaller."""
    class_budget: float = 1.5
    """Clusters that a class belongs to on average in the end, at most; each has at least one."""
    shift: Shift = "both"
    """What meets the budget: all logits of a set of nodes are shifted alike (all), those of each
    cluster (cluster: equal branches), or of each node and each cluster in turn (both)."""
    affinity: bool = True
    """Classes that are alike get the same clusters; false: the loss alone decides."""
    learn_from: float = 0.05
    """When memberships begin to learn; before, features are mostly noise."""
    budget_by: float = 0.3
    """When the budget is reached; it falls evenly from the beginning."""
    settle_at: float = 0.35
    """When memberships become zeros and ones; 1 for never."""
    group_at: float | None = None
    """Until when classes may still change their clusters, as the network learns which are alike.
    Default: 0.5, in trainings of fewer than 500 steps, which learn it later, 0.6."""
    estimator: Estimator = "two-sided"
    """How memberships learn from the loss: eq9 as printed in the paper, or two-sided."""

    def __post_init__(self) -> None:
        times = (self.learn_from, self.budget_by, self.settle_at)
        if not 0 <= self.learn_from < self.budget_by <= self.settle_at <= 1:
            raise ValueError(
                "learn_from, budget_by and settle_at must be shares of the training in this order, "
                f"between 0 and 1, got {', '.join(f'{t:g}' for t in times)}"
            )
        if self.group_at is not None and not 0 <= self.group_at <= 1:
            raise ValueError(f"group_at must lie between 0 and 1, got {self.group_at:g}")
        for name, value in (("budget", self.budget), ("class_budget", self.class_budget)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number of clusters, got {value:g}")
        for name, value, known in (
            ("shift", self.shift, get_args(Shift)),
            ("estimator", self.estimator, get_args(Estimator)),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


class Guide:
    """Guides the learned memberships of a model through a training of ``steps`` steps.

    Call ``step`` after each step of the optimiser, with the labels of the images since the last:

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
        model: with learned Blockout layers; they are changed in place.
        steps: of the whole training.
        guidance: what to aim at.
        classes: the memberships of the classes, by default those of the last layer's outputs; None
            where the last Blockout layer does not give the classes: then there is no affinity.
        similarity: of the classes (classes, classes), known beforehand; or one group a class, as
            superclasses. By default the network's own: the cosine of the centred running means of
            what it predicts for each class, so classes are alike that it takes for each other and
            for the same others.

    With several processes (``torch.distributed``) the means are those over all of them. What a
    checkpoint needs is in ``state_dict``.
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
            raise ValueError(f"steps must be at least 1, the length of the training, got {steps}")
        self.guidance = guidance or Guidance()
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
        self._predicted: list[Tensor] = []
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
        """Whether the whole structure is fixed by now."""
        return self.fixed == len(self.sets)

    @property
    def fixed(self) -> int:
        """How many sets of nodes have the memberships they will keep."""
        return sum(self.done >= self._due(m) for m in self.sets)

    def _due(self, m: Memberships) -> float:
        """The step after which a set of nodes keeps the memberships it has."""
        return (
            max(self._grouping, self._settling)
            if self._is_led(m)
            else (self._settling if self.guidance.settle_at < 1 else math.inf)
        )

    @property
    def _grouping(self) -> int:
        """The step after which no class changes its clusters."""
        share = self.guidance.group_at
        return self._at((0.6 if self.steps < FEW_STEPS else 0.5) if share is None else share)

    @property
    def _settling(self) -> int:
        """The step that settles; in the shortest training the first that learns."""
        g = self.guidance
        return max(self._at(g.settle_at), self._at(g.learn_from) + 1)

    def _is_led(self, m: Memberships) -> bool:
        """Whether likeness decides, and neither loss nor shifts."""
        return self._has_affinity and m is self.classes

    def close(self) -> None:
        """Looks at no more predictions; for who stops before it is settled."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def step(self, labels: Int64[Tensor, "n"] | None = None) -> None:
        """After a step of the optimiser: notes what was seen, moves the logits, settles in time."""
        if self._observes and not self.settled:
            self._learn_from_predictions(labels)
        self.done += 1
        learning, fixing = self.done > self._at(self.guidance.learn_from), {}
        for m, start in zip(self.sets, self.start, strict=True):
            if self.done > self._due(m):
                _stay_settled(m)
            elif not learning:
                m.logits.copy_(start)
            elif self._is_led(m):
                fixing |= self._lead(m, start)
            else:
                self._meet_budget(m, start)
                fixing |= {m: self._chosen(m)} if self.done == self._due(m) else {}
        if fixing:  # all at once: between two steps of rescaling weights could be any size
            settle(self.layers, fixing)
        if self.settled:
            self.close()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers that a continued training needs."""
        return {
            "done": self.done, "sums": self.sums, "counts": self.counts, "codes": self.codes,
            "similarity": self.similarity, "start": self.start,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The state of a ``Guide`` of the same model, on whatever device this one is."""
        device = self.start[0].device
        self.done, self.start = state["done"], [t.to(device) for t in state["start"]]
        self.sums, self.counts, self.codes, self.similarity = (
            None if state[name] is None else state[name].to(device)
            for name in ("sums", "counts", "codes", "similarity")
        )
        if self.settled:
            self.close()

    # --- which classes are alike ----------------------------------------------------------------

    def _observe(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        recomputing = torch._C._current_graph_task_id() != -1
        if layer.training and not recomputing and not self.settled:
            logits = output.detach()
            logits = logits.mean((2, 3)) if logits.dim() == 4 else logits
            wide = torch.promote_types(logits.dtype, torch.float32)
            self._predicted.append(logits.to(wide).softmax(1))

    def _learn_from_predictions(self, labels: Tensor | None) -> None:
        assert self.classes is not None
        n = self.classes.nodes
        predicted = torch.cat(self._predicted) if self._predicted else torch.empty(0, n)
        self._predicted.clear()
        if labels is None or len(labels) != len(predicted):
            got = "none" if labels is None else str(len(labels))
            raise ValueError(
                f"guide.step takes the labels of the {len(predicted)} examples since the last "
                f"step, got {got}; without labels write Guidance(affinity=False)"
            )
        if int(labels.min()) < 0 or int(labels.max()) >= n:
            raise ValueError(
                f"labels must lie between 0 and {n - 1}, got {int(labels.min())} to "
                f"{int(labels.max())}; where the last Blockout layer does not give the classes "
                "write Guide(..., classes=None)"
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
        """Evenly from where they start to the codes that fit, until others settle; then at once,
        where the network has learned better which classes are alike. Returns what to settle."""
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
            _stay_settled(m)
        return {}

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
        """As many ones in each cluster as P has there, the most probable; one for each class."""
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
def settle(layers: Sequence[BlockoutLayer], assignments: dict[Memberships, Tensor]) -> None:
    """Fixes memberships to zeros and ones; W~ is rescaled so that Eq. 5's weights stay as they were
    wherever two nodes still share a cluster."""
    expected = [layer.expected_weight() for layer in layers]
    for memberships, c in assignments.items():
        memberships.settle(c)
    for layer, weight in zip(layers, expected, strict=True):
        mask = block_mask(
            layer.outputs.probabilities, layer.per_feature(layer.inputs.probabilities)
        )
        mask = mask.to(weight).reshape(mask.shape + (1,) * (weight.dim() - 2))
        layer.weight.copy_(torch.where(mask > 0, weight / mask.clamp_min(1e-12), layer.weight))


def shift_to(logits: Tensor, total: float, dims: tuple[int, ...]) -> None:
    """Adds one number along ``dims`` so that the probabilities sum to ``total`` there, in place.

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


def _stay_settled(m: Memberships) -> None:
    """What momentum or decay moved is put back."""
    m.settle((m.logits > 0).to(m.logits))


def _given(similarity: Tensor | Sequence[int], classes: Memberships | None) -> Tensor:
    if classes is None:
        raise ValueError("a similarity of classes needs classes; leave classes='last'")
    table = torch.as_tensor(similarity)
    if table.dim() == 1:
        table = (table[:, None] == table[None]).float()
    if table.shape != (classes.nodes, classes.nodes):
        raise ValueError(
            f"similarity must be one group for each of the {classes.nodes} classes or a table "
            f"({classes.nodes}, {classes.nodes}), got shape {tuple(table.shape)}"
        )
    if not table.isfinite().all():
        raise ValueError("similarity must be finite numbers")
    return balanced(table.to(classes.logits))
