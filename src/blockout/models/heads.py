"""The heads of Fig. 7: what follows the trunk, as a sequence of named layers."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from blockout.compact import DenseBlocks, SparseLinear, describe_layers, rebuild_layers
from blockout.dropconnect import DropConnectLinear
from blockout.layers import BlockoutLinear
from blockout.models.config import METHODS, Method
from blockout.structure.nodes import Layer

Form = Literal["trained", "dense", "compact"]
LINEAR = "linear"
"""The name of the layer beside the others."""
HEAD_LAYERS = (Layer("head.fc2", "P_0", "P_1"), Layer("head.classifier", "P_1", "P_2"))
"""The Blockout layers of an ``ImageClassifier`` with a blockout head, for its ``Structure``."""


class Head(nn.Sequential):
    """Maps features to logits. FC1 is plain; FC2 and the classifier apply the method.

    ===========  =================================================================================
    baseline     classifier
    fc           fc1, norm1, act1, fc2, norm2, act2, classifier
    dropout      the same with drop1 and drop2 after the activations
    dropconnect  fc1, norm1, act1, fc2 (with its activation), classifier
    blockout     as fc; fc2 owns P_0 and P_1, the classifier shares P_1 and owns P_2
    ===========  =================================================================================

    Batch normalisation comes between a layer and its activation, and such a layer has no bias. The
    DropConnect FC2 has none: its inference averages the activation over random masks of its own
    inputs, and a normalisation in between would make that average wrong.

    With ``with_linear`` there is also a linear classifier of the features. Each learns as if it
    were alone; the answer is the mean of their logits.

    Args:
        features, classes: the widths of the input and the output.
        method: one of the above.
        nodes: the width of FC1 and FC2.
        clusters, hard, learned: for blockout, as in ``BlockoutLinear``.
        dropout: the share of nodes (dropout) or weights (dropconnect) dropped in a training step.
        with_linear: a linear classifier beside the other layers; not for a baseline.
        form: a blockout head as it is trained, folded by ``to_dense``, or cut by ``to_branches``.
        layers: the layers of a compact head, as in ``describe``.

    Attributes:
        leads: whether what makes the features learns from the linear classifier alone.
        led: with a linear classifier, in training, what that says of the last features. The head
            then gives the logits of its other layers; add the loss of ``led`` to theirs.

    Shape: (N, features) to (N, classes).

    >>> head = Head(168, 100, method="blockout", nodes=512, clusters=6)
    >>> [name for name, _ in head.named_children()]
    ['fc1', 'norm1', 'act1', 'fc2', 'norm2', 'act2', 'classifier']
    >>> head.classifier.inputs is head.fc2.outputs
    True
    """

    led: Tensor

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        method: Method = "blockout",
        nodes: int = 512,
        clusters: int = 6,
        hard: bool = True,
        learned: bool = True,
        dropout: float = 0.5,
        with_linear: bool = False,
        form: Form = "trained",
        layers: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if layers is not None and method == "fc":  # what compact heads were called earlier
            method, form = "blockout", "compact"
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        forms = get_args(Form) if method == "blockout" else ("trained",)
        if form not in forms:
            raise ValueError(f"form of a {method} head must be {' or '.join(forms)}, got {form!r}")
        if with_linear and method == "baseline":
            raise ValueError("a baseline is a linear classifier; with_linear is for other heads")
        plain = nn.Linear(features, classes) if with_linear else None  # as a baseline begins
        if method == "baseline":
            parts = {"classifier": nn.Linear(features, classes)}
        elif method == "dropconnect":
            parts = _dropconnect(features, nodes, classes, keep=1 - dropout)
        elif method == "blockout" and form == "trained":
            parts = _blockout(features, nodes, classes, clusters, hard=hard, learned=learned)
        else:
            parts = _plain(features, nodes, classes, dropout if method == "dropout" else None)
        if plain is not None:
            parts[LINEAR] = plain
        super().__init__(OrderedDict(parts))
        rebuild_layers(self, layers or {})
        self.method: Method = method
        self.leads = False
        self.specification = {
            "features": features,
            "classes": classes,
            "nodes": nodes,
            "clusters": clusters,
            "hard": hard,
            "learned": learned,
            "dropout": dropout,
            **({"with_linear": True} if with_linear else {}),
        }

    @property
    def has_linear(self) -> bool:
        """Whether a linear classifier stands beside the other layers."""
        return LINEAR in self._modules

    def forward(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n classes"]:
        if not self.has_linear:
            return super().forward(x)
        said, plain = x.detach() if self.leads else x, self.get_submodule(LINEAR)(x)
        for name, layer in self.named_children():
            said = said if name == LINEAR else layer(said)
        if self.training:
            self.led = plain
            return said
        return (said + plain) / 2

    def without_linear(self) -> nn.Module:
        """The other layers alone: these very modules, in a sequence of their own."""
        return nn.Sequential(
            OrderedDict((name, one) for name, one in self.named_children() if name != LINEAR)
        )

    def __getstate__(self) -> dict[str, Any]:
        """Without ``led``: what belongs to one step is neither copied nor saved."""
        return {name: value for name, value in vars(self).items() if name != "led"}

    def describe(self) -> dict[str, Any]:
        """The arguments that build this head."""
        described = {"method": self.method, **self.specification}
        if self.form != "trained":
            described["form"] = self.form
        if self.form == "compact":
            described["layers"] = describe_layers(self)
        return described

    @property
    def form(self) -> Form:
        """Whether the layers are those that were trained, or what folding or cutting left."""
        if self.method != "baseline" and self._is_compact():
            return "compact"
        names = ("classifier",) if self.method == "baseline" else ("fc2", "classifier")
        kinds = {type(self.get_submodule(name)) for name in names}
        trained = {"blockout": BlockoutLinear, "dropconnect": DropConnectLinear}
        if kinds == {trained.get(self.method, nn.Linear)}:
            return "trained"
        if kinds == {nn.Linear} and self.method == "blockout":
            return "dense"
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(
            f"cannot describe a {self.method} head whose layers have become {found}; save the "
            "model as it was trained, and fold or compact it after loading"
        )

    def _is_compact(self) -> bool:
        """Has blocks in place of layers, or fewer nodes than at first."""
        if any(isinstance(module, DenseBlocks | SparseLinear) for module in self.modules()):
            return True
        plain = [m for m in (self.fc1, self.fc2) if type(m) is nn.Linear]
        return any(layer.out_features != self.specification["nodes"] for layer in plain)


def _normalised(name: str, layer: nn.Module, nodes: int) -> dict[str, nn.Module]:
    return {f"fc{name}": layer, f"norm{name}": nn.BatchNorm1d(nodes), f"act{name}": nn.ReLU()}


def _plain(
    features: int, nodes: int, classes: int, drop_rate: float | None
) -> dict[str, nn.Module]:
    parts: dict[str, nn.Module] = {}
    for name, width in (("1", features), ("2", nodes)):
        parts |= _normalised(name, nn.Linear(width, nodes, bias=False), nodes)
        if drop_rate is not None:
            parts[f"drop{name}"] = nn.Dropout(drop_rate)
    return parts | {"classifier": nn.Linear(nodes, classes)}


def _dropconnect(features: int, nodes: int, classes: int, keep: float) -> dict[str, nn.Module]:
    parts = _normalised("1", nn.Linear(features, nodes, bias=False), nodes)
    parts["fc2"] = DropConnectLinear(nodes, nodes, keep=keep, activation=nn.ReLU())
    parts["classifier"] = DropConnectLinear(nodes, classes, keep=keep)
    return parts


def _blockout(
    features: int, nodes: int, classes: int, clusters: int, *, hard: bool, learned: bool
) -> dict[str, nn.Module]:
    fc2 = BlockoutLinear(nodes, nodes, clusters, hard=hard, learned=learned, bias=False)
    classifier = BlockoutLinear(
        nodes, classes, clusters, inputs=fc2.outputs, hard=hard, learned=learned
    )
    return {
        **_normalised("1", nn.Linear(features, nodes, bias=False), nodes),
        **_normalised("2", fc2, nodes),
        "classifier": classifier,
    }
