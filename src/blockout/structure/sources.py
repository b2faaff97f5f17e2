"""Where a structure comes from: a model or JSON; and taxonomies from CSV files."""

import copy
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockout import files
from blockout.layers import BlockoutConv2d, BlockoutLayer, memberships_of
from blockout.structure.nodes import Layer, Rows

FORMAT, VERSION = "blockout structure", 1
PARTS = {
    "memberships": dict,
    "layers": list,
    "threshold": int | float,
    "classes": list,
    "taxonomy": list | None,
    "group_count": int | None,
}
"""Of a document, with their types."""
LAYER = {
    "name": (str, None),
    "inputs": (str, None),
    "outputs": (str, None),
    "weights_per_pair": (int, 1),
    "positions": (int | None, 1),
}
"""Of a layer in it, with types and defaults."""


def shortened(memberships: Sequence[tuple[str, Rows]]) -> dict[str, list[list[float]]]:
    """P for JSON: nine digits distinguish any two float32 numbers."""
    return {
        name: [[float(f"{value:.9g}") for value in row] for row in rows]
        for name, rows in memberships
    }


def parts_of_model(model: nn.Module, input_size: Sequence[int] | None) -> dict[str, Any]:
    """Memberships and layers of a model; with an input size, also the layers' positions."""
    found = memberships_of(model)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no Blockout layers; blockout.convert(model, layers=[...], "
            "clusters=...) adds them, to_dense and to_branches remove them"
        )
    for memberships in found.values():
        memberships.require_valid()
    names = {id(memberships): name for name, memberships in found.items()}
    layers = {n: m for n, m in model.named_modules() if isinstance(m, BlockoutLayer)}
    positions = {} if input_size is None else _positions(model, list(layers), input_size)
    return {
        "memberships": tuple(
            (name, memberships.probabilities.detach().float().tolist())
            for name, memberships in found.items()
        ),
        "layers": tuple(
            Layer(
                name or type(layer).__name__,
                names[id(layer.inputs)],
                names[id(layer.outputs)],
                layer.weight[0].numel() // layer.inputs.nodes,
                positions.get(name, None if isinstance(layer, BlockoutConv2d) else 1),
            )
            for name, layer in layers.items()
        ),
    }


@torch.no_grad()
def _positions(model: nn.Module, names: list[str], input_size: Sequence[int]) -> dict[str, int]:
    """At how many positions of one input each layer works, counted in a forward pass of a copy."""
    twin = copy.deepcopy(model).eval()
    found = dict.fromkeys(names, 0)

    def count(name: str, nodes: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            found[name] += output.numel() // nodes

        return hook

    for name in names:
        layer = twin.get_submodule(name)
        layer.register_forward_hook(count(name, layer.get_parameter("weight").shape[0]))
    weight = next(twin.parameters())
    try:
        twin(torch.zeros(1, *input_size, device=weight.device, dtype=weight.dtype))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"the model cannot take an input of shape {tuple(input_size)} (without the batch): "
            f"{error}; pass the input_size of one example, such as (3, 224, 224)"
        ) from error
    return found


def parts_of_document(text: str, source: str) -> dict[str, Any]:
    """The fields of a ``Structure`` from its JSON; ``source`` names it in error messages."""
    try:
        document = files.parsed_json(text)
    except ValueError as error:
        raise ValueError(f"{source} is not JSON, or damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(
            f"{source} is not a structure: expected a JSON object with "
            f'"format": "{FORMAT}", as written by `blockout structure RUN --format json`'
        )
    if document.get("version") != VERSION:
        raise ValueError(
            f"{source} is a structure of version {document.get('version')!r}, this blockout reads "
            f"version {VERSION}; update blockout, or write the file again from its run"
        )
    _require_parts(document, source)
    taxonomy = document["taxonomy"]
    return {
        "memberships": tuple(document["memberships"].items()),
        "layers": tuple(Layer(**layer) for layer in document["layers"]),
        "threshold": document["threshold"],
        "classes": tuple(document["classes"]),
        "taxonomy": None if taxonomy is None else tuple(taxonomy),
        "group_count": document["group_count"],
    }


def _require_parts(document: dict[str, Any], source: str) -> None:
    """Everything is there and of its kind, so that no later error is the document's.

    Values are checked where a ``Structure`` is made.
    """
    for name, kind in PARTS.items():
        if not isinstance(document.get(name, ...), kind):
            raise ValueError(f"{source} is damaged: {name!r} is missing or of a wrong kind")
    for number, layer in enumerate(document["layers"]):
        known = isinstance(layer, dict) and layer.keys() <= LAYER.keys()
        if not known or not all(isinstance(layer.get(n, d), k) for n, (k, d) in LAYER.items()):
            raise ValueError(
                f"{source} is damaged: layer {number} is not described as it should be"
            )


def read_taxonomy(path: Path | str, classes: Sequence[str]) -> tuple[str, ...]:
    """The known group of each class, from a CSV file with the columns class and group.

    The header ``class,group`` is optional. Other classes in the file are ignored.
    """
    path = Path(path)
    groups: dict[str, str] = {}
    try:
        text = io.StringIO(files.read_bytes(path).decode("utf-8-sig"), newline="")
        rows = [(n, row) for n, row in enumerate(csv.reader(text), 1) if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error
    for line, row in rows:
        cells = [cell.strip() for cell in row]
        if len(cells) != 2 or not all(cells):
            raise ValueError(
                f"line {line} of {path} must be class,group, got {','.join(row)!r}; quote names "
                "that contain commas"
            )
        name, group = cells
        if groups.setdefault(name, group) != group:
            raise ValueError(
                f"line {line} of {path} puts {name!r} in {group!r}, an earlier line in "
                f"{groups[name]!r}; give each class one group"
            )
    return known_groups(classes, groups, str(path))


def known_groups(
    classes: Sequence[str], groups: Mapping[str, str | int], source: str = "the taxonomy"
) -> tuple[str, ...]:
    """The known group of each class by name; the error lists classes without one.

    >>> known_groups(["cat", "oak"], {"oak": "plant", "cat": "animal"})
    ('animal', 'plant')
    """
    missing = [name for name in classes if name not in groups]
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise ValueError(
            f"{source} has no group for {', '.join(map(repr, missing[:8]))}{more}; "
            f"it must name all {len(classes)} classes"
        )
    return tuple(str(groups[name]) for name in classes)
