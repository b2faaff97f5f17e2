"""Which runs are the same but for their seed, and what such a group is called, in which colour."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockout.guidance import Guidance
from blockout.models.config import paper_defaults
from blockout.report.section import PALETTE, SYMBOLS
from blockout.report.view import RunView
from blockout.training.config import TrainConfig

NAMES = {
    "baseline": "Baseline",
    "fc": "Fully connected",
    "dropout": "Dropout",
    "dropconnect": "DropConnect",
    "blockout": "Blockout",
}
HOW_IT_RAN = ("seed", "accelerator", "devices", "num_nodes", "strategy", "own_draws")
"""What does not make two trainings different methods."""
OF_BLOCKOUT = ("clusters", "hard", "learned", "membership_scale", "paper")
OF_GUIDANCE = ("affinity_from", *(field.name for field in dataclasses.fields(Guidance)))
IN_THE_NAME = ("data", "method", "hard", "learned", "paper", "nodes")


@dataclass(frozen=True)
class Group:
    """Runs of one method on one set of images, with different seeds."""

    label: str
    """Plain text."""
    runs: tuple[RunView, ...]
    colour: str
    symbol: str = SYMBOLS[0]


def by_method(runs: Sequence[RunView]) -> list[Group]:
    """Runs that differ in nothing but the seed stand together, in the order of the first of each.

    A group is called after its method, rule and nodes, and after whatever else differs between
    groups on the same images (``epochs 6``): nobody shall take a longer training for a better
    method. The same runs have the same colours in each section; where there are more methods than
    colours, the next ones have another symbol.
    """
    found: dict[str, list[RunView]] = {}
    facts: dict[str, dict[str, Any]] = {}
    for view in runs:
        told = _facts(view)
        key = json.dumps(told, sort_keys=True, default=str)
        found.setdefault(key, []).append(view)
        facts[key] = told
    several = len({told["data"] for told in facts.values()}) > 1
    names = {key: _name(told, several) for key, told in facts.items()}
    groups = []
    for i, (key, members) in enumerate(found.items()):
        others = [told for told in facts.values() if told["data"] == facts[key]["data"]]
        label = ", ".join([names[key], *_differences(facts[key], others)])
        turn, place = divmod(i, len(PALETTE))
        symbol = SYMBOLS[turn % len(SYMBOLS)]
        groups.append(Group(label, tuple(members), PALETTE[place], symbol))
    return groups


def _facts(view: RunView) -> dict[str, Any]:
    """Everything that decides its result but the seed, with nothing left open."""
    config = TrainConfig.from_flat(view.config)
    facts = config.identity() | {
        "batch_size": config.batch_size, "lr": config.peak_rate, "paper": config.paper,
        "epochs": None if config.optimisation.steps else config.epochs,
    }  # fmt: skip
    defaults = paper_defaults(config.data.data)._asdict()
    facts |= {name: value for name, value in defaults.items() if facts[name] is None}
    unused = {*HOW_IT_RAN, *(OF_BLOCKOUT if view.method != "blockout" else ())}
    if view.method != "blockout" or config.paper or not config.model.learned:
        unused |= set(OF_GUIDANCE)
    if view.method == "blockout" and not config.model.learned:
        unused |= {"paper", "membership_scale"}
    if view.method == "baseline":
        unused.add("nodes")
    if view.method not in ("dropout", "dropconnect"):
        unused.add("dropout")
    return {name: value for name, value in facts.items() if name not in unused}


def _name(facts: dict[str, Any], with_data: bool) -> str:
    parts = [NAMES[facts["method"]]]
    if not facts.get("hard", True) or not facts.get("learned", True):
        kinds = "hard" if facts["hard"] else "soft", "learned" if facts["learned"] else "fixed"
        parts[0] += f" ({', '.join(kinds)})"
    if "paper" in facts:
        parts.append("paper's rule" if facts["paper"] else "guided")
    if "nodes" in facts:
        parts.append(f"{facts['nodes']} nodes")
    if with_data:
        parts.insert(0, Path(facts["data"].rstrip("/")).name)
    return ", ".join(parts)


def _differences(facts: dict[str, Any], others: list[dict[str, Any]]) -> list[str]:
    """In words, what the others have too, but with another value."""
    differing = [
        name
        for name, value in facts.items()
        if name not in IN_THE_NAME and any(other.get(name, value) != value for other in others)
    ]
    return [f"{name.replace('_', ' ')} {_in_words(facts[name])}" for name in differing]


def _in_words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "open", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
