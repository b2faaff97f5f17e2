"""What methods are called, and which runs are the same but for their seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from blockout.runs import Run
from blockout.show.colours import OF_GROUPS

SYMBOLS = ("circle", "diamond", "square", "triangle-up")


class MethodName(NamedTuple):
    """What a method is called."""

    name: str
    in_words: str
    """As part of a sentence."""


METHOD_NAMES = {
    "baseline": MethodName("Baseline", "nothing but a classifier above the trunk"),
    "fc": MethodName("Fully connected", "plain fully-connected layers"),
    "dropout": MethodName("Dropout", "Dropout"),
    "dropconnect": MethodName("DropConnect", "DropConnect"),
    "blockout": MethodName("Blockout", "Blockout, which learns how the network branches"),
}
IN_THE_NAME = ("data", "method", "hard", "learned", "paper", "nodes")


@dataclass(frozen=True)
class Group:
    """Runs that are the same but for their seed."""

    label: str
    """Says how the group differs from the others; plain text."""
    runs: tuple[Run, ...]
    colour: str
    symbol: str = SYMBOLS[0]


def by_method(runs: Sequence[Run]) -> list[Group]:
    """Runs with equal recipes form a group, in the order of the first run of each.

    A label names method, rule and nodes, and every other setting in which groups on the same images
    differ (``epochs 6``), so that nobody takes a longer training run for a better method. Where
    there are more groups than colours, the next ones get another symbol.
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(run.recipe, sort_keys=True, default=str), []).append(run)
    recipes = [members[0].recipe for members in found.values()]
    with_data = len({recipe["data"] for recipe in recipes}) > 1
    groups = []
    for i, (members, recipe) in enumerate(zip(found.values(), recipes, strict=True)):
        others = [other for other in recipes if other["data"] == recipe["data"]]
        label = ", ".join([*_name(recipe, with_data), *_differences(recipe, others)])
        turn, place = divmod(i, len(OF_GROUPS))
        symbol = SYMBOLS[turn % len(SYMBOLS)]
        groups.append(Group(label, tuple(members), OF_GROUPS[place], symbol))
    return groups


def labels(runs: Sequence[Run]) -> list[str]:
    """The label of each run's group."""
    of_run = {id(run): group.label for group in by_method(runs) for run in group.runs}
    return [of_run[id(run)] for run in runs]


def variant(recipe: dict[str, Any]) -> str:
    """How Blockout differs from its usual form, hard and learned.

    >>> variant({"hard": False, "learned": True}), variant({"method": "dropout"})
    ('soft', '')
    """
    kinds = {"soft": not recipe.get("hard", True), "fixed": not recipe.get("learned", True)}
    return ", ".join(kind for kind, holds in kinds.items() if holds)


def _name(recipe: dict[str, Any], with_data: bool) -> list[str]:
    kind = variant(recipe)
    parts = [recipe["data"]] if with_data else []
    parts.append(METHOD_NAMES[recipe["method"]].name + (f" ({kind})" if kind else ""))
    if "paper" in recipe:
        parts.append("paper's rule" if recipe["paper"] else "guided")
    if "nodes" in recipe:
        parts.append(f"{recipe['nodes']} nodes")
    if "finetune" in recipe:
        parts.append("fine-tuned")
    return parts


def _differences(recipe: dict[str, Any], others: Sequence[dict[str, Any]]) -> list[str]:
    """In words, the settings that others have too, but with another value."""
    return [
        f"{name.replace('_', ' ')} {_in_words(value)}"
        for name, value in recipe.items()
        if name not in IN_THE_NAME and any(other.get(name, value) != value for other in others)
    ]


def _in_words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "open", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
