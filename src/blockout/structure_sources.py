"""Where a structure comes from: a model, the folder of a run, JSON; and taxonomies from CSV."""

import contextlib
import copy
import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from blockout.layers import BlockoutConv2d, BlockoutLayer, memberships_of
from blockout.nodesets import Layer, Rows

FORMAT, VERSION = "blockout structure", 1
RUN_FORMAT = 1
MODEL, MEMBERSHIPS, RESULT = "model.json", "memberships.safetensors", "result.json"
HEAD_LAYERS = (Layer("head.fc2", "P_0", "P_1"), Layer("head.classifier", "P_1", "P_2"))


def write_in_one_step(path: Path, text: str) -> None:
    """The whole file, or none: what was there before stays where writing fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}; name another file") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def shortened(memberships: Sequence[tuple[str, Rows]]) -> dict[str, list[list[float]]]:
    """P for JSON: nine digits tell any two float32 numbers apart."""
    return {
        name: [[float(f"{value:.9g}") for value in row] for row in rows]
        for name, rows in memberships
    }


def parts_of_model(model: nn.Module, input_size: Sequence[int] | None) -> dict[str, Any]:
    """Memberships and layers of a model; with the shape of an input, where the layers work."""
    found = memberships_of(model)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no Blockout layers; blockout.convert(model, layers=[...], "
            "clusters=...) puts them in, to_dense and to_branches take them out"
        )
    for memberships in found.values():
        memberships.require_finite()
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
    """At how many positions of one input each layer works; seen in a forward of a copy."""
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
            f"{error}; pass the input_size of one example, as (3, 224, 224)"
        ) from error
    return found


def parts_of_document(text: str, source: str) -> dict[str, Any]:
    """The fields of a ``Structure`` from its JSON; ``source`` names it in complaints."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source} is not JSON, or damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(
            f"{source} is not a structure: expected a JSON object with "
            f'"format": "{FORMAT}", as `blockout structure RUN --format json` writes it'
        )
    if document.get("version") != VERSION:
        raise ValueError(
            f"{source} is a structure of version {document.get('version')!r}, this blockout reads "
            f"version {VERSION}; update blockout, or write the file anew from its run"
        )
    try:
        taxonomy = document["taxonomy"]
        return {
            "memberships": tuple((str(k), v) for k, v in document["memberships"].items()),
            "layers": tuple(Layer(**layer) for layer in document["layers"]),
            "threshold": document["threshold"],
            "classes": tuple(document["classes"]),
            "taxonomy": None if taxonomy is None else tuple(taxonomy),
            "group_count": document["group_count"],
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{source} is damaged: {type(error).__name__} {error}") from error


def parts_of_run(folder: Path) -> dict[str, Any]:
    """The fields of a ``Structure`` from the folder of a finished run with a Blockout head."""
    about = _description(folder)
    try:
        method = about["model"]["head"]["method"]
        classes, groups, names = about["classes"], about["groups"], about.get("group_names")
        if groups is not None:
            groups = tuple(names[g] if names else str(g) for g in groups)
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MODEL} is damaged: {type(error).__name__} {error}") from error
    if method != "blockout":
        raise ValueError(
            f"the run in {folder} was trained with --method {method}, which has no memberships; "
            "train with --method blockout to have a structure"
        )
    memberships = _memberships(folder)
    return {
        "memberships": memberships,
        "layers": HEAD_LAYERS,
        "classes": tuple(classes),
        "taxonomy": groups,
    }


def _description(folder: Path) -> dict[str, Any]:
    path = folder / MODEL
    if not (folder / RESULT).exists():
        if not (folder / "config.json").exists():
            raise ValueError(f"{folder} is not the folder of a run: there is no config.json in it")
        raise ValueError(
            f"the run in {folder} is not finished; the same `blockout train` continues it"
        )
    if not path.exists():
        raise ValueError(
            f"the run in {folder} has no {MODEL}: it was trained from Python with a model of its "
            "own; there, write Structure.from_model(model, classes=...)"
        )
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(about, dict) or about.get("format") != RUN_FORMAT:
        raise ValueError(f"{path} was written by another version of blockout")
    return about


def _memberships(folder: Path) -> tuple[tuple[str, Any], ...]:
    path = folder / MEMBERSHIPS
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is missing or damaged: {error}") from error
    expected = {layer.inputs for layer in HEAD_LAYERS} | {layer.outputs for layer in HEAD_LAYERS}
    if set(found) != expected:
        raise ValueError(
            f"{path} holds {', '.join(sorted(found))} where a Blockout head has "
            f"{', '.join(sorted(expected))}; if the trunk has Blockout layers of its own, load the "
            "model and write Structure.from_model(model, classes=...)"
        )
    return tuple((name, found[name].tolist()) for name in sorted(found))


def read_taxonomy(path: Path | str, classes: Sequence[str]) -> tuple[str, ...]:
    """The group of each class from a CSV file with the columns class and group.

    A first line ``class,group`` may be left out; classes that are not asked for are passed over.
    """
    path = Path(path)
    groups: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [(n, row) for n, row in enumerate(csv.reader(file), 1) if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error
    for line, row in rows:
        cells = [cell.strip() for cell in row]
        if len(cells) != 2 or not all(cells):
            raise ValueError(
                f"line {line} of {path} must be class,group, got {','.join(row)!r}; put names that "
                "contain commas in double quotes"
            )
        name, group = cells
        if groups.setdefault(name, group) != group:
            raise ValueError(
                f"line {line} of {path} puts {name!r} in {group!r}, an earlier one in "
                f"{groups[name]!r}; give each class one group"
            )
    return groups_of(classes, groups, str(path))


def groups_of(
    classes: Sequence[str], groups: Mapping[str, str | int], source: str = "the taxonomy"
) -> tuple[str, ...]:
    """The group of each class, by its name; says which classes have none.

    >>> groups_of(["cat", "oak"], {"oak": "plant", "cat": "animal"})
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
