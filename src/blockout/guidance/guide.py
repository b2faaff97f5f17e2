"""Guided training, beyond the paper: few, meaningful memberships in a network that keeps learning.

The paper's loss alone leaves the network nearly dense and its groups of classes arbitrary. A
``Guide`` waits, then narrows the network:

1. **It waits** until it can rely on which classes the network confuses. Until then, every node
   belongs to every cluster with one probability, ``draw_on``: 1 is a plain network, 0.5 draws as
   the paper does at first.
2. **It chooses codes**: classes that the network confuses get the same clusters, and each hidden
   node those clusters that it serves already. A cluster that serves more classes gets more nodes.
3. **It narrows**: P moves in a straight line to the codes. Then the structure is settled: what is
   zero stays zero, so cutting the network apart afterwards changes nothing. With the last step
   the others become one, and the weights take over their probabilities.

If it cannot rely on what it sees, it leaves the network whole and says so. If you tell it the
accuracy on a hold-out now and then (``hear``), it asks what narrowing costs, and widens hidden
layers where that is too much.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from blockout.guidance.certain import make_certain
from blockout.guidance.class_codes import balanced, fitting_codes
from blockout.guidance.cost import Cost
from blockout.guidance.node_codes import codes_of_nodes
from blockout.guidance.pace import Pace
from blockout.guidance.settings import Guidance
from blockout.guidance.similarity import SimilarityOfClasses
from blockout.layers import BlockoutLayer, memberships_of
from blockout.masking import masked_weight
from blockout.memberships import Memberships

LOOKS = 40
"""How often the guide looks at what it has seen, over the training run."""
RELIABLE = 0.8
"""From this ``SimilarityOfClasses.reliability`` on, the similarity of classes is believed."""
TOLD_APART = 0.8
"""The network must tell this share of the classes apart: before, all of them look similar."""
CHOOSING = 0.5
"""Codes may change in the first half of the narrowing."""
WIDER = 1.5
"""Factor of the budget where narrowing costs too much."""
TOO_LATE = 0.85
"""After this share of the training run, nodes could not learn to use more clusters."""


class GuideWarning(UserWarning):
    """The guide could not do its work."""


class Guide:
    """Guides the learned memberships of a model through a training run of ``steps`` steps.

    Call ``step`` after each optimiser step, with the labels of the examples since the last call:

    >>> from blockout import BlockoutLinear, parameter_groups
    >>> net = nn.Sequential(BlockoutLinear(8, 16, clusters=2), nn.ReLU(), nn.Linear(16, 4))
    >>> net[2] = BlockoutLinear(16, 4, clusters=2, inputs=net[0].outputs)
    >>> guide = Guide(net, steps=20, similarity=[0, 0, 1, 1])
    >>> optimizer = torch.optim.SGD(parameter_groups(net, lr=0.1))
    >>> for _ in range(20):
    ...     x, y = torch.randn(32, 8), torch.randint(4, (32,))
    ...     nn.functional.cross_entropy(net(x), y).backward()
    ...     optimizer.step()
    ...     guide.step(y)
    >>> net[2].outputs.probabilities.unique().tolist()
    [0.0, 1.0]
    >>> print(guide.summary())
    narrowed from step 3 to step 9 of 20: 4 classes in 2 clusters of 2 to 2 classes, ...

    Args:
        model: has learned Blockout layers, which are changed in place.
        steps: the length of the whole training run.
        guidance: what to aim for.
        classes: the memberships of the classes, by default the outputs of the last Blockout layer.
            None if that layer does not give the classes; no class is similar to another then.
        similarity: a known similarity of classes (classes, classes), or the known group of each
            class, such as its superclass. By default the guide measures it: the cosine of the
            centred means per class of the roots of predicted probabilities, so classes are similar
            if the network confuses them with each other and with the same other classes.

    The guide decides P alone; what gradients do to the logits is undone. With several processes
    (``torch.distributed``), means are taken over all of them. ``state_dict`` holds what a
    checkpoint needs.
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
        self.model, self.guidance = model, (guidance or Guidance()).resolved()
        self.steps, self.done = steps, 0
        self.layers = [m for m in model.modules() if isinstance(m, BlockoutLayer)]
        found = list(memberships_of(model).values())
        self.classes = (found[-1] if found else None) if classes == "last" else classes
        self.sets = [m for m in found if m.learned]
        if not self.sets:
            raise ValueError("the model has no learned memberships; there is nothing to guide")
        self.begun: int | None = None
        self.whole = False
        self.reliability = self.told_apart = 0.0
        self.codes: dict[Memberships, Tensor] = {}
        self.budget, self.cost = self.guidance.budget, Cost(self.guidance.max_loss)
        self.widened_at: int | None = None
        self.widened_for = 0.0
        self._origins: dict[Memberships, Tensor] = {}
        self.similarity = None if similarity is None else _given(similarity, self.classes)
        self.measured: SimilarityOfClasses | None = None
        self._predicted: Tensor | None = None
        self._hooks: list[RemovableHandle] = []
        if self.similarity is None and self._uses_similarity:
            assert self.classes is not None
            device = self.classes.logits.device
            self.measured = SimilarityOfClasses(self.classes.nodes, steps, device)
            says_classes = next(m for m in self.layers if m.outputs is self.classes)
            self._hooks.append(says_classes.register_forward_hook(self._observe))
        else:
            self.reliability = self.told_apart = 1.0
        self.pace = Pace(self.layers) if self.guidance.steady else None

    @property
    def _uses_similarity(self) -> bool:
        return self.guidance.affinity and self.classes in self.sets

    @property
    def settled(self) -> bool:
        """Whether all memberships are final."""
        return self.begun is not None and self.done >= self._end

    @property
    def _end(self) -> int:
        """The step that settles."""
        takes = max(round(self.guidance.narrowing * self.steps), 1)
        return min(self._moves_from + takes, self.steps)

    @property
    def _moves_from(self) -> int:
        """The step at which P began to move to the codes of now."""
        assert self.begun is not None
        return self.begun if self.widened_at is None else self.widened_at

    def close(self) -> None:
        """Stops reading predictions and scaling gradients; call it when training ends early."""
        self._stop_reading()
        if self.pace is not None:
            self.pace.close()

    @torch.no_grad()
    def step(self, labels: Int64[Tensor, " n"] | None = None) -> None:
        """After an optimiser step: records predictions, moves memberships."""
        if self.pace is not None:
            self.pace.after_optimiser()
        if self._hooks:
            self._learn_from_predictions(labels)
        if self.done == 0:
            self._start()
            if self.pace is not None:
                self.pace.resume()
        self.done += 1
        if self._looks:
            self._look()
        for m in self.sets:
            m.put(self._wanted(m))
        if self.pace is not None:
            self.pace.after_memberships()
        if self.settled:
            self._stop_reading()
        if self.done >= self.steps:
            self.close()
            make_certain(self.model)

    @torch.no_grad()
    def hear(self, accuracy: float, examples: int) -> None:
        """Tells the guide the accuracy on a hold-out, as inference has it now.

        Call it now and then, for example after each epoch. If narrowing has cost more than
        ``Guidance.max_loss``, twice in a row, hidden nodes get more clusters.

        Args:
            accuracy: in per cent.
            examples: size of the hold-out.
        """
        if self.begun is None:
            self.cost.wide(accuracy)
        elif not self.whole and self._share >= CHOOSING:
            too_high = self.cost.is_too_high(accuracy, examples)
            if too_high and self.done < TOO_LATE * self.steps:
                self._widen()

    def summary(self) -> str:
        """What the guide has done so far, and why, in one sentence."""
        seen = (
            f"it tells {self.told_apart:.0%} of the classes apart, {TOLD_APART:.0%} needed; "
            f"reliability {self.reliability:.2f}, {RELIABLE:g} needed"
        )
        if self.begun is None:
            return f"has waited for {self.done} of {self.steps} steps ({seen})"
        if self.whole:
            return (
                f"left the network whole at step {self.begun} of {self.steps}: it could not rely "
                f"on which classes are similar ({seen}); train longer or give known groups"
            )
        did = "narrowed" if self.settled else "narrows"
        text = f"{did} from step {self.begun} to step {self._end} of {self.steps}"
        if self.classes in self.codes:
            sizes = self.codes[self.classes].sum(0)
            used = sizes[sizes > 0]
            text += (
                f": {self.classes.nodes} classes in {len(used)} clusters of {int(used.min())} to "
                f"{int(used.max())} classes"
            )
        if self.widened_at is not None:
            text += (
                f"; narrowing cost {self.widened_for:.1f} points on the hold-out, so from step "
                f"{self.widened_at} on hidden nodes got up to {self.budget:.3g} clusters on average"
            )
        return f"{text}, {self._left():.0%} of the connections left"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training run needs."""
        return {
            "done": self.done,
            "begun": self.begun,
            "whole": self.whole,
            "reliability": self.reliability,
            "told_apart": self.told_apart,
            "codes": [self.codes.get(m) for m in self.sets],
            "likeness": None if self.measured is None else self.measured.state_dict(),
            "cost": self.cost.state_dict(),
            "budget": self.budget,
            "widened_at": self.widened_at,
            "widened_for": self.widened_for,
            "origins": [self._origins.get(m) for m in self.sets],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the state of a ``Guide`` of the same model, after the model's own state."""
        state = self.state_dict() | state  # earlier versions saved less
        self.done, self.begun, self.whole = state["done"], state["begun"], state["whole"]
        self.reliability, self.told_apart = state["reliability"], state["told_apart"]
        self.codes, self._origins = (
            {
                m: values.to(m.logits.device)
                for m, values in zip(self.sets, state[name], strict=True)
                if values is not None
            }
            for name in ("codes", "origins")
        )
        self.budget = state["budget"]
        self.widened_at, self.widened_for = state["widened_at"], state["widened_for"]
        self.cost.load_state_dict(state["cost"])
        if self.measured is not None:
            self.measured.load_state_dict(state["likeness"])
        if self.settled:
            self._stop_reading()
        if self.pace is not None:
            self.pace.resume()

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
        assert self.classes is not None and self.measured is not None
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
        self.measured.add(predicted, labels)

    def _stop_reading(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # --- when, and to what ------------------------------------------------------------------------

    @property
    def _looks(self) -> bool:
        g = self.guidance
        if self.done < round(g.narrow_from * self.steps) or self.whole or self.widened_at:
            return False
        choosing = self.begun is None or self._share < CHOOSING
        return choosing and self.done % max(self.steps // LOOKS, 1) == 0

    def _look(self) -> None:
        """Begins to narrow, or chooses codes again, or gives up waiting."""
        if self.measured is not None:
            self.reliability = self.measured.reliability()
            self.told_apart = self.measured.told_apart()
        if self.reliability >= RELIABLE and self.told_apart >= TOLD_APART:
            self._choose_codes()
            self.begun = self.done if self.begun is None else self.begun
        elif self.begun is None and self.done >= self.guidance.narrow_until * self.steps:
            self.codes = {m: torch.ones_like(m.logits) for m in self.sets}
            self.begun, self.whole = self.done, True
            warnings.warn(f"the guide {self.summary()}", GuideWarning, stacklevel=4)

    def _choose_codes(self) -> None:
        known: dict[Memberships, Tensor] = {}
        m = self.classes
        if self._uses_similarity and m is not None:
            table = self.measured.table() if self.measured is not None else self.similarity
            assert table is not None
            budget = max(self.guidance.class_budget, 1)
            near = self.codes.get(m)
            known[m] = fitting_codes(table, m.clusters, budget, near=near).to(m.logits)
        chosen = codes_of_nodes(self.layers, known, self.budget)
        self.codes = {m: chosen[m].to(m.logits) for m in self.sets}

    def _widen(self) -> None:
        """Hidden nodes keep the clusters they have and get more; classes keep theirs."""
        known = {m: code for m, code in self.codes.items() if m is self.classes}
        most = max((m.clusters for m in self.sets if m is not self.classes), default=1)
        if self.budget >= most:
            return
        self.budget = min(self.budget * WIDER, most)
        self._origins = {m: self._wanted(m) for m in self.sets}
        chosen = codes_of_nodes(self.layers, known, self.budget)
        self.codes = {m: self.codes[m].maximum(chosen[m].to(m.logits)) for m in self.sets}
        self.widened_at, self.widened_for = self.done, self.cost.points
        self.cost.ask_again()

    def _start(self) -> None:
        """Gives all memberships one probability, and keeps the weights of inference."""
        expected = [layer.expected_weight() for layer in self.layers]
        for m in self.sets:
            m.put(self._wanted(m))
        for layer, weight in zip(self.layers, expected, strict=True):
            ones = torch.ones_like(weight)
            mask = masked_weight(ones, layer.outputs.probabilities, layer.inputs.probabilities)
            layer.weight.copy_(torch.where(mask > 0, weight / mask, layer.weight))

    def _wanted(self, m: Memberships) -> Tensor:
        """P of a set of nodes after this step."""
        p = self.guidance.draw_on
        assert p is not None
        start = torch.full_like(m.logits, p)
        if self.begun is None:
            return start
        kept = 1.0 if m is self.classes else p
        start = self._origins.get(m, start)
        return start + self._share * (self.codes[m] * kept - start)

    @property
    def _share(self) -> float:
        """How far P has come on its way to the codes."""
        if self.settled:
            return 1.0
        return (self.done - self._moves_from) / (self._end - self._moves_from)

    def _left(self) -> float:
        """Share of the connections of all layers that the codes leave."""
        left = total = 0
        for layer in self.layers:
            pair = [self.codes.get(m, m.probabilities) for m in (layer.outputs, layer.inputs)]
            joined = (pair[0] > 0).float() @ (pair[1] > 0).float().T > 0
            left, total = left + int(joined.sum()), total + joined.numel()
        return left / total


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
