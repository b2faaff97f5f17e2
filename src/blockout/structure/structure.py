"""What a network has become: which nodes and classes belong together, and what is left."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from blockout.files import read_bytes, write_text
from blockout.graph import living_codes
from blockout.structure import diagrams, sources
from blockout.structure.nodes import ClassGroup, Cost, Layer, LayerCost, NodeSet, Rows
from blockout.structure.text import as_text

if TYPE_CHECKING:
    import numpy as np

    from blockout.structure.groups import Agreement, Consistency

Taxonomy = Sequence[str] | Sequence[int] | Mapping[str, str] | Mapping[str, int]
"""The known group of each class, in the order of the classes or by name."""


class Neighbour(NamedTuple):
    """A class and how similar its memberships are, -1 to 1."""

    name: str
    similarity: float


@dataclass(frozen=True, repr=False)
class Structure:
    """The branching of a network at a threshold: sets of nodes, connections and groups of classes.

    A node belongs to a cluster where P >= threshold. Two nodes of neighbouring sets are connected
    where they share a cluster. A connection is left where both of its nodes are alive: something
    living feeds them and something living reads them. The classes are the nodes of the last set
    that no Blockout layer reads.

    ``class_groups`` group the classes by memberships; a ``taxonomy`` holds the groups known from
    elsewhere. ``print`` describes a structure; ``to_dot`` and ``to_mermaid`` draw it.

    >>> import blockout
    >>> halves = blockout.Memberships.given(torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1]]))
    >>> fc = blockout.BlockoutLinear(8, 4, clusters=2, outputs=halves)
    >>> found = Structure.from_model(fc, classes=["cat", "dog", "oak", "fir"])
    >>> found
    Structure(2 sets of nodes, 4 classes, threshold 0.5: 32 of 32 weights left)
    >>> [[found.classes[c] for c in group.members] for group in found.class_groups]
    [['cat', 'dog'], ['oak', 'fir']]
    >>> found.nearest("oak", 1)
    (Neighbour(name='fir', similarity=1.0),)
    >>> found.agreement(["animal", "animal", "plant", "plant"]).auc
    1.0
    >>> Structure.from_json(found.to_json()) == found
    True
    """

    memberships: tuple[tuple[str, Rows], ...]
    """P of each set of nodes by name, in float32."""
    layers: tuple[Layer, ...]
    """The Blockout layers between the sets; nothing else is counted or drawn."""
    threshold: float = 0.5
    """A node belongs to a cluster where P >= threshold."""
    classes: tuple[str, ...] = ()
    """The names of the classes; by default their numbers."""
    taxonomy: tuple[str, ...] | None = None
    """The known group of each class, for example from the folders of the images."""
    group_count: int | None = None
    """How many groups of classes to form. Default: as many as the taxonomy has, but no more than
    there are classes with different memberships; without a taxonomy, the number with the best mean
    silhouette, up to twice the clusters."""

    def __post_init__(self) -> None:
        rows = tuple((name, _as_float32(name, p)) for name, p in self.memberships)
        object.__setattr__(self, "memberships", rows)
        _require_sound(self)
        if not self.classes:
            names = tuple(str(number) for number in range(self.class_set.nodes))
            object.__setattr__(self, "classes", names)
        _require_names(self)

    # --- where it comes from ----------------------------------------------------------------------

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        threshold: float = 0.5,
        classes: Sequence[str] | None = None,
        *,
        taxonomy: Taxonomy | None = None,
        group_count: int | None = None,
        input_size: Sequence[int] | None = None,
    ) -> Self:
        """The structure of a model's Blockout layers as they are now.

        Args:
            model: any module with Blockout layers.
            threshold: a node belongs to a cluster where P >= threshold.
            classes: the names of the nodes of the last set.
            taxonomy: the known group of each class, in order or by name.
            group_count: how many groups of classes to form.
            input_size: the shape of one input without the batch, such as (3, 224, 224). A forward
                pass then counts the positions at which each layer works. Without it, multiply-adds
                of a convolution are those of one output position.
        """
        parts = sources.parts_of_model(model, input_size)
        names = () if classes is None else tuple(classes)
        structure = cls(**parts, threshold=threshold, classes=names, group_count=group_count)
        return structure if taxonomy is None else structure.with_taxonomy(taxonomy)

    @classmethod
    def from_memberships(
        cls,
        memberships: "Mapping[str, Tensor | np.ndarray]",
        layers: Sequence[Layer],
        *,
        classes: Sequence[str] = (),
        taxonomy: Sequence[str] | None = None,
    ) -> Self:
        """From P of each set of nodes (nodes, clusters), by name and in order."""
        rows: Any = tuple(memberships.items())
        known = None if taxonomy is None else tuple(taxonomy)
        return cls(rows, tuple(layers), classes=tuple(classes), taxonomy=known)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads a file that ``save`` has written."""
        path = Path(path)
        if path.is_dir():
            raise ValueError(
                f"{path} is a folder; for a run folder use blockout.runs.Run.open({str(path)!r})"
                ".structure"
            )
        if not path.exists():
            raise FileNotFoundError(
                f"there is no structure file {path}; `blockout structure RUN --format json` writes "
                "one"
            )
        try:
            text = read_bytes(path).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a structure in JSON: {error}") from error
        return cls.from_json(text, str(path))

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> Self:
        """From the text of ``to_json``; what is ``derived`` there is computed again.

        Error messages call the text ``source``.
        """
        parts = sources.parts_of_document(text, source)
        try:
            return cls(**parts)
        except ValueError as error:
            raise ValueError(f"{source} is damaged: {error}") from error

    def to_json(self) -> str:
        return json.dumps(self.document(), ensure_ascii=False, allow_nan=False) + "\n"

    def save(self, path: Path | str) -> None:
        """Writes ``to_json`` in one step: the file is whole or not there."""
        write_text(Path(path), self.to_json())

    def document(self) -> dict[str, Any]:
        """What ``to_json`` writes; ``derived`` holds what a reader could also compute."""
        return {
            "format": sources.FORMAT,
            "version": sources.VERSION,
            "threshold": self.threshold,
            "group_count": self.group_count,
            "classes": self.classes,
            "taxonomy": self.taxonomy,
            "layers": [asdict(layer) for layer in self.layers],
            "memberships": sources.shortened(self.memberships),
            "derived": {
                "sets": {name: nodes.facts() for name, nodes in self.sets.items()},
                "costs": [cost.facts() for cost in self.costs],
                "class_groups": [group.facts(self.classes) for group in self.class_groups],
                "agreement": asdict(self.agreement()) if self.taxonomy else None,
            },
        }

    def at(self, threshold: float) -> Self:
        """The same P at another threshold."""
        return replace(self, threshold=threshold)

    def with_taxonomy(self, taxonomy: Taxonomy) -> Self:
        """With the known group of each class, in the order of the classes or by name."""
        if isinstance(taxonomy, Mapping):
            return replace(self, taxonomy=sources.known_groups(self.classes, taxonomy))
        return replace(self, taxonomy=tuple(str(group) for group in taxonomy))

    # --- what it says -----------------------------------------------------------------------------

    @cached_property
    def sets(self) -> dict[str, NodeSet]:
        """Each set of nodes at the threshold: its codes and the sizes of its clusters."""
        return {name: NodeSet(name, p, self.threshold) for name, p in self.memberships}

    @property
    def class_set(self) -> NodeSet:
        """The nodes that are the classes: the last set that no Blockout layer reads."""
        read = {layer.inputs for layer in self.layers}
        names = [name for name, _ in self.memberships]
        return self.sets[([name for name in names if name not in read] or names)[-1]]

    @cached_property
    def alive(self) -> dict[str, Bool[Tensor, "nodes"]]:
        """Which nodes of each set are alive: something living feeds them and reads them."""
        return {name: codes.any(1) for name, codes in self._living.items()}

    @cached_property
    def costs(self) -> tuple[LayerCost, ...]:
        """Weights and multiply-adds of each Blockout layer, before and after."""
        codes = self._living
        return tuple(LayerCost.of(x, codes[x.inputs], codes[x.outputs]) for x in self.layers)

    @cached_property
    def total(self) -> Cost:
        """Weights and multiply-adds of all Blockout layers, before and after; what is left."""
        return Cost.total(self.costs)

    @cached_property
    def _living(self) -> dict[str, Bool[Tensor, "nodes clusters"]]:
        codes = {name: nodes.assignments for name, nodes in self.sets.items()}
        return living_codes(codes, [(layer.inputs, layer.outputs) for layer in self.layers])

    @cached_property
    def class_groups(self) -> tuple[ClassGroup, ...]:
        """Groups of classes by average linkage over the cosine of centred P, the largest first."""
        count = self.group_count
        if count is None and self.taxonomy is not None:
            count = min(len(set(self.taxonomy)), _groups().different_classes(self._p()))
        if count is None:
            count = _groups().natural_count(self._p(), 2 * self.class_set.clusters)
        found = _groups().class_groups(self._p(), count).tolist()
        members = [[c for c, g in enumerate(found) if g == group] for group in range(count)]
        members.sort(key=lambda group: (-len(group), group))
        return tuple(ClassGroup.of(i, group, self.class_set) for i, group in enumerate(members))

    def nearest(self, name: str, count: int = 5) -> tuple[Neighbour, ...]:
        """The classes with the most similar memberships, the nearest first."""
        if name not in self.classes:
            near = difflib.get_close_matches(name, self.classes, n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"the classes are {_some(self.classes)}"
            )
            raise ValueError(f"there is no class {name!r}; {hint}")
        asked = self.classes.index(name)
        alike = _groups().similarities(self._p())[asked].round(9).tolist()
        others = [c for c in range(len(self.classes)) if c != asked]
        others.sort(key=lambda c: -alike[c])
        return tuple(Neighbour(self.classes[c], alike[c]) for c in others[:count])

    def reached_by(self, classes: Sequence[int]) -> dict[str, Bool[Tensor, "nodes"]]:
        """For each set, the nodes with a path to one of these classes."""
        reached = {n: torch.zeros(s.nodes, dtype=torch.bool) for n, s in self.sets.items()}
        reached[self.class_set.name][list(classes)] = True
        for _ in self.layers:  # no path is longer, whatever the order of the layers
            for layer in self.layers:
                outputs = self.sets[layer.outputs].assignments[reached[layer.outputs]]
                hit = self.sets[layer.inputs].assignments & outputs.any(0)
                reached[layer.inputs] = reached[layer.inputs] | hit.any(1)
        return reached

    def agreement(self, taxonomy: Taxonomy | None = None) -> "Agreement":
        """How well groups match a taxonomy, by default the structure's own.

        Forms as many groups of classes as the taxonomy has, unless ``group_count`` is set.
        """
        if taxonomy is not None:
            return self.with_taxonomy(taxonomy).agreement()
        if self.taxonomy is None:
            raise ValueError(
                "these classes have no known groups; pass a taxonomy: the group of each class, in "
                "order or by name"
            )
        found = {c: i for i, group in enumerate(self.class_groups) for c in group.members}
        return _groups().agreement(
            [found[c] for c in range(len(self.classes))],
            self.taxonomy,
            alike=_groups().similarities(self._p()),
        )

    def compare(self, other: "Structure") -> "Consistency":
        """Whether another training run groups the same classes together, whatever its clusters.

        The order of the classes may differ, their names must not. The threshold does not matter.
        """
        order = _same_classes(self.classes, other.classes)
        return _groups().consistency(self._p(), other._p()[order])

    def to_dot(self, most: int = 8) -> str:
        """The branching network for Graphviz; sets with more than ``most`` codes by cluster."""
        return diagrams.as_dot(self, most)

    def to_mermaid(self, most: int = 8) -> str:
        """The branching network for Mermaid; sets with more than ``most`` codes by cluster."""
        return diagrams.as_mermaid(self, most)

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        weights = f"{self.total.weights_after:,} of {self.total.weights_before:,} weights left"
        return (
            f"Structure({len(self.sets)} sets of nodes, {len(self.classes)} classes, threshold "
            f"{self.threshold:g}: {weights})"
        )

    def _p(self) -> "np.ndarray":
        """P of the classes in float64."""
        return torch.tensor(self.class_set.memberships, dtype=torch.float64).numpy()


def _groups():
    try:
        from blockout.structure import groups
    except ImportError as error:
        raise ImportError(
            f"groups and similarities of classes need scipy and scikit-learn ({error}): "
            "pip install 'blockout[train]'"
        ) from error
    return groups


def _as_float32(name: str, p: Any) -> Rows:
    """Checks that P has rows of equal length with numbers from 0 to 1."""
    try:
        rows = torch.as_tensor(p, dtype=torch.float32)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"P of {name} must be rows of equal length: {error}") from error
    if rows.dim() != 2 or not rows.numel():
        raise ValueError(f"P of {name} must have shape (nodes, clusters), got {tuple(rows.shape)}")
    outside = rows[~((rows >= 0) & (rows <= 1))]
    if outside.numel():
        raise ValueError(f"P of {name} must lie in [0, 1], got {outside[0].item():g}")
    return tuple(map(tuple, rows.tolist()))


def _require_sound(structure: Structure) -> None:
    threshold, sets = structure.threshold, dict(structure.memberships)
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise ValueError(f"threshold must be a number, got {threshold!r}")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must lie in [0, 1], got {threshold:g}")
    if len(sets) != len(structure.memberships) or not sets or not structure.layers:
        raise ValueError(
            "a structure needs sets of nodes with distinct names and a layer between two of them, "
            f"got {len(structure.memberships)} sets and {len(structure.layers)} layers"
        )
    for layer in structure.layers:
        for name in (layer.inputs, layer.outputs):
            if name not in sets:
                raise ValueError(f"layer {layer.name} names a set of nodes {name!r} that has no P")
        inputs, outputs = len(sets[layer.inputs][0]), len(sets[layer.outputs][0])
        if inputs != outputs:
            raise ValueError(
                f"{layer.inputs} has {inputs} clusters and {layer.outputs} {outputs}, but "
                f"{layer.name} connects them; neighbours share one set of clusters"
            )


def _require_names(structure: Structure) -> None:
    nodes, count = structure.class_set.nodes, structure.group_count
    for what, names in (("classes", structure.classes), ("taxonomy", structure.taxonomy)):
        if names is not None and not all(isinstance(name, str) for name in names):
            raise ValueError(f"{what} must be names, one per class")
        if names is not None and len(names) != nodes:
            raise ValueError(
                f"{what} must have an entry for each of the {nodes} nodes of "
                f"{structure.class_set.name}, got {len(names)}"
            )
    if count is not None and (not isinstance(count, int) or not 1 <= count <= nodes):
        raise ValueError(f"group_count must lie between 1 and the {nodes} classes, got {count!r}")


def _same_classes(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """The position of each of our classes among theirs."""
    if tuple(ours) == tuple(theirs):
        return list(range(len(ours)))
    place = {name: i for i, name in enumerate(theirs)}
    missing = sorted(set(ours) ^ set(theirs))
    if missing or len(place) != len(ours) or len(theirs) != len(ours):
        what = f"{_some(missing)} in one only" if missing else "some names occur more than once"
        raise ValueError(
            f"the two structures have different classes ({what}); only training runs on the "
            "same classes can be compared"
        )
    return [place[name] for name in ours]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
