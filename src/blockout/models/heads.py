"""What stands above the trunk: the architectures of Fig. 7, as named layers in a row."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn

from blockout.compact import Branches, SparseLinear, describe_layers, rebuild_layers
from blockout.layers import BlockoutLinear, DropConnectLinear
from blockout.models.config import METHODS, Method


class Head(nn.Sequential):
    """Features to logits. FC1 is plain; the method is at work in FC2 and the classifier.

    ===========  =================================================================================
    baseline     classifier
    fc           fc1, norm1, act1, fc2, norm2, act2, classifier
    dropout      the same with drop1 and drop2 after the activations
    dropconnect  fc1, norm1, act1, fc2 (its activation inside), classifier
    blockout     as fc; fc2 owns P_0 and P_1, the classifier shares P_1 and owns P_2
    ===========  =================================================================================

    Batch normalisation stands between a sum and its activation, and such a sum has no bias. There
    is none after the DropConnect FC2: its inference averages the activation over the masks of its
    own sum, which a normalisation between the two would make wrong.

    Args:
        features, classes: width of the input and of the output.
        method: one of the above.
        nodes: width of FC1 and of FC2.
        clusters, hard, learned: for blockout, as in ``BlockoutLinear``.
        dropout: share of nodes (dropout) or weights (dropconnect) that a training step drops.
        layers: for a head that was compacted, what became of its layers, as ``describe`` says.

    Shape: (N, features) to (N, classes).

    >>> head = Head(168, 100, method="blockout", nodes=512, clusters=6)
    >>> [name for name, _ in head.named_children()]
    ['fc1', 'norm1', 'act1', 'fc2', 'norm2', 'act2', 'classifier']
    >>> head.classifier.inputs is head.fc2.outputs
    True
    """

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
        layers: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if method == "baseline":
            parts = {"classifier": nn.Linear(features, classes)}
        elif method == "dropconnect":
            parts = _dropconnect(features, nodes, classes, keep=1 - dropout)
        elif method == "blockout":
            parts = _blockout(features, nodes, classes, clusters, hard=hard, learned=learned)
        else:
            parts = _plain(features, nodes, classes, dropout if method == "dropout" else None)
        super().__init__(OrderedDict(parts))
        rebuild_layers(self, layers or {})
        self.method: Method = method
        self.specification = {
            "features": features, "classes": classes, "nodes": nodes, "clusters": clusters,
            "hard": hard, "learned": learned, "dropout": dropout,
        }  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """The arguments that build this head; folded or compact, Blockout is an ``fc`` head."""
        if self._is_compact():
            return {"method": "fc", **self.specification, "layers": describe_layers(self)}
        return {"method": self._method_as_it_stands(), **self.specification}

    def _is_compact(self) -> bool:
        """Has blocks in place of layers, or fewer nodes than it was made with."""
        if any(isinstance(module, Branches | SparseLinear) for module in self.modules()):
            return True
        widths = [m.out_features for n, m in self.named_children()
                  if n in ("fc1", "fc2") and type(m) is nn.Linear]  # fmt: skip
        return any(width != self.specification["nodes"] for width in widths)

    def _method_as_it_stands(self) -> Method:
        names = ("fc2", "classifier") if self.method != "baseline" else ("classifier",)
        kinds = {type(self.get_submodule(name)) for name in names}
        made = {"blockout": BlockoutLinear, "dropconnect": DropConnectLinear}
        if kinds == {made.get(self.method, nn.Linear)}:
            return self.method
        if kinds == {nn.Linear} and self.method == "blockout":
            return "fc"
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(
            f"a {self.method} head whose layers have become {found} cannot be described; save the "
            "model as it was trained, and fold or compact it after loading"
        )


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
